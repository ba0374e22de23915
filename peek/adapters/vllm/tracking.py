"""vLLM's waiting queue, remembering who entered and left.

With it the adapter's cost per step goes with what changed, not with how many wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Tracking:
    """Mixed into vLLM's `FCFSRequestQueue`, whose every way in and out passes here.

    The set of members is vLLM's business, the order vLLM's or the planner's (`place`).

    Attributes:
        members: who is in the queue, by request id.
        touched: who entered or left since somebody last cleared it, by request id.
    """

    def __init__(self, requests: Iterable[Any]) -> None:
        super().__init__(requests)  # type: ignore[call-arg]
        self.members: dict[str, Any] = {}
        self.touched: dict[str, Any] = {}
        self._enter(self)  # type: ignore[arg-type]

    def _enter(self, requests: Iterable[Any]) -> None:
        for request in requests:
            self.members[request.request_id] = self.touched[request.request_id] = request

    def _leave(self, requests: Iterable[Any]) -> None:
        for request in requests:
            if self.members.pop(request.request_id, None) is not None:
                self.touched[request.request_id] = request

    def add_request(self, request: Any) -> None:
        super().add_request(request)  # type: ignore[misc]
        self._enter((request,))

    def prepend_request(self, request: Any) -> None:
        super().prepend_request(request)  # type: ignore[misc]
        self._enter((request,))

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        requests = list(requests)
        super().prepend_requests(requests)  # type: ignore[misc]
        self._enter(requests)

    def pop_request(self) -> Any:
        request = super().pop_request()  # type: ignore[misc]
        self._leave((request,))
        return request

    def remove_request(self, request: Any) -> None:
        super().remove_request(request)  # type: ignore[misc]
        self._leave((request,))

    def remove_requests(self, requests: Iterable[Any]) -> None:
        requests = list(requests)
        super().remove_requests(requests)  # type: ignore[misc]
        self._leave(requests)

    def place(self, requests: list[Any]) -> None:
        """The same members in another order.  O(n)."""
        self.clear()  # type: ignore[attr-defined]  # nothing can fail between here and the next line
        self.extend(requests)  # type: ignore[attr-defined]


def tracked_queue(requests: Iterable[Any]) -> Any:
    """A `FCFSRequestQueue` of these requests that tracks its members."""
    from vllm.v1.core.sched.request_queue import FCFSRequestQueue

    return type("TrackedQueue", (Tracking, FCFSRequestQueue), {})(requests)
