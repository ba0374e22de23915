"""For queues that do not tell who came and went: find out by comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peek.planner.planner import Planner
    from peek.protocols import WaitingQueue


def synchronise(planner: Planner, queue: WaitingQueue, waiting: list[str]) -> None:
    """Make the planner's requests those in `waiting`, the ids of the queue.  O(n)."""
    arrived = [request_id for request_id in waiting if request_id not in planner]
    if len(waiting) - len(arrived) != len(planner):
        present = set(waiting)
        for request in planner.tree.requests():
            if request.request_id not in present:
                cost: int = queue.uncached_tokens(request.request_id)
                planner.remove(request.request_id, cost >= 0, cost if cost >= 0 else None)
    for request_id in arrived:
        planner.add(queue.translate(request_id))
