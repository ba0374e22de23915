"""What a replica's cache holds, as far as a fleet knows: three cache views.

`RoutedHistory` guesses it from the prompts that the replica has computed.  `EventView` follows the events
that the replica's engine publishes.  `ReplicaView` adds the prompts that are on their way to the replica.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, final

from peek.errors import InvalidKey
from peek.native import i64
from peek.settings import require_whole
from peek.trie.dual_walk import checked_step
from peek.trie.keys import MAX_SYMBOL, SYMBOL_BYTES, match_span
from peek.trie.node import Node
from peek.trie.pending_tree import PendingTree
from peek.trie.tree_view import TreeView, edge_bytes

if TYPE_CHECKING:
    from peek.protocols import CacheView

EVENT_NODE: Final = -1  # `EventView.node_id` of every cursor: a fleet evicts nothing, and 0 is no node
_BEHIND: Final = object()  # a cursor in `ReplicaView`: this view holds less of the path than the other
MOST_NOTED: Final = 256  # changes that the planner can catch up with; after more it walks the whole queue
MOST_NOTED_BYTES: Final = 2**20  # of keys among these: a few long prompts, as every replica keeps as many


def _check_sizes(capacity: int, unit_tokens: int) -> None:
    require_whole("capacity", capacity, 0, 2**60)
    require_whole("unit_tokens", unit_tokens, 1, MAX_SYMBOL)


def own_symbols(tree: PendingTree, request_id: str) -> i64:
    """Return the number of a prompt's symbols that no other prompt of the tree has.  O(1)."""
    leaf = tree.leaf(request_id)
    parent = leaf.parent
    assert parent is not None
    return leaf.depth - parent.depth if leaf.count == 1 else 0


@final
class RoutedHistory:
    """`CacheView` over the newest prompts of one replica.

    A cache that evicts the least recently used entries holds the newest prompts that fit, with shared parts
    counted once.  This view does the same over a `PendingTree`: a prefix stays as long as any prompt has it.
    The capacity bounds the memory.

    Args:
        capacity: symbols that the replica's cache has room for, 0 .. 2**60.
        unit_tokens: tokens per symbol.

    Raises `InvalidConfig` for an impossible number.
    """

    def __init__(self, capacity: int, unit_tokens: int = 1) -> None:
        _check_sizes(capacity, unit_tokens)
        self.unit_tokens: int = unit_tokens
        self.block_symbols: int = 1
        self.capacity: i64 = capacity
        self.symbols: i64 = 0
        """Symbols held, with symbols that prompts share counted once."""
        self.full: bool = False
        """Whether a prompt had to be dropped, so that a new one takes another's room."""
        self.tree = PendingTree()
        self._view = TreeView(self.tree, unit_tokens)
        self._newest: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        """Number of prompts held.  O(1)."""
        return len(self.tree)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.tree

    @property
    def version(self) -> int:
        """A number that changes whenever an answer of `advance` could change."""
        return self.tree.version

    def note(self, request_id: str, key: bytes, namespace: str) -> None:
        """Make a prompt the newest one, and drop the oldest until the rest fits.  O(len(key)).

        An earlier prompt that is equal or has the same name is dropped.  The newest prompt stays even if it
        is larger than the capacity.
        """
        self.forget(request_id)
        self.tree.insert(request_id, key, namespace)
        own = self.tree.leaf(request_id).terminator
        assert own is not None
        if own.next is not None:
            self.forget(own.next.request.request_id)
        else:
            self.symbols += own_symbols(self.tree, request_id)
        self._newest[request_id] = None
        while self.symbols > self.capacity and len(self._newest) > 1:
            self.full = True
            self.forget(next(iter(self._newest)))

    def forget(self, request_id: str) -> None:
        """Drop a prompt, except for parts that others share.  O(depth); unknown names are ignored."""
        if request_id in self.tree:
            self.symbols -= own_symbols(self.tree, request_id)
            self.tree.remove(request_id)
            del self._newest[request_id]

    def clear(self) -> None:
        """Forget all prompts, because the cache was emptied.  O(prompts)."""
        self.full = False
        for request_id in list(self._newest):
            self.forget(request_id)

    def root(self, namespace: str) -> object:
        return self._view.root(namespace)

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        return self._view.advance(cursor, segment, offset)

    def node_id(self, cursor: object) -> int:
        return self._view.node_id(cursor)


