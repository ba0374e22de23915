"""The policy `peek`: a priority index over the pending tree, and turns for requests that have fallen behind.

An index policy gives each piece of work one number and serves the largest first.  Shortest processing time
and HRRN are such policies.  Where pieces need a common set-up, Horn's rule for precedence trees applies
(Horn, "Single-machine job sequencing with treelike precedence ordering", 1972): a set-up goes when the best
piece that needs it would be the best of all with the set-up paid.  Here the set-up is a prefix that is not
cached.  A piece is a request whose path is cached, or such a prefix with all requests that wait below it:

    index = aged * (min(5, 1 + at_risk / work) / size ** 0.4) ** power,  aged = mean * (1 + age / 8 mean) ** 8

    age      seconds that the piece's oldest request has waited
    mean     mean age of the pieces of its namespace
    work     tokens to compute for all its requests, every uncached edge once
    at_risk  cached tokens that its requests would have to compute if these were evicted: each cached edge
             divided among all requests below it, because a prefix that many wait for stays cached anyway
    size     tokens that one of its requests takes: the geometric mean of its prompt (memory held) and of its
             part of the work (time and new memory).  This part is at least half of what it would compute
             alone.  The size is then multiplied by: its expected answer length over that of the mean answer;
             one plus the number of turns still expected of its session, at most 4; and the number of
             requests with which its session began and which still wait, at most 4

In pieces about as old as the oldest of their namespace a request's real part of the work counts.  So a burst
is served largest template first, and a stream is not.

`aged` is close to the age of young pieces, and grows like an exponential for those older than the mean.  So
being smaller by some factor is worth a *difference* in age, in units of the usual wait in this queue.  If it
were worth a factor in age, as in HRRN, a request a few times as large would wait dozens of times as long.  If
sizes are known and small against the queue, the order by age minus a logarithm of size has the shortest tail
in the long run (Yu and Scully, "Strongly tail-optimal scheduling in the light-tailed M/G/1", 2024).  A power
in place of the exponential is a few products, the same on each platform, and does not overflow.

`power` is the dial: 2 for a short tail, 6 for both, 10 for a short mean.  The smaller it is, the more the
longest waits count.

All factors but the age are bounded or powers of sizes, so there is no threshold and no section.  A piece of
size L and age A goes before one of size l and age a, cached or not, if (8 mean + A) / (8 mean + a) is more
than (5 * (L / l) ** 0.4) ** (power / 8), in a burst with the sizes that count there.  At any dial a size 56
times as small weighs as much as the best hit.  If few pieces are old, the mean is much below A, so an old
piece soon goes.  If many are, the turns for overdue requests bound the wait.

The best piece goes.  If it is a prefix that is not cached, the best request below it pays for the prefix, and
the others compete anew with the prefix paid.  Some engines show a prefix only when its prefill ends.  There,
siblings of a prefill under way, or of one earlier in the order, go last.

The parts are pure modules that know nothing of the planner.  *frontier* keeps the pieces and their indices;
*expectations* learns how long answers are and how sessions go on; *targets* puts requests first that can
still have their first token in time; *overdue* gives turns to requests that arrival order would have served;
and *tenants* to those served less.  `PeekPolicy` passes events to the parts and chains their orders.
"""

from __future__ import annotations

from math import inf
from typing import Any, ClassVar, final

from mypy_extensions import mypyc_attr

from peek.native import i64
from peek.policy.base import (
    ADMITTED,
    HELD,
    AdmissionPolicy,
    Cycle,
    Listed,
    RequestStream,
    everybody,
    hits_something,
)
from peek.policy.default import PeekOptions
from peek.policy.default.expectations import MOST_WORTH, Expectations
from peek.policy.default.frontier import GAMMA, BestFirst, Frontier
from peek.policy.default.overdue import OverdueLane
from peek.policy.default.targets import TargetLane
from peek.policy.default.tenants import DECODE_WEIGHT, TenantAccounts, Turns
from peek.policy.sections import PIONEER, SIBLING, TAU
from peek.request import PendingRequest
from peek.trie.node import Terminator
from peek.trie.pending_tree import PendingTree


