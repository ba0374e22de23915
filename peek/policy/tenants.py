"""Turns among tenants, on top of whatever order the policy gives.

Each tenant has an account of the work done for him: uncached prompt tokens of admitted requests, and tokens
generated (VTC: Sheng et al., "Fairness in serving large language models", OSDI 2024).  Among those who wait
nobody is served who is more than a *lead* ahead of the least served one; within the lead the policy's order
stands, so that what shares a prefix stays together (the idea of DLPM: Cao et al., "Locality-aware fair
scheduling in LLM serving", 2025).  Hence, between two tenants who both have requests waiting, the accounts
never differ by more than the lead and the work of one admission.

Who comes back after a pause starts level with the least served of those who wait: nobody saves up turns.
With one tenant waiting nothing changes.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final, final

from mypy_extensions import i64

from peek.policy.stream import RequestStream
from peek.request import PendingRequest
from peek.settings import require_lead

DECODE_WEIGHT: Final = 2.0
"""A generated token costs an engine about as much as two of a prompt (the weights of VTC)."""


def check_tenant_lead(lead: object) -> None:
    """`InvalidConfig` unless it is a number of tokens; infinity for no turns at all."""
    require_lead("tenant_lead", lead)


@final
class TenantAccounts:
    """Who has been served how much, and who waits.

    Args:
        lead: tokens that a waiting tenant may be ahead of the least served one.
    """

    __slots__ = ("_level", "_waiting", "lead", "served")

    def __init__(self, lead: float) -> None:
        self.lead: float = lead
        self.served: dict[str, float] = {}
        """Tokens, by tenant; those who are level when they come back are forgotten."""
        self._waiting: dict[str, int] = {}
        self._level: float = 0.0
        """What the least served tenant had when somebody last looked: accounts never start below."""

    @property
    def several(self) -> bool:
        """Whether more than one tenant waits.  O(1)."""
        return len(self._waiting) > 1

    def arrived(self, tenant: str) -> None:
        """A request began to wait.  O(1), O(tenants) for the first of a tenant."""
        count = self._waiting.get(tenant, 0)
        if count == 0:
            self._raise_level()
            if self.served.get(tenant, 0.0) < self._level:
                self.served[tenant] = self._level
        self._waiting[tenant] = count + 1

    def left(self, tenant: str) -> None:
        """One waits no more.  O(1), O(tenants) for the last of a tenant."""
        count = self._waiting.get(tenant, 0) - 1
        if count > 0:
            self._waiting[tenant] = count
            return
        self._raise_level()
        self._waiting.pop(tenant, None)
        if len(self.served) > 2 * len(self._waiting) + 64:
            self._forget()

    def charge(self, tenant: str, tokens: float) -> None:
        """Work was done for a tenant.  O(1)."""
        self.served[tenant] = max(self._level, self.served.get(tenant, 0.0)) + tokens

    def waiting(self) -> dict[str, int]:
        """Requests by tenant; a copy."""
        return dict(self._waiting)

    def _raise_level(self) -> None:
        least = -1.0
        for tenant in self._waiting:
            served = self.served.get(tenant, 0.0)
            if least < 0.0 or served < least:
                least = served
        if least > self._level:
            self._level = least

    def _forget(self) -> None:
        for tenant in list(self.served):
            if tenant not in self._waiting and self.served[tenant] <= self._level:
                del self.served[tenant]


@final
class Turns(RequestStream):
    """An order in which no tenant gets further ahead than the lead, if each costs what is not cached of him.

    Args:
        order: the policy's, of all who wait.
        accounts: as they stand; the order to come is not charged to them.
    """

    __slots__ = ("_aside", "_blocked", "_lead", "_left", "_levels", "_number", "_order", "_ready", "_served")

    def __init__(self, order: RequestStream, accounts: TenantAccounts) -> None:
        self._order = order
        self._lead: float = accounts.lead
        self._left = accounts.waiting()
        self._served: dict[str, float] = {}
        self._levels: list[tuple[float, str]] = []  # a heap of what each waiting tenant has had
        for tenant in self._left:
            served = accounts.served.get(tenant, 0.0)
            self._served[tenant] = served
            self._levels.append((served, tenant))
        heapq.heapify(self._levels)
        self._aside: dict[str, deque[tuple[int, PendingRequest]]] = {}
        """By tenant: those who came up in the order while he was too far ahead, with their places in it."""
        self._ready: list[tuple[int, str]] = []  # a heap: tenants whose first aside may go, by its place
        self._blocked: list[tuple[float, str]] = []  # a heap: the others that have somebody aside
        self._number: i64 = 0

    def next(self) -> PendingRequest | None:
        """Whoever goes next; None at the end.  O(log tenants), and those that are passed over once."""
        limit = self._limit()
        while self._blocked and self._blocked[0][0] <= limit:
            tenant = heapq.heappop(self._blocked)[1]
            heapq.heappush(self._ready, (self._aside[tenant][0][0], tenant))
        if self._ready:
            tenant = heapq.heappop(self._ready)[1]
            request = self._aside[tenant].popleft()[1]
            self._serve(request)
            if self._aside[tenant]:
                heapq.heappush(self._blocked, (self._served[tenant], tenant))
            return request
        while True:
            candidate = self._order.next()
            if candidate is None:
                return None
            self._number += 1
            waiting = self._aside.get(candidate.tenant)
            if waiting is None:
                waiting = deque()
                self._aside[candidate.tenant] = waiting
            if not waiting and self._served.get(candidate.tenant, 0.0) <= limit:
                self._serve(candidate)
                return candidate
            if not waiting:
                heapq.heappush(self._blocked, (self._served[candidate.tenant], candidate.tenant))
            waiting.append((self._number, candidate))

    def _limit(self) -> float:
        """What a tenant may have had to be served next."""
        levels = self._levels
        while levels and (self._left[levels[0][1]] == 0 or self._served[levels[0][1]] != levels[0][0]):
            heapq.heappop(levels)
        return levels[0][0] + self._lead if levels else 0.0

    def _serve(self, request: PendingRequest) -> None:
        tenant = request.tenant
        self._left[tenant] -= 1
        served = self._served[tenant] + float(max(1, request.num_tokens - request.cached_len))
        self._served[tenant] = served
        heapq.heappush(self._levels, (served, tenant))
