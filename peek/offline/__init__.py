"""Offline scheduling: the whole batch is known before the first prompt runs.

The algorithms are here.  `formats` reads batch files for them, `scale` gives the same order for batches
beyond one process; both import the algorithms, never the other way round.
"""

from peek.offline.block_keys import block_keys
from peek.offline.engines import generate_sglang, generate_vllm
from peek.offline.reordering import Group, Reordering, reorder
from peek.offline.replicas import Share, split
from peek.offline.shadow_cache import ShadowCache
from peek.offline.waves import Waves

__all__ = [
    "Group",
    "Reordering",
    "ShadowCache",
    "Share",
    "Waves",
    "block_keys",
    "generate_sglang",
    "generate_vllm",
    "reorder",
    "split",
]
