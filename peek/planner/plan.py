"""What a planner answers: an order, whether it differs from the order of arrival, and why it is so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ORDERED: Final = "ordered by the policy"
NOTHING_TO_GAIN: Final = "nothing that waits is shared, cached or under way"


class Plan(list[str]):
    """An admission order: the ids of all waiting requests, first to admit first.

    A list like any other, with three answers on top.

    Args:
        ids: the order.
        reordered: whether it differs from the order of arrival.
        reason: why it is what it is: `ORDERED`, `NOTHING_TO_GAIN`, or what a policy did wrong.
        stood_aside: the planner has nothing to say, and any order of the engine's own is as good.
    """

    __slots__ = ("reason", "reordered", "stood_aside")

    def __init__(
        self,
        ids: Iterable[str] = (),
        reordered: bool = False,
        reason: str = ORDERED,
        stood_aside: bool = False,
    ) -> None:
        super().__init__(ids)
        self.reordered = reordered
        self.reason = reason
        self.stood_aside = stood_aside
