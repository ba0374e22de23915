"""The finished trie of a batch as arrays, and its depth-first order without a walk.

Plan.  A depth-first order needs no traversal.  A node's place among all prompts is the sum, over the node and
its ancestors, of what stands before it inside its parent: the parent's own prompts, then the subtrees of
larger siblings.  One sort orders the siblings, a running sum counts what stands before, and pointer doubling
adds up the ancestors, in as many rounds as the depth has binary digits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from peek.offline.batch_trie import ROOT, BatchTrie

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A trie over a batch, nodes and prompts by index.

    Attributes:
        parent: of each node; the root (index 0) is its own.
        depth: units (tokens or blocks) from the root to the node.
        count: prompts that end at the node or below.
        first: the lowest prompt index at the node or below.
        leaf: of each prompt, the node where it ends.
        tokens: of each prompt, its length in tokens.
    """

    parent: Ints
    depth: Ints
    count: Ints
    first: Ints
    leaf: Ints
    tokens: Ints

    @property
    def lengths(self) -> Ints:
        """Units on the edge to each node.  O(nodes)."""
        return self.depth - self.depth[self.parent]


def shape_of(
    prompts: Iterable[object], max_tokens: int = 0, namespaces: Iterable[str] | None = None
) -> BatchShape:
    """The token trie of a batch; `InvalidKey` from a prompt that is no token sequence."""
    trie = BatchTrie(max_tokens)
    add = trie.add
    if isinstance(prompts, np.ndarray) and prompts.ndim == 2 and prompts.dtype == np.int32:
        prompts = (row.tobytes() for row in prompts)  # ten times as fast as a buffer object for each row
    if namespaces is None:
        for prompt in prompts:
            add(prompt)
    else:
        for prompt, namespace in zip(prompts, namespaces, strict=True):
            add(prompt, namespace)
    columns: list[Any] = trie.columns()
    return BatchShape(*columns)


def contract(shape: BatchShape, block_tokens: int) -> BatchShape:
    """The same trie in whole blocks: nodes that end inside their parent's last block are taken out.

    What hung on such a node hangs on the nearest one left above it.  O(nodes log depth).
    """
    depth = shape.depth // block_tokens
    kept = depth > depth[shape.parent]
    kept[ROOT] = True
    above = np.where(kept, np.arange(len(depth)), shape.parent)
    while True:
        further = above[above]
        if np.array_equal(further, above):
            break
        above = further
    number = np.cumsum(kept) - 1
    return BatchShape(
        parent=number[above[shape.parent[kept]]],
        depth=depth[kept],
        count=shape.count[kept],
        first=shape.first[kept],
        leaf=number[above[shape.leaf]],
        tokens=shape.tokens,
    )


def places(shape: BatchShape) -> Ints:
    """Each node's place: that of its first prompt in the depth-first order.  O(nodes log nodes)."""
    n = len(shape.parent)
    own = np.bincount(shape.leaf, minlength=n)
    siblings = np.lexsort((shape.first, -shape.count, shape.parent))
    siblings = siblings[siblings != ROOT]
    before = np.zeros(n, np.int64)
    if len(siblings):
        parents = shape.parent[siblings]
        running = np.cumsum(shape.count[siblings]) - shape.count[siblings]
        starts = np.flatnonzero(np.r_[True, parents[1:] != parents[:-1]])
        group = np.repeat(running[starts], np.diff(np.r_[starts, len(parents)]))
        before[siblings] = running - group + own[parents]
    return sum_over_path(before, shape.parent)


def depth_first(shape: BatchShape) -> Ints:
    """Prompt indices in depth-first order: a node's own prompts by index, then its children, those with more
    prompts first, ties by their first prompt.  O((nodes + prompts) log nodes), all in arrays.
    """
    own = np.bincount(shape.leaf, minlength=len(shape.parent))
    place = places(shape)
    by_leaf = np.argsort(shape.leaf, kind="stable")
    leaves = shape.leaf[by_leaf]
    rank = np.arange(len(leaves)) - (np.cumsum(own) - own)[leaves]
    order = np.empty(len(leaves), np.int64)
    order[place[leaves] + rank] = by_leaf
    return order


def sum_over_path(values: Ints, parent: Ints) -> Ints:
    """For each node the sum of `values` over itself and its ancestors (the root's must be 0).

    Pointer doubling: O(nodes log depth).
    """
    total = values.copy()
    above = parent
    while above.any():
        total = total + total[above]
        above = above[above]
    return total


def shared_depth(shape: BatchShape) -> Ints:
    """The depth of the deepest node that each prompt shares with another.  O(nodes log depth)."""
    shared = np.where(shape.count >= 2, shape.lengths, 0)
    return sum_over_path(shared, shape.parent)[shape.leaf]
