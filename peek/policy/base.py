"""What every admission policy is: one method that orders the waiting requests.

`AdmissionPolicy` is the base class inside the library; a user's policy derives from it and writes
`order`.  Everything a policy may look at comes in as arguments: the requests with their signals, and
a `Cycle` with the clock, the tree and what the engine has done so far.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64, mypyc_attr

from peek.policy.sections import THETA
from peek.request import PendingRequest
from peek.trie.pending_tree import PendingTree


@final
class Cycle:
    """The circumstances of one scheduling cycle.

    Attributes:
        tree: the pending tree; its nodes carry the marks of this cycle's dual-walk.
        now: seconds on the caller's clock.
        unit_tokens: tokens per symbol.
        work_done: uncached prompt tokens the engine has admitted so far.
        defers_siblings: the engine shows a prefix to others only when its prefill ends.
    """

    __slots__ = ("defers_siblings", "now", "tree", "unit_tokens", "work_done")

    def __init__(
        self,
        tree: PendingTree,
        now: float,
        unit_tokens: int = 1,
        work_done: int = 0,
        defers_siblings: bool = False,
    ) -> None:
        self.tree = tree
        self.now: float = now
        self.unit_tokens: i64 = unit_tokens
        self.work_done: i64 = work_done
        self.defers_siblings = defers_siblings


@mypyc_attr(allow_interpreted_subclasses=True)
class AdmissionPolicy:
    """Orders the waiting requests.

    Instance attributes tell the planner what the policy reads, so that nothing is computed in vain:

        reads_cache: needs `cached_len`, i.e. a dual-walk.
        reads_tree: needs `score`, `cluster_*` and `head`.
        needs_sharing: the stock order is as good where no two waiting requests share a prefix and, if
            the policy reads the cache, none of them hits it or a prefill under way; the planner then
            does not call `order`.
        theta: tokens of the head by which pioneers are told apart.
    """

    def __init__(
        self,
        reads_cache: bool = True,
        reads_tree: bool = True,
        needs_sharing: bool = False,
        theta: int = THETA,
    ) -> None:
        self.reads_cache = reads_cache
        self.reads_tree = reads_tree
        self.needs_sharing = needs_sharing
        self.theta: i64 = theta

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        """The admission order of `queue`: a new list with the same requests, first to admit first.

        `queue` comes in arrival order (arrival_time, then sequence) and is not changed.  Nothing
        else is: equal arguments give equal orders.  The request's scratch field `rank` and, where
        the policy uses sections, `section` may be written.
        """
        # Not an abstract method: a compiled call of one that a subclass forgot ends the process.
        raise NotImplementedError(f"{type(self).__name__} does not say how to order the queue")