@mypyc_attr(allow_interpreted_subclasses=True)
class PeekPolicy(AdmissionPolicy):
    """Orders the pieces of the pending tree by index, largest first; see the module.

    O(n log n + nodes) for `order`, less for `stream`.
    """

    Options: ClassVar[Any] = PeekOptions
    sees_prefills: ClassVar[bool] = True

    def __init__(self, options: PeekOptions | None = None) -> None:
        settings = PeekOptions() if options is None else options
        self._leaves_unshared: bool = settings.unshared == "arrival"
        super().__init__(
            reads_tree=False, needs_sharing=self._leaves_unshared, reads_heads=True, options=settings
        )
        self.power: i64 = round(settings.power)
        self.expectations = Expectations(MOST_WORTH ** (1.0 / (GAMMA * float(self.power))))
        self.targets = TargetLane(settings.target_s, settings.fair_share)
        self.overdue = OverdueLane(settings.fair_share, settings.grace_tokens)
        self.accounts = TenantAccounts(settings.tenant_lead)
        self._takes_turns: bool = settings.tenant_lead != inf
        self._frontier: Frontier | None = None

    # -- events ------------------------------------------------------------------------------------

    def arrived(self, request: PendingRequest) -> None:
        self.expectations.arrived(request, request.heads, self.reads_heads)
        self.targets.arrived(request)
        self.overdue.arrived(request)
        if self._takes_turns:
            self.accounts.arrived(request)
            self.needs_sharing = self._leaves_unshared and len(self.accounts.lines) < 2

    def left(self, request: PendingRequest, how: str, cost_tokens: int) -> None:
        admitted = how == ADMITTED
        if self._takes_turns:
            if admitted:
                self.accounts.charge(request.tenant, float(cost_tokens))
            self.accounts.left(request)
            self.needs_sharing = self._leaves_unshared and len(self.accounts.lines) < 2
        if admitted and self.reads_heads:
            self.expectations.admitted(request)
        else:
            self.expectations.withdrawn(request.request_id)
        self.targets.left(request)
        if admitted:
            self.targets.charge(request, cost_tokens)
            self.overdue.charge(request, cost_tokens)
        elif how == HELD:
            self.overdue.held(request.request_id)
        else:
            self.overdue.withdrawn(request.request_id)

    def generated(self, tenant: str, tokens: int) -> None:
        if self._takes_turns:
            self.accounts.charge(tenant, DECODE_WEIGHT * float(tokens))

    def answered(self, request_id: str, tokens: int) -> None:
        self.expectations.answered(tokens, request_id)
        self.overdue.answered(tokens, request_id)

    def served(self) -> dict[str, float]:
        """Tokens served by tenant, of tenants that wait or are ahead of the fair clock."""
        return self.accounts.served() if self._takes_turns else {}

    # -- orders ------------------------------------------------------------------------------------

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        if self._leaves_unshared and not (
            cycle.tree.has_sharing or hits_something(queue, cycle.defers_siblings)
        ):
            self.overdue.stand_aside()
            return everybody(self._in_turns(Listed(queue)))
        return everybody(self._ordered(cycle, len(queue)))

    def stream(self, cycle: Cycle) -> RequestStream | None:
        """The order of `order` as a stream; None if the queue may be left as it is.

        The frontier is kept for the next call.  O(changes in tree and cache since the last call + pieces +
        m log m) for the first m requests and the siblings between them.
        """
        if self._leaves_unshared and not cycle.tree.has_sharing:
            return None
        return self._ordered(cycle, 0)

    def _ordered(self, cycle: Cycle, most: int) -> RequestStream:
        """The whole order, of which at least the first `most` requests will be asked for.

        It chains: by index; requests in time first; turns for overdue ones; siblings last; turns of tenants.
        """
        tree = cycle.tree
        several = tree.n_namespaces > 1
        self.overdue.price(several)
        frontier = self._frontier
        if frontier is None or frontier.tree is not tree:
            frontier = Frontier(tree, self.expectations)
            self._frontier = frontier
        news = self._news_of(tree) if self.expectations.news or self.expectations.changed else []
        frontier.follow(cycle.unit_tokens)
        for terminator in news:
            frontier.renew(terminator)
        order: RequestStream = BestFirst(frontier, cycle.now, self.power, most, several)
        if self.targets.default_s is not None:
            order = self.targets.merge(order, cycle.now)
        order = self.overdue.merge(order, tree)
        return self._in_turns(SiblingsLast(order, cycle) if cycle.defers_siblings else order)

    def _in_turns(self, order: RequestStream) -> RequestStream:
        """Return `order` with turns among tenants; `order` itself if only one tenant waits."""
        several = self._takes_turns and len(self.accounts.lines) > 1
        return Turns(order, self.accounts) if several else order

    def _news_of(self, tree: PendingTree) -> list[Terminator]:
        """Update what is expected; return the requests whose expectation has changed.  O(n) at worst."""
        expectations = self.expectations
        handles = tree.handles() if expectations.news else map(tree.handle, list(expectations.changed))
        found = [each for each in handles if expectations.renew(each.request.request_id)]
        expectations.news = False
        expectations.changed.clear()
        return found


