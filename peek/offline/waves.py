"""Waves: run a batch a piece at a time, each piece ordered by what the cache holds by then.

Plan.  The depth-first order of the whole batch is cut into waves of about the engine's running batch.
Before a wave runs, its prompts are put in the order of a second depth-first walk, over the wave's part
of the trie, whose children go by (paper, PEEK-offline, phase 2)

    key(v) = 1e4 x share of v's blocks in the shadow cache
             - references of later waves + 1e-3 x prompts of this wave

highest first: what is there is used while it is there, what later waves need is left for last, so that it
is still there for them, and the subtree count breaks ties.  Engines report cached tokens as prompts
finish; the shadow cache follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from peek.errors import InvalidConfig, UnknownRequest
from peek.offline.block_keys import block_keys
from peek.offline.pioneers import ENGINES
from peek.offline.reordering import BLOCK_TOKENS, CACHE_TOKENS, arrange
from peek.offline.shadow_cache import ShadowCache
from peek.offline.shape import contract, shape_of


class Waves:
    """A batch in waves, for those who feed an engine themselves.

    >>> batch = [[1, 2, 3], [7, 8, 9], [1, 2, 4], [7, 8, 5]]
    >>> waves = Waves(batch, wave_size=2, cache_tokens=4, block_tokens=1)
    >>> list(waves)
    [[0, 2], [1, 3]]

    Args:
        prompts: as for `reorder`; they are read again, wave by wave.
        wave_size: prompts of a wave; about what the engine runs at once.
        cache_tokens, block_tokens, namespaces: as for `reorder`.

    Attributes:
        guard: as `Reordering.guard`; waves then keep the arrival order.
        cache: the shadow cache.

    Cost: that of `reorder`, and about a microsecond per block of each prompt.
    """

    def __init__(
        self,
        prompts: Sequence[Any],
        wave_size: int,
        *,
        cache_tokens: int = CACHE_TOKENS,
        block_tokens: int = BLOCK_TOKENS,
        namespaces: Sequence[str] | None = None,
    ) -> None:
        if wave_size < 1:
            raise InvalidConfig(f"wave_size is {wave_size}, less than 1")
        self.cache = ShadowCache(cache_tokens, block_tokens)
        self._prompts = prompts
        self._namespaces = namespaces
        self._size = wave_size
        shape = contract(shape_of(prompts, namespaces=namespaces), block_tokens)
        plan = arrange(shape, cache_tokens, block_tokens, ENGINES["vllm"])
        self.guard = plan.guard
        self._order = plan.order
        self._leaf: list[int] = shape.leaf.tolist()
        self._parent: list[int] = shape.parent.tolist()
        self._depth: list[int] = shape.depth.tolist()
        self._ahead: list[int] = shape.count.tolist()
        """Prompts at or below each node that no wave has had."""
        self._expected: dict[int, int] = {}
        self._promise(shape.first.tolist())

    def __iter__(self) -> Iterator[list[int]]:
        """The waves, each a list of prompt indices; the next one is made when it is asked for."""
        for start in range(0, len(self._order), self._size):
            yield self._wave(self._order[start : start + self._size])

    def completed(self, index: int, cached_tokens: int) -> None:
        """A prompt has run; `cached_tokens` is what the engine reports.  `UnknownRequest` if none was due."""
        expected = self._expected.pop(index, None)
        if expected is None:
            raise UnknownRequest(f"prompt {index} is not under way")
        self.cache.reconcile(expected, cached_tokens)

    def _keys(self, index: int) -> list[int]:
        namespace = "" if self._namespaces is None else self._namespaces[index]
        return block_keys(self._prompts[index], self.cache.block_tokens, namespace)

    def _promise(self, first: list[int]) -> None:
        """Tell the shadow cache what the batch needs again: the blocks of shared nodes."""
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
            limit = max(0, len(self._prompts[index]) - 1)
            hits = self.cache.admit(keys[index]) * self.cache.block_tokens
            self._expected[index] = min(hits, limit // self.cache.block_tokens * self.cache.block_tokens)
        return order

    def _take(self, members: list[int], keys: dict[int, list[int]]) -> dict[int, int]:
        """Take the wave's prompts off what is ahead; how many pass each node."""
        counts: dict[int, int] = {}
        for index in members:
            shared = 0
            node = self._leaf[index]
            while node:
                counts[node] = counts.get(node, 0) + 1
                self._ahead[node] -= 1
                if not shared and self.cache.references(keys[index][self._depth[node] - 1]):
                    shared = self._depth[node]
                node = self._parent[node]
            self.cache.refer(keys[index][:shared], -1)
        return counts

    def _refine(self, members: list[int], keys: dict[int, list[int]], counts: dict[int, int]) -> list[int]:
        """The wave's prompts in the order of the cache-aware walk; ties as they were."""
        kids: dict[int, list[int]] = {}
        ends: dict[int, list[int]] = {}
        value: dict[int, float] = {}
        for index in members:
            node = self._leaf[index]
            ends.setdefault(node, []).append(index)
            while node and node not in value:
                above = self._parent[node]
                edge = keys[index][self._depth[above] : self._depth[node]]
                cached = self.cache.match(edge) / len(edge)
                value[node] = cached * 1e4 - self._ahead[node] + counts[node] * 1e-3
                kids.setdefault(above, []).append(node)
                node = above
        order: list[int] = []
        stack = [0]
        while stack:
            node = stack.pop()
            order += ends.get(node, ())
            below = sorted(kids.get(node, ()), key=value.__getitem__, reverse=True)
            stack += reversed(below)
        return order
