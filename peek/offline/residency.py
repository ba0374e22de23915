"""What a prefix cache with LRU eviction would hold: the exact block cache, at the price of its nodes.

All blocks of a trie edge are touched together, so they stand together in the LRU order, deeper blocks
ahead of shallower ones as engines free them.  Hence one list entry per node does for all of its blocks,
plus a number for how many of them are left: a prompt costs O(nodes on its path), not O(blocks), and the
hits are those of the cache block by block (`ShadowCache`, against which this is tested).
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

NONE: Final = -1


@final
class Residency:
    """An LRU cache over the nodes of a trie.

    Args:
        parent, lengths: of each node, its parent and the blocks on its edge (root: index 0, length 0).
        capacity: blocks of the cache.
    """

    __slots__ = ("_newer", "_older", "capacity", "kept", "lengths", "newest", "oldest", "parent", "used")

    def __init__(self, parent: list[int], lengths: list[int], capacity: int) -> None:
        self.parent = parent
        self.lengths = lengths
        self.capacity: i64 = capacity
        self.used: i64 = 0
        self.kept: list[int] = [0] * len(parent)
        """Leading blocks of each node's edge that are in the cache."""
        self._older: list[int] = [NONE] * len(parent)
        self._newer: list[int] = [NONE] * len(parent)
        self.oldest: i64 = NONE
        self.newest: i64 = NONE

    def admit(self, leaf: int) -> int:
        """Run the prompt that ends at `leaf`; how many of its leading blocks were there.

        Afterwards all of its blocks are, or as many leading ones as fit.  Amortised O(path).
        """
        parent, lengths, kept = self.parent, self.lengths, self.kept
        hits: i64 = 0
        needed: i64 = 0
        node: i64 = leaf
        while node != 0:  # upwards: whatever is found missing voids what was counted below it
            held: i64 = kept[node]
            length: i64 = lengths[node]
            hits = hits + held if held == length else held
            needed += length
            if held:
                self._unlink(node)
                self.used -= held
            node = parent[node]
        surplus = needed - self.capacity
        self._free(needed if surplus < 0 else self.capacity)
        node = leaf
        while node != 0:
            length = lengths[node]
            if surplus > 0:  # a prompt larger than the cache keeps its head
                cut = surplus if surplus < length else length
                surplus -= cut
                length -= cut
            kept[node] = length
            if length:
                self._append(node)
                self.used += length
            node = parent[node]
        return hits

    def match(self, leaf: int) -> int:
        """How many leading blocks of the prompt that ends at `leaf` are there; changes nothing.  O(path)."""
        hits: i64 = 0
        node: i64 = leaf
        while node != 0:
            held: i64 = self.kept[node]
            length: i64 = self.lengths[node]
            hits = hits + held if held == length else held
            node = self.parent[node]
        return hits

    def _free(self, blocks: i64) -> None:
        """Evict until `blocks` fit: from the oldest node, deepest block first."""
        over = self.used + blocks - self.capacity
        while over > 0:
            victim = self.oldest
            held: i64 = self.kept[victim]
            if held > over:
                self.kept[victim] = held - over
                self.used -= over
                return
            self._unlink(victim)
            self.kept[victim] = 0
            self.used -= held
            over -= held

    def _append(self, node: i64) -> None:
        last = self.newest
        self._older[node] = last
        self._newer[node] = NONE
        if last == NONE:
            self.oldest = node
        else:
            self._newer[last] = node
        self.newest = node

    def _unlink(self, node: i64) -> None:
        older: i64 = self._older[node]
        newer: i64 = self._newer[node]
        if older == NONE:
            self.oldest = newer
        else:
            self._newer[older] = newer
        if newer == NONE:
            self.newest = older
        else:
            self._older[newer] = older


def run_through(cache: Residency, leaves: list[int], limits: list[int], in_flight: int = 0) -> list[int]:
    """Run prompts through a cache in this order; the blocks that each one hits.

    Args:
        leaves: where each prompt ends.
        limits: the most blocks each prompt may hit; engines always compute the last token.
        in_flight: how many later prompts start before a prompt's blocks can be hit.
    """
    result: list[int] = []
    n: i64 = len(leaves)
    i: i64 = 0
    while i < n:
        if in_flight:
            hits: i64 = cache.match(leaves[i])
            if i >= in_flight:
                cache.admit(leaves[i - in_flight])
        else:
            hits = cache.admit(leaves[i])
        limit: i64 = limits[i]
        result.append(hits if hits < limit else limit)
        i += 1
    return result


def shared_with_previous(parent: list[int], depth: list[int], leaves: list[int]) -> list[int]:
    """Of each prompt in this order, the depth that it shares with the one before it (the first: 0).

    O(path) per prompt.
    """
    result: list[int] = []
    previous: i64 = 0
    for leaf in leaves:
        a: i64 = leaf
        b = previous
        while a != b:
            a_depth: i64 = depth[a]
            b_depth: i64 = depth[b]
            if a_depth >= b_depth and a != 0:
                a = parent[a]
            else:
                b = parent[b]
        result.append(depth[a])
        previous = leaf
    return result
