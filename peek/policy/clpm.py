"""Cluster-LPM, the scheduler of the PEEK paper.

`ClpmScheduler` sorts by Algorithm 2's sections, then by Equation 1; `group_major` emits whole clusters.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from peek.native import i64
from peek.policy.base import AdmissionPolicy, Cycle
from peek.policy.sections import PIONEER, SIBLING, TAU, THETA, WARM, assign_sections
from peek.request import MAX_TOKENS, SINGLETON, PendingRequest
from peek.settings import require_whole


@mypyc_attr(allow_interpreted_subclasses=True)
class ClpmScheduler(AdmissionPolicy):
    """Order by (section, -cached_len, -score, -|cluster|, arrival), Eq. 1.  O(n log n).

    Args:
        theta: length of the head that marks a pioneer, tokens.
        tau: cached tokens above which a request is warm.
        group_major: whether members of one cluster go together within a section.  Clusters are then sorted by
            depth x size, largest first, and singletons follow by arrival.
    """

    def __init__(self, theta: int = THETA, tau: int = TAU, group_major: bool = False) -> None:
        require_whole("theta", theta, 1, MAX_TOKENS)
        require_whole("tau", tau, 0, MAX_TOKENS)
        super().__init__(needs_sharing=True, theta=theta)
        self.tau: i64 = tau
        self.group_major = group_major

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        assign_sections(queue, self.tau)
        if self.group_major:
            return _group_major(queue)
        return sorted(queue, key=_equation_1)


def _equation_1(request: PendingRequest) -> tuple[int, int, int, int]:
    # The queue is in arrival order and the sort is stable, so ties stay in it.
    return (request.section, -request.cached_len, -request.score, -request.cluster_size)


def _group_major(queue: list[PendingRequest]) -> list[PendingRequest]:
    clusters: list[dict[int, list[PendingRequest]]] = [{}, {}, {}]  # by section, then by id
    singletons: list[list[PendingRequest]] = [[], [], []]
    for request in queue:
        if request.cluster_id == SINGLETON:
            singletons[request.section].append(request)
        else:
            clusters[request.section].setdefault(request.cluster_id, []).append(request)
    ordered: list[PendingRequest] = []
    for section in (WARM, PIONEER, SIBLING):
        for group in sorted(clusters[section].values(), key=_cluster_rank):
            group.sort(key=_within_cluster)
            ordered.extend(group)
        ordered.extend(singletons[section])
    return ordered


def _cluster_rank(group: list[PendingRequest]) -> tuple[int, float, int]:
    first = group[0]
    return (-first.cluster_depth * first.cluster_size, first.arrival_time, first.sequence)


def _within_cluster(request: PendingRequest) -> tuple[int, int]:
    return (-request.cached_len, -request.score)
