"""Run a batch in waves, each ordered by what the cache should hold when the wave begins.

The depth-first order of the whole batch is cut into waves, each about as large as the engine's running batch.
Before a wave runs, a second depth-first walk, over the wave's part of the trie, orders its prompts.  It
visits children by this key, highest first (paper, PEEK-offline, phase 2):

    key(v) = 1e4 x share of the blocks on v's edge in the shadow cache
             - prompts of later waves below v + 1e-3 x prompts of this wave below v

So cached prefixes are used while they are cached.  Prefixes that later waves need come last, so that they
are still cached then.  The last term breaks ties.  The shadow cache follows the engine's reports.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log1p
from typing import TYPE_CHECKING

from sortedcontainers import SortedList

from peek.errors import InvalidConfig, UnknownRequest
from peek.offline.block_keys import BLOCK_TOKENS, block_keys
from peek.offline.reordering import CACHE_TOKENS, ENGINES, arrange
from peek.offline.shape import Prompts, by_place, contract, shape_of

if TYPE_CHECKING:
    Needed = SortedList[tuple[float, int, int]]


class Waves:
    """A batch cut into waves, for a caller that feeds the engine itself.

    >>> batch = [[1, 2, 3], [7, 8, 9], [1, 2, 4], [7, 8, 5]]
    >>> waves = Waves(batch, wave_size=2, cache_tokens=4, block_tokens=1)
    >>> list(waves)
    [[0, 2], [1, 3]]

    Args:
        prompts: token sequences, as for `reorder`; they are read again, wave by wave.
        wave_size: number of prompts in a wave, about as many as the engine runs at once.
        cache_tokens, block_tokens, namespaces: as for `reorder`.

    `guard` is that of `Reordering`; if a guard is named, waves keep the arrival order.  `cache` is the shadow
    cache.  `InvalidConfig` if `wave_size` is below 1 or the cache has no block.

    Cost: that of `reorder`, and about a microsecond per block of each prompt.
    """

    def __init__(
        self,
        prompts: Prompts,
        wave_size: int,
        *,
        cache_tokens: int = CACHE_TOKENS,
        block_tokens: int = BLOCK_TOKENS,
        namespaces: Sequence[str] | None = None,
    ) -> None:
        if wave_size < 1:
            raise InvalidConfig(f"wave_size is {wave_size}, less than 1")
        self.cache = ShadowCache(cache_tokens, block_tokens)
        self._prompts = prompts = by_place(prompts)
        self._namespaces = None if namespaces is None else list(namespaces)
        self._size = wave_size
        shape = contract(shape_of(prompts, namespaces=namespaces), block_tokens)
        plan = arrange(shape, cache_tokens, block_tokens, ENGINES["vllm"], min_gain=0.0)
        self.guard = plan.guard
        self._order = plan.order
        self._tokens: list[int] = shape.tokens.tolist()
        self._leaf: list[int] = shape.leaf.tolist()
        self._parent: list[int] = shape.parent.tolist()
        self._depth: list[int] = shape.depth.tolist()
        self._ahead: list[int] = shape.count.tolist()  # prompts at or below each node that are in no wave yet
        self._expected: dict[int, int] = {}
        self._promise(shape.first.tolist())

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the waves, each a list of prompt indices; a wave is ordered when it is asked for."""
        for start in range(0, len(self._order), self._size):
            yield self._wave(self._order[start : start + self._size])

    def completed(self, index: int, cached_tokens: int) -> None:
        """Tell the shadow cache how many tokens of a prompt the engine had cached, once per prompt.

        `UnknownRequest` for a prompt that is in no wave yet, or was reported before.
        """
        expected = self._expected.pop(index, None)
        if expected is None:
            raise UnknownRequest(f"prompt {index} is not under way")
        self.cache.reconcile(expected, cached_tokens)

    def _keys(self, index: int) -> list[int]:
        namespace = "" if self._namespaces is None else self._namespaces[index]
        return block_keys(self._prompts[index], self.cache.block_tokens, namespace)

    def _promise(self, first: list[int]) -> None:
        """Tell the shadow cache how many prompts need each block of a shared node."""
        shared = sorted((first[node], node) for node in range(1, len(first)) if self._ahead[node] >= 2)
        index, keys = -1, list[int]()
        for owner, node in shared:
            if owner != index:
                index, keys = owner, self._keys(owner)
            self.cache.refer(keys[self._depth[self._parent[node]] : self._depth[node]], self._ahead[node])

    def _wave(self, members: list[int]) -> list[int]:
        keys = {index: self._keys(index) for index in members}
        counts = self._take(members, keys)
        order = members if self.guard is not None else self._refine(members, keys, counts)
        for index in order:
            most = (self._tokens[index] - 1) // self.cache.block_tokens  # the last token is always computed
            self._expected[index] = min(self.cache.admit(keys[index]), most) * self.cache.block_tokens
        return order

    def _take(self, members: list[int], keys: dict[int, list[int]]) -> dict[int, int]:
        """Take the wave's prompts off `_ahead`; return how many of them are at or below each node."""
        counts = Counter[int]()
        for index in members:
            shared = 0
            node = self._leaf[index]
            while node:
                counts[node] += 1
                self._ahead[node] -= 1
                if not shared and self.cache.references(keys[index][self._depth[node] - 1]):
                    shared = self._depth[node]
                node = self._parent[node]
            self.cache.refer(keys[index][:shared], -1)
        return counts

    def _refine(self, members: list[int], keys: dict[int, list[int]], counts: dict[int, int]) -> list[int]:
        """Return the wave's prompts in the order of the cache-aware walk; ties keep their order."""
        children, ends = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        value: dict[int, float] = {}
        for index in members:
            node = self._leaf[index]
            ends[node].append(index)
            while node and node not in value:
                above = self._parent[node]
                edge = keys[index][self._depth[above] : self._depth[node]]
                cached = self.cache.match(edge) / len(edge)
                value[node] = cached * 1e4 - self._ahead[node] + counts[node] * 1e-3
                children[above].append(node)
                node = above
        order: list[int] = []
        stack = [0]
        while stack:
            node = stack.pop()
            order += ends[node]
            stack += sorted(children[node], key=value.__getitem__, reverse=True)[::-1]
        return order


