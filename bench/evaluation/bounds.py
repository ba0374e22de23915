"""An offline bound: the hit that the best possible eviction reaches in the order of a finished run.

Belady's rule (drop what is needed furthest in the future) on blocks of 16 tokens, with the whole arena as
cache: nothing is held back for running requests and their answers, so no eviction policy can do better
in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from peek.simulation.engine import Job
from peek.simulation.workload import SYMBOL_BYTES, Workload

BLOCK_TOKENS = 16
NEVER = 1 << 60


def belady_hit(workload: Workload, jobs: Sequence[Job]) -> float:
    """Cached / prompt tokens behind the warm-up.  O(n log n) for n blocks of prompts."""
    ordered = sorted(jobs, key=lambda job: job.admitted_s)
    prompts = _chained(ordered)
    uses = _next_uses(prompts)
    rank = {request.request_id: index for index, request in enumerate(workload.requests)}
    capacity = workload.arena_tokens // BLOCK_TOKENS
    due: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    hit = total = at = 0
    for job, blocks in zip(ordered, prompts, strict=True):
        cached = next((i for i, block in enumerate(blocks) if block not in due), len(blocks))
        if rank[job.request_id] >= workload.warmup:
            hit += min(cached * BLOCK_TOKENS, job.prompt_tokens - 1)
            total += job.prompt_tokens
        for block in blocks:
            due[block] = uses[at]
            heappush(heap, (-uses[at], block))
            at += 1
        while len(due) > capacity:
            furthest, block = heappop(heap)
            if due.get(block) == -furthest:
                del due[block]
    return hit / total if total else 0.0


def _chained(jobs: Sequence[Job]) -> list[list[int]]:
    """Each prompt as block numbers; a block's number stands for all of the prompt up to its end."""
    known: dict[tuple[int, bytes], int] = {}
    step = BLOCK_TOKENS * SYMBOL_BYTES
    prompts = []
    for job in jobs:
        blocks: list[int] = []
        key, before = job.request.key, -1
        for start in range(0, len(key) - step + 1, step):
            before = known.setdefault((before, key[start : start + step]), len(known))
            blocks.append(before)
        prompts.append(blocks)
    return prompts


def _next_uses(prompts: list[list[int]]) -> list[int]:
    """For every access in order, when the same block is accessed next (in requests)."""
    flat = [(index, block) for index, blocks in enumerate(prompts) for block in blocks]
    following: dict[int, int] = {}
    uses = [NEVER] * len(flat)
    for at in range(len(flat) - 1, -1, -1):
        index, block = flat[at]
        uses[at] = following.get(block, NEVER)
        following[block] = index
    return uses
