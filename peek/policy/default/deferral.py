"""Siblings of a cold prefix, on engines that show a prefix to others only when its prefill ends.

Admitted in one batch they would each compute the prefix.  So one of them, the pioneer, goes where the policy
put it, and the others go last until its prefill has ended.
"""

from __future__ import annotations

from peek.policy.base import Cycle
from peek.policy.sections import PIONEER, SIBLING, TAU
from peek.request import PendingRequest
from peek.trie.node import Node, next_preorder


def siblings_last(ordered: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
    """`ordered` with deferred siblings behind all others; writes `section`.  O(n + nodes).

    `ordered` takes up a prefix by any of its requests: the first is its pioneer.
    """
    if not cycle.defers_siblings:
        for request in ordered:
            request.section = PIONEER
        return ordered
    unclaim(cycle)
    first: list[PendingRequest] = []
    deferred: list[PendingRequest] = []
    for request in ordered:
        if has_pioneer(request, cycle):
            request.section = SIBLING
            deferred.append(request)
        else:
            request.section = PIONEER
            first.append(request)
    return first + deferred


def unclaim(cycle: Cycle) -> None:
    """Before the first `has_pioneer` of an order: no path has a pioneer.  O(nodes)."""
    for _, root in cycle.tree.roots():
        node: Node | None = root
        while node is not None:
            node.acc_claimed = -1
            node = next_preorder(node)
        root.acc_claimed = 0


def has_pioneer(request: PendingRequest, cycle: Cycle) -> bool:
    """Whether a prefill under way, or somebody asked about before, computes what it would compute, too.

    More than tau tokens of it, that is.  Otherwise the request becomes the pioneer of its path, whose nodes
    are then *claimed*: `acc_claimed` is their depth.  Nodes below hold the depth of a claimed node above
    them as it was when somebody asked; claims only grow, so what was enough to wait for still is, and what
    was not is looked up again.  O(levels) at worst, O(1) amortised.
    """
    known = request.cached_len + TAU
    if request.coming_len > known:
        return True
    leaf = cycle.tree.leaf(request.request_id)
    top = leaf
    while top.acc_claimed * cycle.unit_tokens <= known and top.acc_claimed != top.depth:
        assert top.parent is not None
        top = top.parent
    claimed = top.acc_claimed
    waits = claimed * cycle.unit_tokens > known
    node = leaf
    while node is not top:
        node.acc_claimed = claimed if waits else node.depth
        assert node.parent is not None
        node = node.parent
    return waits