@dataclass(eq=False, slots=True)
class _Block:
    """A resident block; `children` counts resident blocks right after it, `rank` is its `_needed` entry."""

    key: int
    parent: _Block | None
    depth: int
    children: int = 0
    rank: tuple[float, int, int] | None = None


class ShadowCache:
    """An estimate of what the engine's prefix cache holds: an LRU cache over block keys (`block_keys`).

    Blocks that no prompt ahead needs are in one LRU dictionary, deepest first within a prompt, as engines
    free them.  They are evicted first, in O(1).  If there are none, a needed block without a resident block
    after it is evicted: the one with the lowest `log(1 + references) x (1 + depth)` (paper, PEEK-offline,
    phase 2).  The logarithm lets even a popular prefix go in the end; the depth is the cost of a miss.  A
    needed block's ancestors are needed, too, so a resident block never loses an ancestor.

    >>> cache = ShadowCache(cache_tokens=64, block_tokens=16)
    >>> cache.admit([1, 2, 3]), cache.admit([1, 2, 4]), len(cache)
    (0, 2, 4)
    """

    def __init__(self, cache_tokens: int, block_tokens: int = BLOCK_TOKENS) -> None:
        if not 1 <= block_tokens <= cache_tokens:
            raise InvalidConfig(f"a cache of {cache_tokens} tokens has no block of {block_tokens}")
        self.block_tokens = block_tokens
        self.stated = cache_tokens // block_tokens  # size of the engine's cache as stated, blocks
        self.capacity = self.stated  # the size as the engine's reports show it, see `reconcile`
        self._blocks: dict[int, _Block] = {}
        self._unneeded: OrderedDict[int, None] = OrderedDict()
        self._references = Counter[int]()
        self._needed: Needed = SortedList()
        self._ranks = 0

    def __len__(self) -> int:
        """Number of resident blocks.  O(1)."""
        return len(self._blocks)

    def __contains__(self, key: object) -> bool:
        """True if a block is resident.  O(1)."""
        return key in self._blocks

    def match(self, keys: Sequence[int]) -> int:
        """Return how many leading blocks are resident; changes nothing.  O(hits)."""
        return next((hits for hits, key in enumerate(keys) if key not in self._blocks), len(keys))

    def admit(self, keys: Sequence[int]) -> int:
        """Run a prompt; return how many of its leading blocks were resident.

        Afterwards all its blocks are resident, or as many leading blocks as fit.  O(1) per block; O(log n)
        for a needed block that is evicted.
        """
        hits = self.match(keys)
        wanted = keys[: self.capacity]
        for key in wanted[:hits]:
            self._unneeded.pop(key, None)
        if hits < len(wanted):
            parent = self._blocks[wanted[hits - 1]] if hits else None
            self._make_room(len(wanted) - hits, None if parent is None else parent.key)
            for depth, key in enumerate(wanted[hits:], start=hits):
                if parent is not None:
                    parent.children += 1
                    self._rank(parent)
                self._blocks[key] = parent = _Block(key, parent, depth)
        for key in reversed(wanted):
            self._file(key)
        return hits

    def refer(self, keys: Sequence[int], more: int = 1) -> None:
        """Count `more` prompts ahead (fewer, if negative) that need these blocks.  O(1) per block.

        The keys are successive blocks of a prompt; no fewer prompts need the blocks before them.
        """
        for key in reversed(keys):
            self._references[key] += more
            if self._references[key] <= 0:
                del self._references[key]
            if key in self._blocks:
                self._file(key, touch=False)

    def references(self, key: int) -> int:
        """Return how many prompts ahead need a block."""
        return self._references[key]

    def reconcile(self, expected_tokens: int, cached_tokens: int) -> None:
        """Adapt the capacity to the engine's report of a prompt that has run.

        If fewer tokens were cached than `admit` expected, the engine has less room than stated (running
        requests, other users).  The capacity shrinks by the difference, but not below an eighth of the stated
        size, and blocks are evicted.  If more were cached, it grows by the difference, up to the stated size.
        """
        blocks = (cached_tokens - expected_tokens) // self.block_tokens
        self.capacity = min(self.stated, max(self.stated // 8, 1, self.capacity + blocks))
        self._make_room(0, None)

    # -- eviction --------------------------------------------------------------------------------------

    def _file(self, key: int, touch: bool = True) -> None:
        """Put a resident block among the unneeded or the needed blocks; `touch` makes it the newest."""
        self._rank(self._blocks[key])
        if key in self._references:
            self._unneeded.pop(key, None)
        elif touch or key not in self._unneeded:
            self._unneeded[key] = None
            self._unneeded.move_to_end(key)

    def _rank(self, block: _Block) -> None:
        """Put a block into `_needed` if it is needed and no resident block is after it, else take it out."""
        references = 0 if block.children else self._references[block.key]
        worth = log1p(references) * (1 + block.depth)
        if block.rank is not None and block.rank[0] != worth:
            self._needed.remove(block.rank)
            block.rank = None
        if worth and block.rank is None:
            self._ranks += 1  # among blocks of equal worth, the one ranked first is evicted
            block.rank = (worth, self._ranks, block.key)
            self._needed.add(block.rank)

    def _make_room(self, more: int, spared: int | None) -> None:
        """Evict until `more` blocks fit, but not `spared` while it is needed, nor its ancestors."""
        while len(self._blocks) + more > self.capacity:
            if self._unneeded:
                key, _ = self._unneeded.popitem(last=False)
            else:
                key = next(key for _, _, key in self._needed if key != spared)
            block = self._blocks.pop(key)
            if block.rank is not None:
                self._needed.remove(block.rank)
            if block.parent is not None:
                block.parent.children -= 1
                self._rank(block.parent)
