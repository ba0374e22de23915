"""Paths: a prompt's place in the depth-first order as a string that sorts.

For each edge of the compressed trie on the way to the prompt one entry of 24 hexadecimal characters: most
prompts first (8), lowest first prompt first (10), then the edge's depth in blocks (6), which never decides.
A prompt that has blocks of its own below its last shared edge gets one entry more, with a count of one.
Prompts sorted by path, then by index, are in the order that `depth_first` gives.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from peek.offline.block_keys import Keys
from peek.offline.shape import Ints

ENTRY: Final = 24
_MOST: Final = 2**32 - 1


def entry(count: int, first: int, bottom: int) -> str:
    """The entry of an edge: prompts that pass it, the lowest index of them, its lower end in blocks."""
    return f"{_MOST - count:08x}{first:010x}{bottom:06x}"


def edges_of(keys: Keys, counts: Ints, firsts: Ints, depths: Ints) -> dict[int, str]:
    """Entries of shared nodes' edges, by the key of each edge's top block.

    Nodes that the same prompts pass (equal count, equal first prompt) are one edge.
    """
    order = np.lexsort((depths, firsts, counts))
    order = order[counts[order] >= 2]
    if not len(order):
        return {}
    n, first = counts[order], firsts[order]
    tops = np.flatnonzero(np.r_[True, (n[1:] != n[:-1]) | (first[1:] != first[:-1])])
    bottoms = depths[order[np.r_[tops[1:], len(order)] - 1]]
    columns = (keys[order[tops]].tolist(), n[tops].tolist(), first[tops].tolist(), bottoms.tolist())
    return {key: entry(*rest) for key, *rest in zip(*columns, strict=True)}


def counted(keys: Keys, rows: Ints, depths: Ints) -> tuple[Keys, Ints, Ints, Ints]:
    """Distinct keys; of each how often it occurs, the lowest row and its depth.  O(n log n)."""
    order = np.lexsort((rows, keys))
    found = keys[order]
    starts = np.flatnonzero(np.r_[True, found[1:] != found[:-1]]) if len(found) else np.zeros(0, np.int64)
    counts = np.diff(np.r_[starts, len(found)])
    return found[starts], counts, rows[order[starts]], depths[order[starts]]


def shared_blocks(left: str, right: str) -> int:
    """Blocks that two prompts share, from their paths: the depth of the last entry they have in common."""
    end = 0
    while left[end : end + ENTRY] == right[end : end + ENTRY] and end < len(left):
        end += ENTRY
    return int(left[end - 6 : end], 16) if end else 0
