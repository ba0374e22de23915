"""The finished trie of a batch as arrays, and its depth-first order without a walk.

For a node, count the prompts before it inside its parent: the parent's own prompts, then those below earlier
siblings.  A node's place among all prompts is the sum of these counts over it and its ancestors.  One sort
orders the siblings, a running sum counts the prompts before each, and pointer doubling adds up the ancestors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from peek.errors import InvalidConfig, InvalidKey
from peek.offline.batch_trie import ROOT, BatchTrie

Ints: TypeAlias = npt.NDArray[np.int64]
Prompts: TypeAlias = Sequence[Any] | npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A trie over a batch, as arrays by node or by prompt."""

    parent: Ints  # index of each node's parent; the root, node 0, is its own parent
    depth: Ints  # distance of each node from the root, in tokens or blocks
    count: Ints  # number of prompts that end at or below each node
    first: Ints  # lowest index of the prompts that end at or below each node
    leaf: Ints  # index of the node where each prompt ends
    tokens: Ints  # length of each prompt, tokens

    @property
    def lengths(self) -> Ints:
        """Length of the edge above each node, in tokens or blocks.  O(nodes)."""
        return self.depth - self.depth[self.parent]


def shape_of(prompts: Prompts, max_tokens: int = 0, namespaces: Sequence[str] | None = None) -> BatchShape:
    """Make the trie of a batch from `max_tokens` tokens of each prompt (0: all).

    `InvalidKey` as `pack`, which names the prompt; `InvalidConfig` if there are not as many namespaces.
    """
    if namespaces is not None and len(namespaces) != len(prompts):
        raise InvalidConfig(f"{len(namespaces)} namespaces for {len(prompts)} prompts")
    trie = BatchTrie(max_tokens)
    rows: Iterable[Any] = prompts
    if isinstance(prompts, np.ndarray) and prompts.ndim == 2 and prompts.dtype == np.int32:
        rows = (row.tobytes() for row in prompts)  # ten times as fast as a buffer object for each row
    names = repeat("") if namespaces is None else namespaces
    for place, (prompt, namespace) in enumerate(zip(rows, names, strict=False)):
        try:
            trie.add(prompt, namespace)
        except InvalidKey as error:
            raise InvalidKey(f"prompt {place}: {error}") from None
    return finished(trie)


def by_place(prompts: Prompts) -> Prompts:
    """Return a batch that can be read again and by index, a matrix row by row.

    A generator becomes a list, and so does a pandas column, which is indexed by labels.
    """
    if isinstance(prompts, np.ndarray):
        return np.ascontiguousarray(prompts)
    return prompts if isinstance(prompts, Sequence) else list(prompts)


def finished(trie: BatchTrie) -> BatchShape:
    """Return a trie that is complete, as arrays.  O(nodes)."""
    columns: list[Any] = trie.columns()
    return BatchShape(*columns)


def contract(shape: BatchShape, block_tokens: int) -> BatchShape:
    """Return the same trie in whole blocks, without nodes that are less than a block below their parent.

    Children and prompts of such a node move to its nearest ancestor that remains.  O(nodes log depth).
    """
    depth = shape.depth // block_tokens
    kept = depth > depth[shape.parent]
    kept[ROOT] = True
    above = np.where(kept, np.arange(len(depth)), shape.parent)
    while not np.array_equal(further := above[above], above):
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
    """Return the place of each node's first prompt in the depth-first order.  O(nodes log nodes)."""
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
    """Return the prompt indices in depth-first order.  O((nodes + prompts) log nodes), all in arrays.

    A node's own prompts come first, by index, then its children: more prompts first, ties by first prompt.
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
    """Return the sum of `values` over each node and its ancestors; the root's value must be 0.

    Cost: O(nodes log depth), by pointer doubling.
    """
    total = values.copy()
    above = parent
    while above.any():
        total = total + total[above]
        above = above[above]
    return total


def shared_depth(shape: BatchShape) -> Ints:
    """Return the depth of the deepest node that each prompt shares with another.  O(nodes log depth)."""
    shared = np.where(shape.count >= 2, shape.lengths, 0)
    return sum_over_path(shared, shape.parent)[shape.leaf]