@final
class ReplicaView:
    """`CacheView` in which a prefix counts as held if the cache or a prompt on its way has it.

    Placement asks `held`; only the planner of the replica walks the view.  If the cache is guessed or has a
    `version`, the view tells which prompts came in since the last walk (`inserted_since`).  A walk then looks
    only along these prompts and at what was held before.

    `told` is the replica's cache, as it is or was some seconds ago, None to guess it; `capacity` is the
    number of symbols that it has room for.
    """

    def __init__(self, told: CacheView | None, capacity: i64, unit_tokens: i64) -> None:
        self.unit_tokens: int = unit_tokens
        self.block_symbols: int = 1
        self.history = RoutedHistory(capacity, unit_tokens)  # prompts that it has computed, as many as fit
        self.coming = PendingTree()  # prompts that were sent to it and have no first token yet
        self.under_way = PendingTree()  # prompts that were sent to it and have no whole answer yet
        self.pinned: i64 = 0  # symbols of these, which it cannot evict; those that they share counted once
        self.guesses: bool = told is None
        self._cache: Any = self.history if told is None else told
        self._queued = TreeView(self.coming, unit_tokens)
        # Prompts that came in, oldest first, each with the number of its symbols that were here before.  An
        # entry with an empty key says that prompts may have gone.
        self._log: list[tuple[str, bytes, i64]] = []
        self._log_bytes: i64 = 0
        self._forgotten: i64 = 0  # number of entries that were cut off at the beginning of the log
        self.most_noted: i64 = MOST_NOTED
        self.most_noted_bytes: i64 = MOST_NOTED_BYTES

    # -- events of the replica -----------------------------------------------------------------------

    def send(self, request_id: str, key: bytes, namespace: str, held: i64 = 0) -> None:
        """Note that a prompt was sent to the replica, which had `held` symbols of it.  O(len(key))."""
        self.coming.insert(request_id, key, namespace)
        self.under_way.insert(request_id, key, namespace)
        self.pinned += own_symbols(self.under_way, request_id)
        self._note(namespace, key, held)

    def compute(self, request_id: str, key: bytes, namespace: str) -> None:
        """Note that a prompt that was sent is computed.  O(len(key))."""
        self.coming.remove(request_id)
        self.history.note(request_id, key, namespace)
        self._note("", b"", 0)  # the prompt itself is no news: it was held while it was on its way

    def end(self, request_id: str) -> None:
        """Note that a request that was sent has ended, or was given up.  O(depth)."""
        self.pinned -= own_symbols(self.under_way, request_id)
        self.under_way.remove(request_id)

    def learn(self, request_id: str, key: bytes, namespace: str) -> None:
        """Note a prompt that another router sent there: a guessed cache counts it as held.  O(len(key))."""
        held = self.remembered(key, namespace)
        self.history.note(request_id, key, namespace)
        self._note(namespace, key, held)

    def give_up(self, request_id: str) -> None:
        """Note that a prompt that was sent is not going to be computed.  O(depth)."""
        self.coming.remove(request_id)
        self._note("", b"", 0)

    def forget(self) -> None:
        """Note that the cache was emptied.  O(prompts held)."""
        self.history.clear()
        self._note("", b"", 0)

    def _note(self, namespace: str, key: bytes, held: i64) -> None:
        self._log.append((namespace, key, held))
        self._log_bytes += len(key)
        while len(self._log) > 2 * self.most_noted or self._log_bytes > self.most_noted_bytes:
            cut: i64 = (len(self._log) + 1) // 2
            for _, old, _ in self._log[:cut]:
                self._log_bytes -= len(old)
            del self._log[:cut]
            self._forgotten += cut

    def held(self, key: bytes, namespace: str) -> i64:
        """Symbols of a packed prompt that are here: what `advance` answers from the root.  O(shared part)."""
        if self.guesses:
            return self.remembered(key, namespace)
        segment = memoryview(key).cast("i")
        cached = self._cache.advance(self._cache.root(namespace), segment, 0)
        return max(self.coming.shared_symbols(key, namespace), checked_step(cached, len(segment))[0])

    def remembered(self, key: bytes, namespace: str) -> i64:
        """Symbols that a packed prompt shares with a prompt sent here and not forgotten.  O(shared part)."""
        coming = self.coming.shared_symbols(key, namespace)
        return max(coming, self.history.tree.shared_symbols(key, namespace))

    @property
    def prompts(self) -> int:
        """Number of prompts that are known to be there or on their way.  O(1)."""
        return len(self.history) + len(self.coming)

    def askers(self, key: bytes, namespace: str) -> i64:
        """Return how many prompts share at least half of what is here of a key.  O(shared part + depth)."""
        longest: i64 = 0
        places: list[tuple[i64, Node]] = []
        for tree in (self.history.tree, self.coming):
            root = tree.root(namespace)
            if root is not None:
                shared, node, _ = tree.follow(key, root, 0)
                places.append((shared, node))
                longest = max(longest, shared)
        found: i64 = 0
        for shared, node in places:
            if shared > 0 and 2 * shared >= longest:
                while node.parent is not None and 2 * SYMBOL_BYTES * node.parent.depth >= longest:
                    node = node.parent
                found += node.count
        return found

    # -- CacheView -----------------------------------------------------------------------------------

    @property
    def version(self) -> object:
        """A value that changes whenever an answer of `advance` could; None if the cache has no version."""
        if self.guesses:
            return (self.changes, 0)
        told: object = getattr(self._cache, "version", None)
        return None if told is None else (self.changes, told)

    @property
    def changes(self) -> int:
        """Number of changes that were noted here.  O(1)."""
        return self._forgotten + len(self._log)

    def gained_since(self, changes: i64) -> list[tuple[str, bytes, i64]] | None:
        """Return the prompts that came in since an earlier number of `changes`; None if not known.

        Each is a namespace, a key, and how many of its symbols were here before.  An empty key stands for a
        loss.  O(answer).
        """
        return self._log[changes - self._forgotten :] if changes >= self._forgotten else None

    def inserted_since(self, version: object) -> list[tuple[str, bytes]] | None:
        """Return the prompts that came in since an earlier `version`; None if not known.  O(answer)."""
        if not isinstance(version, tuple):
            return None
        if not (self.guesses or version[1] == self._cache.version):
            return None
        gained = self.gained_since(version[0])
        return None if gained is None else [(namespace, key) for namespace, key, _ in gained]

    def root(self, namespace: str) -> object:
        return namespace  # `advance` looks up the roots, so that this cursor outlasts any change

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        """Return the longer of the two answers; the view that holds less is not asked again below."""
        if isinstance(cursor, str):
            cache: object = self._cache.root(cursor)
            coming: object = self._queued.root(cursor)
        else:
            assert isinstance(cursor, tuple)
            cache, coming = cursor
        cached: i64 = 0
        sent: i64 = 0
        if cache is not _BEHIND:
            cached, cache = checked_step(self._cache.advance(cache, segment, offset), len(segment))
        if coming is not _BEHIND:
            sent, coming = self._queued.advance(coming, segment, offset)
        if cached == sent:
            return cached, (cache, coming)
        return (cached, (cache, _BEHIND)) if cached > sent else (sent, (_BEHIND, coming))

    def node_id(self, cursor: object) -> int:
        """Return 0: a fleet evicts nothing."""
        return 0


