"""One engine's planner: what waits, in which order to admit it, and what of the cache it needs."""

from peek.planner.plan import LazyPlan, Plan, Upcoming
from peek.planner.planner import Planner
from peek.planner.stats import PlannerStats

__all__ = ["LazyPlan", "Plan", "Planner", "PlannerStats", "Upcoming"]
