"""Tools for authors of policies and cache views: property tests in a few lines, and the naive twins.

`check_policy` and `check_cache_view` look for a queue that your code gets wrong, and show the smallest.
`peek.testing.strategies` draws queues, caches and histories for your own properties.  The naive twins are the
specification in code.  Drawing needs hypothesis, which is imported on first use.  See docs/testing.md.
"""

from peek.testing import strategies
from peek.testing.hypotheses import MissingHypothesis
from peek.testing.policies import check_policy
from peek.testing.scenes import Arrival, History, Prepared, Replay, Scene, Step
from peek.testing.twins import NaiveCache, NaiveCacheView, NaivePendingTree, Pages, naive_walk
from peek.testing.views import check_cache_view

__all__ = [
    "Arrival", "History", "MissingHypothesis", "NaiveCache", "NaiveCacheView", "NaivePendingTree", "Pages",
    "Prepared", "Replay", "Scene", "Step", "check_cache_view", "check_policy", "naive_walk", "strategies",
]  # fmt: skip
