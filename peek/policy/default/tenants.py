"""Turns among tenants, on top of whatever order the policy gives.

Each tenant has an account of the work that was done for it: uncached prompt tokens of its admitted requests,
and generated tokens.  (VTC: Sheng et al., "Fairness in serving large language models", OSDI 2024.)  The *fair
clock* shows what a tenant that always waited would have been served by now, if the work had been divided
evenly among the waiting tenants.  (As in fair queueing: Demers, Keshav and Shenker, 1989.)

A tenant's *level* is the larger of two numbers: its account, and what the fair clock showed when its oldest
waiting request came.  A tenant is *behind* when the clock has passed its level by half a *lead*.  It has then
had less than an equal part, and one of its requests has waited longer than that part takes.  While no tenant
is behind, the policy's order stands.  While one is, a tenant whose level is more than the lead above the
lowest level is not served.  Within the lead the policy's order stands, so that requests with a common prefix
stay together (the idea of DLPM: Cao et al., "Locality-aware fair scheduling in LLM serving", 2025).

So a tenant that asks for more than an equal part is passed over only for a tenant that it keeps waiting.
Turns cannot be saved up: a tenant that comes back after a pause has the level of the clock.  The account of a
tenant that does not wait means nothing once the clock has passed it.

The bound.  Let a tenant be behind, at level e.  Until it is served or one of its requests is withdrawn, a
tenant of level f is admitted at most  max(0, e + lead - f)  of work and one request.  Proof: all that time
the lowest level is at most e, so a tenant has a level of at most e + lead before it is admitted.  Levels
never fall, and each admission raises one by its work.  With m tenants waiting, a tenant of level e is behind
at the latest when  m * (e - t + lead / 2)  of work has been done since the clock showed t.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from typing import Final, final

from mypy_extensions import i64

from peek.policy.base import RequestStream, uncached_tokens
from peek.request import PendingRequest

DECODE_WEIGHT: Final = 2.0
"""A generated token costs an engine about as much as two prompt tokens (the weights of VTC)."""

MOST_IDLE: Final = 4096
"""Maximum number of accounts of tenants that do not wait; the accounts used last stay."""


@final
class Line:
    """The waiting requests of one tenant, and its account.

    Attributes:
        served: the account, tokens of work.
        came: the fair clock at the arrival of each waiting request, by its id; oldest first.
    """

    def __init__(self, served: float) -> None:
        self.served: float = served
        self.came: OrderedDict[str, float] = OrderedDict()

    @property
    def level(self) -> float:
        """The account or the clock at the oldest request's arrival, whichever is more; tokens."""
        return max(self.served, next(iter(self.came.values())))


@final
class TenantAccounts:
    """What each tenant has been served, and which tenants wait.

    Attributes:
        clock: the fair clock, tokens.
    """

    def __init__(self, lead: float) -> None:
        self.lead: float = lead
        self.clock: float = 0.0
        self.lines: dict[str, Line] = {}
        """The waiting tenants, by name."""
        self.idle: OrderedDict[str, float] = OrderedDict()
        """Accounts of tenants that do not wait, by name."""
        self.floor: float = 0.0
        """No waiting tenant has a level below this."""

    def served(self) -> dict[str, float]:
        """Tokens served, by tenant, for tenants that wait or are ahead of the fair clock.  O(tenants)."""
        accounts = {tenant: line.served for tenant, line in self.lines.items()}
        accounts.update({tenant: had for tenant, had in self.idle.items() if had > self.clock})
        return accounts

    def arrived(self, request: PendingRequest) -> None:
        """Note a request that waits from now on.  O(1)."""
        tenant = request.tenant
        line = self.lines.get(tenant)
        if line is None:
            line = Line(self.idle.pop(tenant, 0.0))
            self.lines[tenant] = line
        line.came[request.request_id] = self.clock

    def left(self, request: PendingRequest) -> None:
        """Note that a request waits no more.  O(1)."""
        line = self.lines[request.tenant]
        del line.came[request.request_id]
        if not line.came:
            del self.lines[request.tenant]
            self._keep(request.tenant, line.served)

    def charge(self, tenant: str, tokens: float) -> None:
        """Charge work to a tenant; for an admission, call it before `left`.  O(1)."""
        line = self.lines.get(tenant)
        if line is not None:
            line.served = line.level + tokens
        else:
            self._keep(tenant, max(self.clock, self.idle.pop(tenant, 0.0)) + tokens)
        self.clock += tokens / float(max(1, len(self.lines)))

    def lowest(self) -> float:
        """The lowest level of the waiting tenants; at least one must wait.  O(tenants)."""
        lowest = min([line.level for line in self.lines.values()])
        self.floor = min(lowest, self.clock)  # levels never fall, and a new tenant begins at the clock
        return lowest

    def _keep(self, tenant: str, served: float) -> None:
        if served <= self.clock:
            return
        self.idle[tenant] = served
        self.idle.move_to_end(tenant)
        if len(self.idle) > MOST_IDLE:
            self.idle.popitem(last=False)