# -- events -------------------------------------------------------------------------------------------
#
# vLLM and SGLang report each block that they store or remove, by a hash that stands for the block and all
# blocks before it.  They also report the tokens of stored blocks.  Consecutive blocks make a `Run`, so that a
# prompt is compared with one run and not block by block.  Other prompts branch off at any block of a run; a
# `Fork` holds the runs after one block.  A block whose parent is not known is kept, and matches nothing until
# the parent is reported.  Engines find blocks by hash, so the block is of use again then.


@final
class Run:
    """Consecutive blocks of one prompt; `before` is the hash of the block before them, or a namespace."""

    __slots__ = ("before", "hashes", "symbols")

    def __init__(self, before: object, symbols: bytes) -> None:
        self.before: Any = before  # Any, like the hashes: numpy's comparisons give no native bools
        self.hashes: list[Any] = []
        self.symbols = symbols  # of the blocks, packed; those after the last block do not count


@final
class Fork:
    """The runs after one block, by their first blocks."""

    __slots__ = ("_firsts", "runs")

    def __init__(self) -> None:
        self.runs: dict[bytes, Run] = {}
        # Sorted, because the first block that shares most with given symbols is next to their place.
        self._firsts: list[bytes] = []

    def put(self, first: bytes, run: Run) -> None:
        """Add a run, or replace the one with that first block.  O(runs): a binary search and one move."""
        if first not in self.runs:
            self._firsts.insert(bisect_left(self._firsts, first), first)
        self.runs[first] = run

    def drop(self, first: bytes, run: Run) -> None:
        """Remove a run, unless another has taken its place.  Cost of `put`."""
        if self.runs.get(first) is run:
            del self.runs[first]
            del self._firsts[bisect_left(self._firsts, first)]

    def longest(self, symbols: bytes) -> i64:
        """The most bytes that any first block shares with `symbols`.  O(log runs)."""
        at: i64 = bisect_left(self._firsts, symbols)
        found: i64 = 0
        for first in self._firsts[max(0, at - 1) : at + 1]:
            found = max(found, match_span(symbols, 0, first, 0))
        return found

    def check(self) -> None:
        """Raise `AssertionError` if the first blocks are out of order."""
        assert self.runs and sorted(self.runs) == self._firsts, "first blocks"


