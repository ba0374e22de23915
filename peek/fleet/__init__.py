"""One queue in front of many replicas: an algorithm without I/O, and its parts."""

from peek.fleet.config import FleetConfig
from peek.fleet.fleet_planner import FleetPlanner
from peek.fleet.prompt_keys import PromptKey, openai_key, text_key, token_key
from peek.fleet.stats import FleetStats, ReplicaStatus
from peek.fleet.views import EventView, RoutedHistory

__all__ = [
    "EventView", "FleetConfig", "FleetPlanner", "FleetStats", "PromptKey", "ReplicaStatus", "RoutedHistory",
    "openai_key", "text_key", "token_key",
]  # fmt: skip
