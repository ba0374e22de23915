"""The orders that engines offer by themselves: the baselines.

fcfs        the stock order of vLLM and SGLang
lpm         SGLang's longest prefix match, with and without its limit (`schedule_policy.py`, 0.5.9 and later)
spf         SGLang's shortest prefill first (0.5.23)
hrrn        SGLang's highest response ratio next (0.5.23, `_sort_by_hrrn`): (tokens processed since the
            request arrived) / (tokens it still has to prefill), on a clock of tokens
dfs-weight  SGLang's cached tree in depth-first order, heaviest branch first (`_sort_by_dfs_weight`)

All but fcfs and dfs-weight defer siblings of a cold prefix within the batch, as SGLang does.
"""

from __future__ import annotations

from math import inf
from typing import Final

from mypy_extensions import i64, mypyc_attr

from peek.errors import InvalidConfig
from peek.policy.base import AdmissionPolicy, Cycle, arrival, uncached_tokens
from peek.policy.sections import SIBLING, TAU, assign_sections
from peek.request import PendingRequest
from peek.trie.node import Node
from peek.trie.pending_tree import PendingTree

_LAST: Final = 1 << 60
"""More tokens than any request has."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FirstCome(AdmissionPolicy):
    """Arrival order.  O(n), reads neither tree nor cache."""

    def __init__(self) -> None:
        super().__init__(reads_cache=False, reads_tree=False)

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        return list(queue)


@mypyc_attr(allow_interpreted_subclasses=True)
class LongestPrefix(AdmissionPolicy):
    """Longest cached prefix first, deferred siblings last, ties in arrival order.  O(n log n).

    Args:
        queue_limit: number of waiting requests beyond which the order is arrival order and ignores the cache
            (SGLang: 128); None lifts the limit.
    """

    def __init__(self, queue_limit: int | None = 128) -> None:
        super().__init__()
        self.queue_limit = _checked(queue_limit)

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        if over_limit(self.queue_limit, queue):
            return list(queue)
        assign_sections(queue, TAU)
        return sorted(queue, key=_longest_prefix)


def _longest_prefix(request: PendingRequest) -> int:
    # A prompt's last token is computed even where it is cached.
    return _LAST if request.section == SIBLING else uncached_tokens(request) - request.num_tokens


def _checked(queue_limit: int | None) -> int | None:
    """Return `queue_limit`; `InvalidConfig` if it is below 1."""
    if queue_limit is not None and queue_limit < 1:
        raise InvalidConfig(f"queue_limit is {queue_limit}; need at least 1, or None")
    return queue_limit


def over_limit(queue_limit: int | None, queue: list[PendingRequest]) -> bool:
    """Whether the queue exceeds SGLang's limit, its guard against the cost of matching a long queue."""
    return queue_limit is not None and len(queue) > queue_limit


@mypyc_attr(allow_interpreted_subclasses=True)
class ShortestPrefill(AdmissionPolicy):
    """Fewest uncached tokens first, deferred siblings last, ties in arrival order.  O(n log n)."""

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        assign_sections(queue, TAU)
        return sorted(queue, key=_shortest_prefill)


def _shortest_prefill(request: PendingRequest) -> int:
    work = uncached_tokens(request)
    return _LAST + work if request.section == SIBLING else work


@mypyc_attr(allow_interpreted_subclasses=True)
class Hrrn(AdmissionPolicy):
    """Largest (work done since arrival) / (uncached tokens) first; deferred siblings last.

    A prompt's last token is computed even where it is cached.  Ties stay in arrival order.  O(n log n).

    Args:
        queue_limit: number of waiting requests beyond which the order is arrival order (SGLang: 128).  None,
            the default here, is the stronger baseline.
    """

    def __init__(self, queue_limit: int | None = None) -> None:
        super().__init__()
        self.queue_limit = _checked(queue_limit)

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        if over_limit(self.queue_limit, queue):
            return list(queue)
        assign_sections(queue, TAU)
        work_done = cycle.work_done
        # The sort is stable, so ties stay in arrival order; floats compare much faster than tuples.
        falling = [-_ratio(request, work_done) for request in queue]
        return [queue[i] for i in sorted(range(len(queue)), key=falling.__getitem__)]


def _ratio(request: PendingRequest, work_done: i64) -> float:
    if request.section == SIBLING:
        return -inf
    return float(work_done - request.arrival_work) / float(uncached_tokens(request))


@mypyc_attr(allow_interpreted_subclasses=True)
class DfsWeight(AdmissionPolicy):
    """Children before their node's own requests, heavier children first, ties by arrival.  O(n log n).

    SGLang walks its own cache.  After a dual-walk the pending tree gives the same order: its matched part is
    the cached tree, restricted to places where waiting requests stop matching.  A branch begins where the
    cache followed an edge further than the edge above; its weight is the number of requests below.
    """

    def __init__(self) -> None:
        super().__init__(reads_tree=False)

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        oldest = _oldest_below(queue, cycle.tree)
        backwards: list[PendingRequest] = []
        ahead = [[root for _, root in cycle.tree.roots()]]  # namespaces are branches of one tree
        while ahead:
            stopped, branches = _parted(ahead.pop(), cycle.tree.epoch)
            backwards.extend(sorted(stopped, key=arrival, reverse=True))
            branches.sort(key=lambda node: (-node.count, oldest[node.uid]))
            ahead.extend([node] for node in branches)
        backwards.reverse()
        return backwards


def _oldest_below(queue: list[PendingRequest], tree: PendingTree) -> dict[int, int]:
    """The place in `queue` of the oldest request at or below each node, by its `uid`.  O(n + nodes)."""
    oldest: dict[int, int] = {}
    for place, request in enumerate(queue):
        node: Node | None = tree.leaf(request.request_id)
        while node is not None and node.uid not in oldest:
            oldest[node.uid] = place
            node = node.parent
    return oldest


def _parted(tops: list[Node], epoch: i64) -> tuple[list[PendingRequest], list[Node]]:
    """Return the requests whose cached prefix ends where that of `tops` does, and the branches from there.

    A cache of whole blocks may go on below a node that it does not hold to the end.
    """
    stopped: list[PendingRequest] = []
    branches: list[Node] = []
    while tops:
        node = tops.pop()
        terminator = node.terminator
        while terminator is not None:
            stopped.append(terminator.request)
            terminator = terminator.next
        kid = node.kid
        while kid is not None:
            goes_on = kid.walk_epoch == epoch and kid.walk_matched > node.walk_matched
            (branches if goes_on else tops).append(kid)
            kid = kid.next
    return stopped, branches