@final
class SiblingsLast(RequestStream):
    """An order with the siblings of a cold prefix behind all other requests; writes `section`.

    It is for engines that show a prefix to others only when its prefill ends: siblings admitted in one batch
    would each compute the prefix.  The first request of a prefix in the order is its pioneer.

    A pioneer *claims* the nodes of its path; the depth kept for such a node is its own.  For an unclaimed
    node it is the depth of the lowest claimed node above, as of the last look.  Claims only grow.  So a depth
    for which a request had to wait stays valid, and any other depth is looked up again.
    """

    def __init__(self, order: RequestStream, cycle: Cycle) -> None:
        self._order = order
        self._tree = cycle.tree
        self._unit: i64 = cycle.unit_tokens
        self._tau: i64 = max(TAU, cycle.shown_tokens)
        self._deferred: list[PendingRequest] = []
        self._at: i64 = 0
        self._claimed: list[int] = [-1] * cycle.tree.uid_limit
        """Depth of the claim by `uid`, in symbols; -1 for none."""
        for _, root in cycle.tree.roots():
            self._claimed[root.uid] = 0

    def next(self) -> PendingRequest | None:
        """Return the next request; None at the end.  O(levels) and the order's cost, also per sibling."""
        request = self._order.next()
        while request is not None and self._has_pioneer(request):
            request.section = SIBLING
            self._deferred.append(request)
            request = self._order.next()
        if request is not None:
            request.section = PIONEER
        elif self._at < len(self._deferred):
            request = self._deferred[self._at]
            self._at += 1
        return request

    def _has_pioneer(self, request: PendingRequest) -> bool:
        """Whether an earlier prefill computes more than tau tokens that the request would compute, too.

        That prefill is under way, or of a request asked about before.  Tau is at least what it shows in this
        step.  Without such a prefill the request becomes the pioneer of its path.  O(levels), O(1) amortised.
        """
        known = request.cached_len + self._tau
        if request.coming_len > known:
            return True
        claimed = self._claimed
        leaf = self._tree.leaf(request.request_id)
        top = leaf
        depth: i64 = claimed[top.uid]
        while depth * self._unit <= known and depth != top.depth:
            assert top.parent is not None
            top = top.parent
            depth = claimed[top.uid]
        waits = depth * self._unit > known
        node = leaf
        while node is not top:
            claimed[node.uid] = depth if waits else node.depth
            assert node.parent is not None
            node = node.parent
        return waits
