"""First come, first served: the stock order of vLLM and the fallback of SGLang."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from peek.policy.base import AdmissionPolicy, Cycle
from peek.request import PendingRequest


@mypyc_attr(allow_interpreted_subclasses=True)
class FirstCome(AdmissionPolicy):
    """Arrival order.  O(n), reads neither tree nor cache."""

    def __init__(self) -> None:
        super().__init__(reads_cache=False, reads_tree=False)

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        return list(queue)
