"""Queue-informed scheduling and eviction for LLM serving engines.

The public names, nothing else.  Engines are wired in by `peek.adapters`, which this module does not
import.
"""

from peek import fleet, offline
from peek._version import __version__
from peek.config import PRESETS, PeekConfig
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
from peek.eviction.base import EvictionPolicy
from peek.eviction.demand import DemandEviction
from peek.planner import Plan, Planner, PlannerStats
from peek.policy.base import AdmissionPolicy, Cycle
from peek.policy.clpm import ClpmScheduler
from peek.policy.dfs_weight import DfsWeight
from peek.policy.fcfs import FirstCome
from peek.policy.hrrn import Hrrn
from peek.policy.lanes import CycleLanes, LaneController
from peek.policy.lpm import LongestPrefix, ShortestPrefill
from peek.policy.priority_index import PriorityIndex
from peek.policy.response_ratio import ClusterResponseRatio
from peek.protocols import CacheTree, CacheView, WaitingQueue
from peek.request import PendingRequest
from peek.trie import keys as _keys
from peek.trie.dual_walk import DualWalk
from peek.trie.pending_tree import PendingTree
from peek.trie.signals import Cluster

__all__ = [
    "PRESETS",
    "AdmissionPolicy",
    "CacheTree",
    "CacheView",
    "ClpmScheduler",
    "Cluster",
    "ClusterResponseRatio",
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
    "LongestPrefix",
    "NoReplica",
    "PeekConfig",
    "PeekError",
    "PendingRequest",
    "PendingTree",
    "Plan",
    "Planner",
    "PlannerBusy",
    "PlannerStats",
    "PolicyFault",
    "PriorityIndex",
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
    """ "compiled" if the hot modules are mypyc extensions, "interpreted" if they run as Python."""
    return "compiled" if _keys.COMPILED else "interpreted"
