"""What a planner answers: an order, whether it differs from the order of arrival, and why it is so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from peek.request import PendingRequest

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


class Source(Protocol):
    """Where a lazy plan comes from."""

    def next_id(self) -> str | None:
        """The id of the next request, None at the end or when the order no longer stands."""
        ...


class WorkedOut:
    """An order that is there already, as a `Source`."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids = iter(ids)

    def next_id(self) -> str | None:
        return next(self._ids, None)


class LazyPlan:
    """An admission order that is worked out as far as it is asked for.

    The same order as `Plan` until a request arrives or leaves; then what has not been asked for is gone.

    Args:
        source: tells one after another.
        reason, stood_aside: see `Plan`.
    """

    __slots__ = ("_known", "_source", "reason", "stood_aside")

    def __init__(self, source: Source, reason: str = ORDERED, stood_aside: bool = False) -> None:
        self._source = source
        self._known: list[str] = []
        self.reason = reason
        self.stood_aside = stood_aside

    @classmethod
    def of(cls, plan: Plan) -> LazyPlan:
        """A plan that has been worked out, as a lazy one."""
        return cls(WorkedOut(plan), plan.reason, plan.stood_aside)

    def at(self, place: int) -> str | None:
        """The id of the request at `place`, from 0; None behind the last one known.

        O(1), and the cost of working out what has not been asked for before.
        """
        known = self._known
        while len(known) <= place:
            following = self._source.next_id()
            if following is None:
                return None
            known.append(following)
        return known[place]

    def rest(self, place: int) -> list[str]:
        """The ids from `place` on.  O(n): works the whole plan out."""
        while (following := self._source.next_id()) is not None:
            self._known.append(following)
        return self._known[place:]

    def __iter__(self) -> Iterator[str]:
        place = 0
        while (request_id := self.at(place)) is not None:
            yield request_id
            place += 1


class Upcoming(NamedTuple):
    """A request that is up soon, and what it needs, in tokens of its prompt, as of its plan.

    `cached_len` of them are cached, as the `CacheView` counts; those `missing` must be loaded or computed.
    """

    request_id: str
    cached_len: int
    missing: int


class Waits(Protocol):
    """Whose requests a plan orders."""

    def __contains__(self, request_id: object) -> bool: ...

    def request(self, request_id: str) -> PendingRequest: ...


def first_of(plan: Iterable[str], k: int, waiting: Waits) -> list[Upcoming]:
    """The first `k` of a plan that still wait.  O(k), and what has left; a lazy plan's cost for each."""
    found: list[Upcoming] = []
    if k <= 0:
        return found
    for request_id in plan:
        if request_id in waiting:
            request = waiting.request(request_id)
            cached = int(request.cached_len)
            found.append(Upcoming(request_id, cached, max(0, int(request.num_tokens) - cached)))
            if len(found) == k:
                break
    return found