@final
class Turns(RequestStream):
    """An order in which tenants take turns, where each request is expected to cost its uncached tokens.

    Levels and clock advance with the order; the arrival of a tenant's oldest request stays as it was.  Until
    a tenant is behind, this is the policy's order, at O(1) more per request and sometimes O(tenants), as the
    clock advances.  From then on turns are taken to the end.

    Args:
        order: the policy's order of all waiting requests.
        accounts: the accounts as they stand; this order is not charged to them.
    """

    def __init__(self, order: RequestStream, accounts: TenantAccounts) -> None:
        self._order = order
        self._accounts: TenantAccounts | None = accounts
        """The accounts; None once a tenant may be behind, because from then on `_now` holds the levels."""
        self._acts = False  # a tenant has been behind
        self._lead: float = accounts.lead
        self._clock: float = accounts.clock
        self._tenants: float = float(len(accounts.lines))
        self._from: float = accounts.floor + 0.5 * accounts.lead
        """No tenant can be behind before the clock has passed this."""
        self._placed: list[PendingRequest] = []  # used while `_accounts` is not None
        self._now: dict[str, float] = {}  # levels by tenant, used once it is None
        self._left: dict[str, int] = {}
        self._levels: list[tuple[float, str]] = []  # a heap: levels of tenants with requests left
        self._aside: dict[str, deque[tuple[int, PendingRequest]]] = {}
        """By tenant: requests passed over while it was too far ahead, with their places in the order."""
        self._ready: list[tuple[int, str]] = []  # a heap by place: tenants whose first request aside may go
        self._blocked: list[tuple[float, str]] = []  # a heap: the other tenants with requests aside
        self._number: i64 = 0

    def next(self) -> PendingRequest | None:
        """Return the next request; None at the end.

        O(log tenants), and once for each request passed over; O(tenants) when a tenant is first behind.
        """
        accounts = self._accounts
        if accounts is not None:
            if self._clock > self._from:
                self._from = accounts.lowest() + 0.5 * self._lead
            if self._clock <= self._from:
                request = self._order.next()
                if request is not None:
                    self._placed.append(request)
                    self._clock += float(uncached_tokens(request)) / self._tenants
                return request
            self._accounts = None
            self._begin(accounts)
        limit = self._limit()
        if not self._acts:
            if self._clock <= limit - 0.5 * self._lead:
                request = self._order.next()
                if request is not None:
                    self._serve(request)
                return request
            self._acts = True
        while self._blocked and self._blocked[0][0] <= limit:
            tenant = heapq.heappop(self._blocked)[1]
            heapq.heappush(self._ready, (self._aside[tenant][0][0], tenant))
        if self._ready:
            tenant = heapq.heappop(self._ready)[1]
            request = self._aside[tenant].popleft()[1]
            self._serve(request)
            if self._aside[tenant]:
                heapq.heappush(self._blocked, (self._now[tenant], tenant))
            return request
        return self._from_order(limit)

    def _from_order(self, limit: float) -> PendingRequest | None:
        """The next request of the order that may go; those before it are passed over for now."""
        while True:
            candidate = self._order.next()
            if candidate is None:
                return None
            self._number += 1
            tenant = candidate.tenant
            waiting = self._aside.get(tenant)
            if waiting is None:
                waiting = deque()
                self._aside[tenant] = waiting
            if not waiting:
                if self._now[tenant] <= limit:
                    self._serve(candidate)
                    return candidate
                heapq.heappush(self._blocked, (self._now[tenant], tenant))
            waiting.append((self._number, candidate))

    def _begin(self, accounts: TenantAccounts) -> None:
        """Compute the levels after all requests placed so far.  O(tenants + these requests)."""
        for tenant, line in accounts.lines.items():
            self._now[tenant] = line.level
            self._left[tenant] = len(line.came)
        for request in self._placed:
            self._now[request.tenant] += float(uncached_tokens(request))
            self._left[request.tenant] -= 1
        self._levels = [(level, tenant) for tenant, level in self._now.items()]
        heapq.heapify(self._levels)

    def _limit(self) -> float:
        """The highest level at which a tenant may be served next."""
        levels = self._levels
        while levels and (self._left[levels[0][1]] == 0 or self._now[levels[0][1]] != levels[0][0]):
            heapq.heappop(levels)
        return levels[0][0] + self._lead if levels else math.inf

    def _serve(self, request: PendingRequest) -> None:
        tenant = request.tenant
        cost = float(uncached_tokens(request))
        self._left[tenant] -= 1
        self._now[tenant] += cost
        self._clock += cost / self._tenants
        heapq.heappush(self._levels, (self._now[tenant], tenant))
