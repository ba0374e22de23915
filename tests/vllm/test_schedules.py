"""Random schedules through the real Scheduler and KVCacheManager, as beside each engine."""

from __future__ import annotations

from support.alike_plays import AlikeInPlays
from vllm_lab import BLOCK
from vllm_small import lab

__all__ = ["lab"]


class TestPlays(AlikeInPlays):
    """On vLLM."""

    unit = BLOCK
