"""The planner's answer: an order, whether it differs from arrival order, and the reason for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from peek.planner.planner import Planner
    from peek.trie.pending_tree import PendingTree

ORDERED: Final = "ordered by the policy"
NOTHING_TO_GAIN: Final = "nothing that waits is shared, cached or under way"


class Plan(list[str]):
    """An admission order: the ids of all waiting requests, first to admit first.

    It is a list with three more attributes.  Do not change it: while it stands (`plan_lasts_s`), the planner
    returns this very object.

    Args:
        ids: the order.
        reordered: whether it differs from arrival order.
        reason: `ORDERED`, `NOTHING_TO_GAIN`, or what a policy did wrong.
        stood_aside: whether any order that the engine itself has is as good: there is nothing to gain.
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
    """Where a lazy plan gets its ids from."""

    def next_id(self) -> str | None:
        """Return the id of the next request; None at the end or when the order no longer stands."""
        ...


class LazyPlan:
    """An admission order that is worked out only as far as it is asked for.

    It is the order of `Plan` until a request arrives or leaves; ids not asked for by then are lost.  If
    tenants take turns, ids asked for later take into account what a tenant was charged meanwhile.

    Args:
        source: gives the ids after `known`, one after another; None if there are no more.
        known: the ids that are worked out.
        reason, stood_aside: see `Plan`.
    """

    __slots__ = ("_known", "_source", "reason", "stood_aside")

    def __init__(
        self,
        source: Source | None,
        known: Iterable[str] = (),
        reason: str = ORDERED,
        stood_aside: bool = False,
    ) -> None:
        self._source = source
        self._known = list(known)
        self.reason = reason
        self.stood_aside = stood_aside

    @classmethod
    def of(cls, plan: Plan) -> LazyPlan:
        """Make a lazy plan of a complete one."""
        return cls(None, plan, plan.reason, plan.stood_aside)

    def at(self, place: int) -> str | None:
        """The id of the request at `place`, from 0; None after the last id.

        O(1), and the cost of working out the ids up to there.
        """
        known = self._known
        while len(known) <= place:
            following = self._next()
            if following is None:
                return None
            known.append(following)
        return known[place]

    def rest(self, place: int) -> list[str]:
        """The ids from `place` on.  O(n): works out the whole plan."""
        while (following := self._next()) is not None:
            self._known.append(following)
        return self._known[place:]

    def _next(self) -> str | None:
        return None if self._source is None else self._source.next_id()

    def __iter__(self) -> Iterator[str]:
        place = 0
        while (request_id := self.at(place)) is not None:
            yield request_id
            place += 1


class Upcoming(NamedTuple):
    """A request that will be admitted soon, with its cached and missing tokens as of the plan.

    `cached_len` tokens of its prompt are cached, as the `CacheView` counts.  The other `missing` tokens must
    be loaded or computed.
    """

    request_id: str
    cached_len: int
    missing: int


def first_of(plan: Iterable[str], k: int, waiting: PendingTree | Planner) -> list[Upcoming]:
    """The first `k` requests of a plan that still wait.

    O(k + requests that have left), and a lazy plan's own cost for each.
    """
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
