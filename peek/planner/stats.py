"""Counters of a planner over its lifetime: what it decided, what it expected, what it cost."""

from __future__ import annotations

from typing import Final, final

from peek.native import i64

_COUNTERS: Final = (
    "plans", "stood_aside", "policy_faults", "reordered", "planned", "admitted", "withdrawn", "fair_admitted",
    "prompt_tokens", "cached_expected", "uncached_admitted", "cache_calls", "plan_s", "last_plan_s",
)  # fmt: skip


@final
class PlannerStats:
    """Running totals since the planner was made; `as_dict` exports them.

    Attributes:
        plans: orders made; a plan that still stands is not made again.
        stood_aside: plans that kept arrival order because no waiting prompt was shared, cached or under way.
        policy_faults: failures of policy or lanes.
        reordered: cycles that changed the engine's order (counted by `Planner.cycle`).
        planned: requests ordered, summed over plans.
        admitted, withdrawn: requests that left the queue.
        fair_admitted: admitted requests that the fair lane picked.
        prompt_tokens: prompt lengths of admitted requests, tokens.
        cached_expected: tokens of these that the last plan expected to be cached.
        uncached_admitted: prompt tokens that the engine had to compute.
        cache_calls: calls of `CacheView.advance`.
        plan_s, last_plan_s: duration of all plans and of the last plan, seconds on the caller's timer.
    """

    def __init__(self) -> None:
        self.plans: i64 = 0
        self.stood_aside: i64 = 0
        self.policy_faults: i64 = 0
        self.reordered: i64 = 0
        self.planned: i64 = 0
        self.admitted: i64 = 0
        self.withdrawn: i64 = 0
        self.fair_admitted: i64 = 0
        self.prompt_tokens: i64 = 0
        self.cached_expected: i64 = 0
        self.uncached_admitted: i64 = 0
        self.cache_calls: i64 = 0
        self.plan_s: float = 0.0
        self.last_plan_s: float = 0.0

    def note_admission(self, prompt_tokens: i64, cached: i64, uncached: i64, fair: bool) -> None:
        """Count one admitted request."""
        self.admitted += 1
        self.prompt_tokens += prompt_tokens
        self.cached_expected += cached
        self.uncached_admitted += uncached
        if fair:
            self.fair_admitted += 1

    def as_dict(self) -> dict[str, int | float]:
        """All counters by name."""
        return {name: getattr(self, name) for name in _COUNTERS}

    def __repr__(self) -> str:
        return f"PlannerStats({self.as_dict()})"
