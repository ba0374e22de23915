"""A priority index over the pending tree: one formula for age, sharing, cache and length.

Index policies order work by one number for each piece and serve the largest first: shortest processing time,
HRRN, and, where pieces need a common set-up, Horn's rule for precedence trees (Horn, "Single-machine job
sequencing with treelike precedence ordering", 1972): a set-up goes when the best of what it enables, set-up
paid, is the best of all.  Here the set-up is a prefix that is not cached, and a piece is what waits below it:

    index = age * count ** beta * (1 + at_risk / work) ** 3 / length ** gamma

    age      seconds that the oldest of them has waited
    count    how many they are
    work     tokens to compute for all of them, every uncached edge once, and those that their answers are
             expected to be longer than the mean answer
    at_risk  cached tokens that they would have to compute if these were evicted: each cached edge divided
             among all that wait below it, because what many wait for stays cached anyway
    length   mean prompt length in tokens, each times the length of its answer to that of the mean answer, as
             far as is expected: memory and the time for which it is held

All factors but the age are ratios or powers of counts, so there is no threshold and no section.  Where
nothing is shared or cached the index is age / length ** gamma.  A request that waits overtakes in the end
whatever keeps coming, because only its age grows without bound.

Order: the best piece goes; if it is a prefix that is not cached, the best request below it pays for it and
the others compete anew with the prefix paid.  On engines that show a prefix only when its prefill ends,
siblings of a prefill under way, or of one earlier in the order, go last.
"""

from __future__ import annotations

import math
from typing import Final

from mypy_extensions import mypyc_attr

from peek.policy.answers import AnswerLengths
from peek.policy.base import AdmissionPolicy, Cycle
from peek.policy.best_first import BestFirst
from peek.policy.columns import MIN_WAIT_S
from peek.policy.deferral import siblings_last
from peek.policy.frontier import Frontier
from peek.policy.stream import everybody
from peek.request import PendingRequest
from peek.settings import require_one_of, require_within
from peek.trie.node import Terminator
from peek.trie.pending_tree import PendingTree

UNSHARED: Final = ("index", "arrival")

_BETA: Final = 0.05
_GAMMA: Final = 0.3
"""The exponents at the end of the dial that favours the tail, ..."""
_MORE_BETA: Final = 0.15
_MORE_GAMMA: Final = 0.7
"""... and how much more they are at the other end."""


def check_mean_bias(mean_bias: object) -> None:
    """`InvalidConfig` unless it is a number from 0 to 1."""
    require_within("mean_bias", mean_bias, 0.0, 1.0)


def check_unshared(unshared: object) -> None:
    """`InvalidConfig` unless it is one of `UNSHARED`."""
    require_one_of("unshared", unshared, UNSHARED)


@mypyc_attr(allow_interpreted_subclasses=True)
class PriorityIndex(AdmissionPolicy):
    """Largest index first over the pieces of the pending tree, see the module.

    O(n log n + nodes).

    Args:
        mean_bias: from 0.0, short tail, to 1.0, short mean; see docs/policies.md for the front between.
        unshared: "index" orders a queue in which nothing is shared or cached, too; "arrival" leaves it alone.
    """

    def __init__(self, mean_bias: float = 0.0, unshared: str = "index") -> None:
        check_mean_bias(mean_bias)
        check_unshared(unshared)
        super().__init__(reads_tree=False, needs_sharing=unshared == "arrival")
        self.mean_bias: float = mean_bias
        self.beta: float = _BETA + mean_bias * _MORE_BETA
        self.gamma: float = _GAMMA + mean_bias * _MORE_GAMMA
        self.answers = AnswerLengths()
        self._frontier: Frontier | None = None

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        return siblings_last(everybody(self.stream(cycle, len(queue))), cycle)

    def stream(self, cycle: Cycle, most: int = 0) -> BestFirst:
        """The order one request at a time, siblings of a prefill under way in their places.

        What the pieces are made of is kept for the next call: O(what has changed in tree and cache since the
        last one + pieces vector operations + m log m) for the first `most`.  It stands until either changes.
        """
        frontier = self._frontier
        if frontier is None or not frontier.is_of(cycle.tree, self.beta, self.gamma):
            frontier = Frontier(cycle.tree, self.beta, self.gamma)
            self._frontier = frontier
        news = self._news_of(cycle.tree) if self.answers.news else []
        frontier.follow(cycle.unit_tokens)
        for terminator in news:
            frontier.renew(terminator)
        return BestFirst(frontier, cycle.now, most)

    def _news_of(self, tree: PendingTree) -> list[Terminator]:
        """Those of whose answers more is known than when they came.  O(n)."""
        self.answers.news = False
        return [each for each in tree.handles() if self.answers.tell(each.request)]


def index(
    age_s: float, count: float, work: float, at_risk: float, length: float, beta: float, gamma: float
) -> float:
    """The index of one piece; see the module for units."""
    leverage = 1.0 + at_risk / work
    sharing = math.pow(count, beta)
    return max(MIN_WAIT_S, age_s) * leverage * leverage * leverage * (sharing / math.pow(length, gamma))
