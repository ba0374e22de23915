"""Offline scheduling: order a batch whose prompts are all known before the first prompt runs.

`reordering` computes the order, `formats` reads and writes the lines of batch files, and `scale` computes the
same order beyond one process.  `formats` and `scale` import the algorithms, never the other way round.
"""

from peek.offline.block_keys import block_keys
from peek.offline.engines import generate_sglang, generate_vllm
from peek.offline.reordering import Group, Reordering, reorder
from peek.offline.replicas import Share
from peek.offline.waves import ShadowCache, Waves

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
]