@final
class Spot:
    """A cursor: after `at` bytes of a run (None at the beginning) and `rest`, a part of one more block."""

    __slots__ = ("at", "namespace", "rest", "run")

    def __init__(self, namespace: str, run: Run | None, at: i64, rest: bytes) -> None:
        self.namespace = namespace
        self.run = run
        self.at: i64 = at
        self.rest = rest


@final
class EventView:
    """`CacheView` over the blocks that an engine says it has.

    A hash is an int or bytes and names one content.  If a publisher gives two contents one hash, or one
    content two hashes, the answers hold for one of the two.  All blocks have the size of the first; others
    are ignored.  Answers are in single symbols: if the last block matches in part, the engine finds only the
    whole blocks before it.

    Memory: per block about 100 bytes and its symbols, for at most `capacity` symbols.  A replica cannot have
    more.  If reports of removals were lost, the runs that have grown least recently are dropped.

    Args:
        capacity: symbols that the replica's cache has room for, 0 .. 2**60.
        unit_tokens: tokens per symbol.

    Raises `InvalidConfig` for an impossible number.
    """

    def __init__(self, capacity: int, unit_tokens: int = 1) -> None:
        _check_sizes(capacity, unit_tokens)
        self.unit_tokens: int = unit_tokens
        self.block_symbols: int = 1
        self.capacity: i64 = capacity
        self.version: i64 = 0
        """Grows when an answer of `advance` may have changed."""
        self.ignored: i64 = 0
        """Number of blocks that were left out because their size is not that of the first."""
        self._block_bytes: i64 = 0
        self._run_of: dict[object, Run] = {}
        self._copies: dict[object, int] = {}  # by hash: copies of a block besides the first, if any
        self._forks: dict[object, Fork] = {}  # by hash or namespace: the runs stored after it
        self._runs: OrderedDict[Run, None] = OrderedDict()  # all runs, the one that grew last at the end

    def __len__(self) -> int:
        """Number of blocks held, each counted once.  O(1)."""
        return len(self._run_of)

    # -- events --------------------------------------------------------------------------------------

    def stored(self, hashes: list[object], parent: object, symbols: bytes, namespace: str = "") -> None:
        """Note that the engine has stored consecutive blocks.  O(len(symbols) + the run it extends).

        A block that is there already counts as one more copy.

        Args:
            hashes: the hashes of the blocks.
            parent: hash of the block before them; None if a prompt begins with them.
            symbols: the symbols of the blocks, packed; the same number for each block.
            namespace: what keeps equal prompts apart; used if `parent` is None.

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
        """Store the blocks from `start` to the next known one; return where they end."""
        width = self._block_bytes
        run = self._run_of.get(before)
        if run is None or run.hashes[-1] != before:
            run = Run(before, b"")
            self._forks.setdefault(before, Fork()).put(symbols[start * width : (start + 1) * width], run)
        length: i64 = len(run.hashes)
        end = start
        while end < len(hashes) and hashes[end] not in self._run_of:
            run.hashes.append(hashes[end])
            self._run_of[hashes[end]] = run
            end += 1
        run.symbols = run.symbols[: length * width] + symbols[start * width : end * width]
        self._runs.pop(run, None)
        self._runs[run] = None
        self.version += 1
        return end

    def removed(self, hashes: list[object]) -> None:
        """Note that the engine has removed blocks.  O(1) each from the end of a run, O(run) elsewhere.

        A block with several copies stays; unknown blocks are ignored.
        """
        at: i64 = len(hashes) - 1
        while at >= 0:  # from the end: SGLang reports a node's pages in the order of the prompt
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
        """Make the blocks of a run after `block` a run of their own."""
        width = self._block_bytes
        keep: i64 = run.hashes.index(block) + 1
        rest = Run(block, run.symbols[keep * width : len(run.hashes) * width])
        rest.hashes = run.hashes[keep:]
        run.hashes = run.hashes[:keep]
        for each in rest.hashes:
            self._run_of[each] = rest
        self._forks.setdefault(block, Fork()).put(rest.symbols[:width], rest)
        self._runs[rest] = None

    def _detach(self, run: Run) -> None:
        """Forget a run without blocks."""
        fork = self._forks.get(run.before)
        if fork is not None:
            fork.drop(run.symbols[: self._block_bytes], run)
            if not fork.runs:
                del self._forks[run.before]
        del self._runs[run]

    def _fit(self) -> None:
        """Drop the runs that grew least recently until the others are within the capacity."""
        most: i64 = self.capacity * SYMBOL_BYTES // self._block_bytes
        while len(self._run_of) > most:
            run = next(iter(self._runs))
            for block in run.hashes:
                del self._run_of[block]
                self._copies.pop(block, 0)
            self._detach(run)
            self.version += 1

    def clear(self) -> None:
        """Note that the engine has emptied its cache, or is a new one.  O(blocks)."""
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
        """Follow `segment` from `cursor`.  O(shared part), and O(log runs) at the fork after each run."""
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
                left: i64 = len(run.hashes) * width - at
                common: i64 = min(match_span(text, done, run.symbols, at), left)
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
                part = max(part, fork.longest(block))
                break
            run = below
            at = width
            done += width
            part = 0
        matched: i64 = max(0, done + part - begun)
        return matched >> 2, Spot(cursor.namespace, run, at, text[done : done + part])

    def node_id(self, cursor: object) -> int:
        return EVENT_NODE

    # -- self-check ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Verify the bookkeeping, for tests; `AssertionError` names the fault.  O(symbols)."""
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
