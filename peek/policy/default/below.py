"""What waits at or below a node of the pending tree: lengths, work, and the oldest of them.

A node's `below_*` fields hold the sums; whoever writes them goes from the leaves up.  `below_tokens` are
lengths of prompts and `below_lasting` the same, each times how many mean answers its own is expected to last;
`below_work` is what is to be computed, and `below_excess` what answers are expected to take beyond that.
"""

from __future__ import annotations

import math
from typing import Final

from mypy_extensions import i64

from peek.request import PendingRequest
from peek.trie.node import Node, uncached_symbols

_LATE: Final = 1 << 62


def own_work(request: PendingRequest, depth_tokens: i64) -> i64:
    """What a request has to itself: its prompt behind the key."""
    return max(1, request.num_tokens - depth_tokens)


def own_length(request: PendingRequest) -> float:
    """Tokens of its prompt."""
    return float(max(1, request.num_tokens))


def sum_own(node: Node, unit_tokens: i64, epoch: i64) -> None:
    """The node's own requests and the uncached part of its edge, as of dual-walk `epoch`.  O(requests)."""
    parent = node.parent
    assert parent is not None
    node.below_tokens = 0.0
    node.below_lasting = 0.0
    node.below_excess = 0.0
    node.below_work = uncached_symbols(node, parent, epoch) * unit_tokens
    node.below_since = math.inf
    node.below_first = _LATE
    terminator = node.terminator
    while terminator is not None:
        request = terminator.request
        length = own_length(request)
        node.below_tokens += length
        node.below_lasting += length * request.answer_ratio
        node.below_excess += float(request.answer_excess)
        node.below_work += own_work(request, node.depth * unit_tokens)
        note_oldest(node, request.arrival_time, request.sequence)
        terminator = terminator.next


def foretells(node: Node) -> bool:
    """Whether answers below a node are expected to be others than the mean one."""
    return node.below_excess != 0.0 or node.below_lasting != node.below_tokens


def edge_at_risk(node: Node, parent: Node, unit_tokens: i64) -> float:
    """A whole edge, cached or paid, divided among those that wait below it."""
    return float((node.depth - parent.depth) * unit_tokens) / float(node.count)


def note_oldest(node: Node, since: float, first: i64) -> None:
    """Somebody waits at or below a node: is he the first who came?"""
    if since < node.below_since or (since == node.below_since and first < node.below_first):
        node.below_since = since
        node.below_first = first


def add_to_parent(node: Node) -> None:
    """Add what waits at or below a node to the sums of its parent."""
    parent = node.parent
    assert parent is not None
    parent.below_tokens += node.below_tokens
    parent.below_lasting += node.below_lasting
    parent.below_excess += node.below_excess
    parent.below_work += node.below_work
    note_oldest(parent, node.below_since, node.below_first)
