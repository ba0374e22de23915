"""Cluster response ratio, the policy `response-ratio`.

The paper's order serves big clusters first and needs a second lane against starvation.  Here one
number does both: what the members of a subtree of the pending tree have waited, against the work it
takes to serve them *together*, every uncached edge paid once:

    ratio(v) = sum over requests below v of wait ** exponent / uncached tokens below v

The order is a depth-first walk of the tree, children by falling ratio, so members of a cluster are
neighbours at every level.  A cold prefix with many members costs little a head and comes early; a
singleton overtakes as its wait grows.  HRRN is the special case of a tree without sharing and
exponent 1.  A larger exponent moves along the front of mean against tail latency (docs/policies.md).

Taken out of that walk, requests that are mostly cached go before all others, most cached tokens first:
they cost next to nothing now, and a prefill's worth once somebody else's prefill has evicted what they
would have used.  On engines that show a prefix only when its prefill ends, siblings of a prefill under
way, or of one earlier in the order, go last: admitted in the same batch they would compute the prefix
again.
"""

from __future__ import annotations

import math

from mypy_extensions import i64, mypyc_attr

from peek.policy.base import AdmissionPolicy, Cycle
from peek.policy.deferral import has_pioneer
from peek.policy.sections import PIONEER, SIBLING, WARM
from peek.request import PendingRequest
from peek.settings import require_number
from peek.trie.node import Node, next_preorder, uncached_symbols
from peek.trie.pending_tree import PendingTree

_MIN_WAIT_S = 1e-3
"""Requests that have just come wait this long, so that equal ratios do not all become zero."""


def check_exponent(exponent: object) -> None:
    """`InvalidConfig` unless it is a number above 0 and up to 64."""
    require_number("exponent", exponent, 0.0, 64.0, inclusive=True)


@mypyc_attr(allow_interpreted_subclasses=True)
class ClusterResponseRatio(AdmissionPolicy):
    """Mostly cached requests by cached tokens, then the pending tree depth-first by response ratio.

    O(n + nodes + the sorts of each node's children and of the mostly cached).

    Args:
        exponent: 1 minimises the mean, 8 comes close to the shortest tail; see docs/policies.md.
    """

    def __init__(self, exponent: float = 5.0) -> None:
        super().__init__(reads_tree=False, needs_sharing=True)
        check_exponent(exponent)
        self.exponent: float = exponent

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        oldest = _MIN_WAIT_S
        for rank, request in enumerate(queue):
            oldest = max(oldest, cycle.now - request.arrival_time)
            request.rank = rank
        # Waits relative to the oldest: powers stay in range, the order is the same.
        accumulate(cycle.tree, cycle.now, oldest, self.exponent, cycle.unit_tokens)
        return _in_sections(_depth_first(cycle.tree), cycle)


def accumulate(tree: PendingTree, now: float, oldest: float, exponent: float, unit_tokens: i64) -> None:
    """Write benefit and work of every subtree into its top node.  O(n + nodes)."""
    for _, root in tree.roots():
        nodes: list[Node] = []
        node: Node | None = root
        while node is not None:
            nodes.append(node)
            node.acc_sum = 0.0
            node.acc_work = 0
            node.acc_first = 1 << 62
            node.acc_claimed = -1
            node = next_preorder(node)
        root.acc_claimed = 0
        i: i64 = len(nodes) - 1
        while i >= 0:
            _accumulate_node(nodes[i], now, oldest, exponent, unit_tokens, tree.epoch)
            i -= 1


def _accumulate_node(
    node: Node, now: float, oldest: float, exponent: float, unit_tokens: i64, epoch: i64
) -> None:
    """Add the node's own requests and edge, then hand the sums to its parent (children are done)."""
    terminator = node.terminator
    while terminator is not None:
        request = terminator.request
        wait = max(_MIN_WAIT_S, now - request.arrival_time)
        node.acc_sum += math.pow(wait / oldest, exponent)
        node.acc_work += max(1, request.num_tokens - node.depth * unit_tokens)
        node.acc_first = min(node.acc_first, request.rank)
        terminator = terminator.next
    parent = node.parent
    if parent is not None:
        node.acc_work += uncached_symbols(node, parent, epoch) * unit_tokens
        parent.acc_sum += node.acc_sum
        parent.acc_work += node.acc_work
        parent.acc_first = min(parent.acc_first, node.acc_first)
    node.acc_ratio = node.acc_sum / float(max(1, node.acc_work))


def _depth_first(tree: PendingTree) -> list[PendingRequest]:
    ordered: list[PendingRequest] = []
    stack: list[Node] = _by_ratio([root for _, root in tree.roots()])
    while stack:
        node = stack.pop()
        terminator = node.terminator
        if terminator is not None and terminator.next is None:
            ordered.append(terminator.request)
        elif terminator is not None:
            own: list[PendingRequest] = []
            while terminator is not None:
                own.append(terminator.request)
                terminator = terminator.next
            own.sort(key=_rank)
            ordered.extend(own)
        if node.n_kids > 0:
            kids: list[Node] = []
            kid = node.kid
            while kid is not None:
                kids.append(kid)
                kid = kid.next
            stack.extend(_by_ratio(kids))
    return ordered


def _rank(request: PendingRequest) -> int:
    return request.rank


def _by_ratio(nodes: list[Node]) -> list[Node]:
    """Smallest ratio first, because a stack pops its last entry first; ties: younger first."""
    n: i64 = len(nodes)
    if n < 2:
        return nodes
    nodes.sort(key=_ratio)  # floats compare much faster than tuples, and ties are rare
    i: i64 = 1
    while i < n:
        if nodes[i].acc_ratio == nodes[i - 1].acc_ratio:
            nodes.sort(key=_ratio_then_age)
            break
        i += 1
    return nodes


def _ratio(node: Node) -> float:
    return node.acc_ratio


def _ratio_then_age(node: Node) -> tuple[float, int]:
    return (node.acc_ratio, -node.acc_first)


def _in_sections(ordered: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
    """Warm first, most cached tokens first; deferred siblings last; else in the order they had."""
    warm: list[PendingRequest] = []
    cold: list[PendingRequest] = []
    deferred: list[PendingRequest] = []
    for request in ordered:
        request.section = PIONEER
        if cycle.defers_siblings and has_pioneer(request, cycle):
            request.section = SIBLING
            deferred.append(request)
        elif 2 * request.cached_len >= request.num_tokens:
            request.section = WARM
            warm.append(request)
        else:
            cold.append(request)
    warm.sort(key=_most_cached)
    return warm + cold + deferred


def _most_cached(request: PendingRequest) -> int:
    return -request.cached_len
