"""One engine's planner: who waits, in which order to admit them, and what of the cache they need."""

from peek.planner.plan import LazyPlan, Plan
from peek.planner.planner import Planner
from peek.planner.stats import PlannerStats

__all__ = ["LazyPlan", "Plan", "Planner", "PlannerStats"]
