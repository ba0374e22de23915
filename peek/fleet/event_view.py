"""What a replica's cache holds, from the events that its engine publishes.

vLLM and SGLang tell of each block that they store or let go of, by a hash that stands for the block and all
before it, and the tokens of those they store.  `EventView` keeps them as an engine does, block by block, and
is asked like a cache (`CacheView`).

Operations: store some blocks in a row, remove some, clear, be asked.  Duplicates are counted, unknown hashes
ignored.  A block whose parent is missing is kept, and matches nothing until the parent is there: engines find
blocks by their hashes, so it was there all the time.

Plan.  Blocks stored one behind the other make a `Run`, so that a prompt is compared with one run, not block
by block.  Other prompts branch off at any block of it; a `Fork` has those behind one block.  Answers are in
single symbols: where the last block matches in part, the engine finds the whole blocks before it.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from peek.errors import InvalidKey
from peek.fleet.block_runs import Fork, Run
from peek.trie.keys import SYMBOL_BYTES, match_span
from peek.trie.tree_view import edge_bytes

NOWHERE: Final = -1
"""The node of every cursor: a fleet evicts nothing."""


@final
class Spot:
    """A cursor: behind `at` bytes of a run (None: where a namespace begins), and `rest` of a block more."""

    __slots__ = ("at", "namespace", "rest", "run")

    def __init__(self, namespace: str, run: Run | None, at: i64, rest: bytes) -> None:
        self.namespace = namespace
        self.run = run
        self.at: i64 = at
        self.rest = rest


@final
class EventView:
    """`CacheView` over the blocks that an engine says it has.

    A hash is an int or bytes, and names one content: whoever publishes two of them under one hash, or one
    under two, gets answers for one of the two.  All blocks are of one size, that of the first; others are
    ignored.

    Memory: about 100 bytes and the symbols of a block, for at most `capacity` symbols.  That many blocks a
    replica cannot have; where news of removals was lost the runs go that have grown least recently.

    Args:
        capacity: symbols that the replica's cache has room for.
        unit_tokens: tokens per symbol.
    """

    __slots__ = (
        "_block_bytes",
        "_copies",
        "_forks",
        "_run_of",
        "_runs",
        "block_symbols",
        "capacity",
        "ignored",
        "unit_tokens",
        "version",
    )

    def __init__(self, capacity: i64, unit_tokens: i64 = 1) -> None:
        self.unit_tokens: int = unit_tokens
        self.block_symbols: int = 1
        self.capacity: i64 = capacity
        self.version: i64 = 0
        """Grows when an answer of `advance` may have changed."""
        self.ignored: i64 = 0
        """Blocks of another size than the first, which were left out."""
        self._block_bytes: i64 = 0
        self._run_of: dict[object, Run] = {}
        self._copies: dict[object, int] = {}
        """How often a block is there besides the first time, where it is."""
        self._forks: dict[object, Fork] = {}
        """By hash or namespace: what is stored behind it."""
        self._runs: dict[Run, None] = {}
        """All of them, the one that grew last at the end."""

    def __len__(self) -> int:
        """Blocks held, each counted once.  O(1)."""
        return len(self._run_of)

    def __contains__(self, block_hash: object) -> bool:
        return block_hash in self._run_of

    # -- events --------------------------------------------------------------------------------------

    def stored(self, hashes: list[object], parent: object, symbols: bytes, namespace: str = "") -> None:
        """The engine has stored some blocks, one behind the other.  O(len(symbols) + the run it extends).

        A block that is there already has one copy more from then on.

        Args:
            hashes: of the blocks.
            parent: hash of the block before them; None if a prompt begins with them.
            symbols: theirs, packed; the same number of each block.
            namespace: where `parent` is None: what keeps equal prompts apart.

        Raises `InvalidKey`, having changed nothing, if the symbols do not fill the blocks.
        """
        hash((parent, *hashes))  # raises before anything changes
        count: i64 = len(hashes)
        if count == 0:
            return
        width: i64 = len(symbols) // count
        if width == 0 or width * count != len(symbols) or width % SYMBOL_BYTES != 0:
            raise InvalidKey(f"{len(symbols)} bytes of symbols do not fill {count} blocks")
        if self._block_bytes == 0:
            self._block_bytes = width
        if width != self._block_bytes:
            self.ignored += count
            return
        before = namespace if parent is None else parent
        at: i64 = 0
        while at < count:
            block = hashes[at]
            if block in self._run_of:
                self._copies[block] = self._copies.get(block, 0) + 1
                at += 1
            else:
                at = self._append(hashes, at, before, symbols)
            before = hashes[at - 1]
        self._fit()

    def _append(self, hashes: list[object], start: i64, before: object, symbols: bytes) -> i64:
        """New blocks from `start` on, as far as they are new; returns where they end."""
        width = self._block_bytes
        run = self._run_of.get(before)
        if run is None or run.hashes[-1] != before:
            run = Run(before, b"")
            fork = self._forks.get(before)
            if fork is None:
                fork = Fork()
                self._forks[before] = fork
            fork.put(symbols[start * width : (start + 1) * width], run)
        held: i64 = len(run.hashes)
        end = start
        while end < len(hashes) and hashes[end] not in self._run_of:
            run.hashes.append(hashes[end])
            self._run_of[hashes[end]] = run
            end += 1
        run.symbols = run.symbols[: held * width] + symbols[start * width : end * width]
        self._runs.pop(run, None)
        self._runs[run] = None
        self.version += 1
        return end

    def removed(self, hashes: list[object]) -> None:
        """The engine has let go of some blocks.  O(1) each from the end of a run, O(run) elsewhere.

        One of which it had several copies stays; unknown ones are ignored.
        """
        at: i64 = len(hashes) - 1
        while at >= 0:  # from the end: SGLang tells a node's pages in the order of the prompt
            block = hashes[at]
            at -= 1
            copies = self._copies.get(block, 0)
            if copies > 1:
                self._copies[block] = copies - 1
            elif copies == 1:
                del self._copies[block]
            elif block in self._run_of:
                self._remove(block)

    def _remove(self, block: object) -> None:
        run = self._run_of.pop(block)
        self.version += 1
        if run.hashes[-1] != block:
            self._cut_behind(run, block)
        run.hashes.pop()
        if not run.hashes:
            self._detach(run)

    def _cut_behind(self, run: Run, block: object) -> None:
        """What a run has behind a block becomes a run of its own."""
        width = self._block_bytes
        keep: i64 = run.hashes.index(block) + 1
        rest = Run(block, run.symbols[keep * width : len(run.hashes) * width])
        rest.hashes = run.hashes[keep:]
        run.hashes = run.hashes[:keep]
        for each in rest.hashes:
            self._run_of[each] = rest
        fork = self._forks.get(block)
        if fork is None:
            fork = Fork()
            self._forks[block] = fork
        fork.put(rest.symbols[:width], rest)
        self._runs[rest] = None

    def _detach(self, run: Run) -> None:
        """A run has no block left."""
        fork = self._forks.get(run.before)
        if fork is not None:
            fork.drop(run.symbols[: self._block_bytes], run)
            if not fork.runs:
                del self._forks[run.before]
        del self._runs[run]

    def _fit(self) -> None:
        """Keeps to the capacity."""
        most: i64 = self.capacity * SYMBOL_BYTES // self._block_bytes
        while len(self._run_of) > most:
            run = next(iter(self._runs))
            for block in run.hashes:
                del self._run_of[block]
                self._copies.pop(block, 0)
            self._detach(run)
            self.version += 1

    def clear(self) -> None:
        """The engine has emptied its cache, or is a new one.  O(blocks)."""
        self._run_of.clear()
        self._copies.clear()
        self._forks.clear()
        self._runs.clear()
        self._block_bytes = 0
        self.version += 1

    # -- CacheView -----------------------------------------------------------------------------------

    def root(self, namespace: str) -> object:
        return Spot(namespace, None, 0, b"")

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        """O(common part), and a look into a fork, O(log runs), for each run on the way."""
        assert isinstance(cursor, Spot)
        width = self._block_bytes
        text = edge_bytes(segment)
        begun: i64 = len(cursor.rest)
        if begun > 0:
            text = cursor.rest + text
        run = cursor.run
        at = cursor.at
        done: i64 = 0
        part: i64 = 0
        while width > 0 and done < len(text):
            part = 0
            key: object = cursor.namespace
            if run is not None:
                common: i64 = match_span(text, done, run.symbols, at)
                left: i64 = len(run.hashes) * width - at
                if common > left:
                    common = left
                part = common % width
                done += common - part
                at += common - part
                key = run.hashes[at // width - 1]
            fork = self._forks.get(key)
            if fork is None or done == len(text):
                break
            block = text[done : done + width]
            below = fork.runs.get(block)
            if below is None:
                longest: i64 = fork.longest(block)
                if longest > part:
                    part = longest
                break
            run = below
            at = width
            done += width
            part = 0
        matched: i64 = done + part - begun
        if matched < 0:
            matched = 0
        return matched >> 2, Spot(cursor.namespace, run, at, text[done : done + part])

    def node_id(self, cursor: object) -> int:
        return NOWHERE

    # -- self-check ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Verify the bookkeeping, for tests; `AssertionError` names what is off.  O(symbols)."""
        width = self._block_bytes
        blocks = {block: run for run in self._runs for block in run.hashes}
        assert blocks == self._run_of, "a block is in another run than its own"
        assert len(self._run_of) == sum([len(run.hashes) for run in self._runs]), "a block is there twice"
        assert all(count > 0 and block in self._run_of for block, count in self._copies.items()), "copies"
        for run in self._runs:
            assert run.hashes and len(run.symbols) >= len(run.hashes) * width, "a run without symbols"
        for before, fork in self._forks.items():
            fork.check()
            for first, run in fork.runs.items():
                assert run in self._runs and run.before == before, "a run that hangs elsewhere"
                assert run.symbols[:width] == first, "a run behind another's first block"
        assert len(self._run_of) * width <= self.capacity * SYMBOL_BYTES, "more than there is room for"
