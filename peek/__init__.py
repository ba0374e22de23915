"""Queue-informed scheduling and eviction for LLM serving engines.

This module holds only the public names.  `peek.adapters`, which it does not import, connects engines.
"""

from peek import fleet, offline
from peek._version import __version__
from peek.config import PRESETS, LaneOptions, PeekConfig
from peek.errors import (
    DuplicateRequest,
    EngineMismatch,
    InvalidCache,
    InvalidConfig,
    InvalidKey,
    NoReplica,
    PeekError,
    PlannerBusy,
    PolicyFault,
    QueueFull,
    UnknownReplica,
    UnknownRequest,
    WorkloadError,
)
from peek.eviction.demand import DemandEviction, EvictionPolicy
from peek.planner import Plan, Planner, PlannerStats
from peek.policy.base import AdmissionPolicy, Cycle
from peek.policy.clpm import ClpmScheduler
from peek.policy.default.policy import PeekPolicy
from peek.policy.lanes import CycleLanes, LaneController, Lanes
from peek.policy.stock import DfsWeight, FirstCome, Hrrn, LongestPrefix, ShortestPrefill
from peek.protocols import CacheTree, CacheView, WaitingQueue
from peek.request import PendingRequest
from peek.trie import keys as _keys
from peek.trie.dual_walk import DualWalk
from peek.trie.pending_tree import Cluster, PendingTree

__all__ = [
    "PRESETS",
    "AdmissionPolicy",
    "CacheTree",
    "CacheView",
    "ClpmScheduler",
    "Cluster",
    "Cycle",
    "CycleLanes",
    "DemandEviction",
    "DfsWeight",
    "DualWalk",
    "DuplicateRequest",
    "EngineMismatch",
    "EvictionPolicy",
    "FirstCome",
    "Hrrn",
    "InvalidCache",
    "InvalidConfig",
    "InvalidKey",
    "LaneController",
    "LaneOptions",
    "Lanes",
    "LongestPrefix",
    "NoReplica",
    "PeekConfig",
    "PeekError",
    "PeekPolicy",
    "PendingRequest",
    "PendingTree",
    "Plan",
    "Planner",
    "PlannerBusy",
    "PlannerStats",
    "PolicyFault",
    "QueueFull",
    "ShortestPrefill",
    "UnknownReplica",
    "UnknownRequest",
    "WaitingQueue",
    "WorkloadError",
    "__version__",
    "backend",
    "fleet",
    "offline",
]


def backend() -> str:
    """Return "compiled" if the hot modules are mypyc extensions, "interpreted" if they run as Python."""
    return "compiled" if _keys.COMPILED else "interpreted"
