"""A shadow of the engine's prefix cache: what it probably holds, kept on our side.

Operations to support: look a prompt up, run a prompt, know which blocks the rest of the batch still
needs, and come back to what the engine reports.

Plan.  Blocks by chained key (`block_keys`), each one record.  Blocks that nobody ahead needs stand in one
LRU dictionary, deepest first within a prompt, as engines free them; victims come from there, in O(1).
Only when it is empty does a needed block go: the one with the lowest `log(1 + references) x (1 + depth)`
among those that no resident block hangs on (paper, PEEK-offline, phase 2).  The logarithm keeps a
popular prefix from ossifying, the depth weighs what a miss would cost.  A needed block's ancestors are
needed, too, so a resident block never loses an ancestor.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heappop, heappush
from math import log1p
from operator import itemgetter

from peek.errors import InvalidConfig


class _Block:
    """A resident block; `kids` counts the resident blocks right behind it."""

    __slots__ = ("depth", "key", "kids", "parent")

    def __init__(self, key: int, parent: _Block | None, depth: int) -> None:
        self.key = key
        self.parent = parent
        self.depth = depth
        self.kids = 0


class ShadowCache:
    """An LRU prefix cache over block keys.

    >>> cache = ShadowCache(cache_tokens=64, block_tokens=16)
    >>> cache.admit([1, 2, 3]), cache.admit([1, 2, 4]), len(cache)
    (0, 2, 4)

    Args:
        cache_tokens: what the engine has, in tokens.
        block_tokens: tokens of a block.
    """

    def __init__(self, cache_tokens: int, block_tokens: int = 16) -> None:
        if not 1 <= block_tokens <= cache_tokens:
            raise InvalidConfig(f"a cache of {cache_tokens} tokens has no block of {block_tokens}")
        self.block_tokens = block_tokens
        self.stated = cache_tokens // block_tokens
        """Blocks that the engine is said to have."""
        self.capacity = self.stated
        """Blocks that it seems to have; see `reconcile`."""
        self._blocks: dict[int, _Block] = {}
        self._unneeded: OrderedDict[int, None] = OrderedDict()
        self._references: dict[int, int] = {}
        self._needed: list[tuple[float, int, int]] = []
        self._pushes = 0

    def __len__(self) -> int:
        """Resident blocks.  O(1)."""
        return len(self._blocks)

    def __contains__(self, key: object) -> bool:
        """Whether a block is resident.  O(1)."""
        return key in self._blocks

    def match(self, keys: Sequence[int]) -> int:
        """Leading blocks that are resident; touches nothing.  O(hits)."""
        hits = 0
        for key in keys:
            if key not in self._blocks:
                break
            hits += 1
        return hits

    def admit(self, keys: Sequence[int]) -> int:
        """Run a prompt: returns the leading blocks that were there, and has them all afterwards, or as many
        leading ones as fit.  O(1) per block; O(log n) for a needed victim.
        """
        hits = self.match(keys)
        wanted = keys[: self.capacity]
        for key in wanted[:hits]:
            self._unneeded.pop(key, None)
        parent = self._blocks[wanted[hits - 1]] if 0 < hits <= len(wanted) else None
        if hits < len(wanted):
            self._make_room(len(wanted) - hits, wanted[hits - 1] if hits else None)
        for depth in range(hits, len(wanted)):
            block = _Block(wanted[depth], parent, depth)
            if parent is not None:
                parent.kids += 1
            self._blocks[wanted[depth]] = parent = block
        for key in reversed(wanted):
            self._file(key)
        return hits

    def refer(self, keys: Sequence[int], more: int = 1) -> None:
        """Prompts ahead that need these blocks become `more` (or fewer, if negative).  O(1) per block.

        The keys are leading blocks of a prompt, in order.
        """
        references = self._references
        for key in reversed(keys):
            count = references.get(key, 0) + more
            if count > 0:
                references[key] = count
            else:
                references.pop(key, None)
            if key in self._blocks:
                self._file(key, touch=False)

    def references(self, key: int) -> int:
        """Prompts ahead that need a block."""
        return self._references.get(key, 0)

    def reconcile(self, expected_tokens: int, cached_tokens: int) -> None:
        """Learn from what the engine reports of a prompt that has run.

        Fewer cached tokens than expected: the engine holds less than stated (running requests, other
        users), so as many of the oldest blocks go and the capacity shrinks by them, to an eighth at
        least.  More: the capacity grows back by the difference, to the stated one at most.

        Args:
            expected_tokens: what `admit` said, in tokens.
            cached_tokens: what the engine says.
        """
        blocks = (cached_tokens - expected_tokens) // self.block_tokens
        self.capacity = min(self.stated, max(self.stated // 8, 1, self.capacity + blocks))
        self._make_room(0, None)

    # -- victims ---------------------------------------------------------------------------------------

    def _file(self, key: int, touch: bool = True) -> None:
        """Put a resident block where its victims are looked for."""
        references = self._references.get(key, 0)
        if references:
            self._unneeded.pop(key, None)
            block = self._blocks[key]
            if not block.kids:
                self._push(block, references)
        elif touch or key not in self._unneeded:
            self._unneeded[key] = None
            self._unneeded.move_to_end(key)

    def _push(self, block: _Block, references: int) -> None:
        self._pushes += 1  # ties: the one that came first
        heappush(self._needed, (log1p(references) * (1 + block.depth), self._pushes, block.key))
        if len(self._needed) > 64 + 4 * len(self._blocks):
            self._sweep()

    def _sweep(self) -> None:
        """Drop stale entries; the newest of each block stays.  Amortised O(1) per push."""
        newest = {entry[2]: entry for entry in sorted(self._needed, key=itemgetter(1))}
        self._needed = sorted(filter(self._is_current, newest.values()))

    def _make_room(self, more: int, spared: int | None) -> None:
        """Evict until `more` blocks fit; not block `spared`, and so nothing above it."""
        held_back = None
        while len(self._blocks) + more > self.capacity:
            if self._unneeded:
                key, _ = self._unneeded.popitem(last=False)
            else:
                entry = heappop(self._needed)
                key = entry[2]
                if not self._is_current(entry):
                    continue
                if key == spared:
                    held_back = entry
                    continue
            self._evict(key)
        if held_back is not None:
            heappush(self._needed, held_back)

    def _is_current(self, entry: tuple[float, int, int]) -> bool:
        """Whether a heap entry still tells a resident block's priority."""
        block = self._blocks.get(entry[2])
        references = self._references.get(entry[2], 0)
        if block is None or block.kids or not references:
            return False
        return entry[0] == log1p(references) * (1 + block.depth)

    def _evict(self, key: int) -> None:
        parent = self._blocks.pop(key).parent
        if parent is not None:
            parent.kids -= 1
            references = self._references.get(parent.key, 0)
            if references and not parent.kids:
                self._push(parent, references)
