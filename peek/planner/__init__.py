"""One engine's planner: its waiting requests, the order to admit them, and the cached blocks they need."""

from peek.planner.plan import LazyPlan, Plan, Upcoming
from peek.planner.planner import Planner
from peek.planner.signals import PrefillsInFlight
from peek.planner.stats import PlannerStats

__all__ = ["LazyPlan", "Plan", "Planner", "PlannerStats", "PrefillsInFlight", "Upcoming"]
