"""Makes rigs of `peek.timing` from the work sets of the benchmarks."""

from __future__ import annotations

import numpy as np

from bench.worksets import WorkSet
from peek.simulation.caches import RadixCache
from peek.timing import Rig, random_key


def rig_of(work: WorkSet, label: str) -> Rig:
    """Make a rig in which all of a work set waits and the cache holds every second prefix."""
    return Rig(work.packed(), half_cached(work), label, work.prefix_len)


def half_cached(work: WorkSet) -> RadixCache:
    """Make a cache in which two finished requests per second prefix have left their tokens."""
    cache = RadixCache(1)
    rng = np.random.default_rng(1)
    for prefix in work.prefixes()[::2]:
        for _ in range(2):
            cache.insert(prefix + random_key(rng, 64), "")
    return cache
