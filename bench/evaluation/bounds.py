"""An offline bound: the hit of the best possible eviction in the order of a finished run.

Belady's rule (drop what is needed furthest in the future) on blocks of 16 tokens, with the whole arena as
cache.  No room is kept for running requests and answers, so no eviction policy can do better in that order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from heapq import heappop, heappush

from peek.simulation.engines import Job
from peek.simulation.workload import Workload
from peek.trie.keys import SYMBOL_BYTES

BLOCK_TOKENS = 16
NEVER = 1 << 60


def belady_hit(workload: Workload, jobs: Sequence[Job]) -> float:
    """Return cached / prompt tokens of the requests after the warm-up.  O(n log n) for n blocks."""
    ordered = sorted(jobs, key=lambda job: job.admitted_s)
    prompts = _chained(ordered)
    uses: defaultdict[int, deque[int]] = defaultdict(deque)  # block -> requests that will use it
    for index, blocks in enumerate(prompts):
        for block in blocks:
            uses[block].append(index)
    measured = {request.request_id for request in workload.requests[workload.warmup :]}
    due: dict[int, int] = {}  # cached block -> its next use
    heap: list[tuple[int, int]] = []
    hit = total = 0
    for job, blocks in zip(ordered, prompts, strict=True):
        cached = next((i for i, block in enumerate(blocks) if block not in due), len(blocks))
        if job.request_id in measured:
            hit += min(cached * BLOCK_TOKENS, job.prompt_tokens - 1)
            total += job.prompt_tokens
        for block in blocks:
            uses[block].popleft()
            due[block] = uses[block][0] if uses[block] else NEVER
            heappush(heap, (-due[block], block))
        while len(due) > workload.arena_tokens // BLOCK_TOKENS:
            furthest, block = heappop(heap)
            if due.get(block) == -furthest:
                del due[block]
    return hit / total if total else 0.0


def _chained(jobs: Sequence[Job]) -> list[list[int]]:
    """Return each prompt as block numbers; a block's number stands for the whole prompt up to its end."""
    known: dict[tuple[int, bytes], int] = {}
    step = BLOCK_TOKENS * SYMBOL_BYTES
    prompts = []
    for job in jobs:
        blocks = [-1]
        key = job.request.key
        for start in range(0, len(key) - step + 1, step):
            blocks.append(known.setdefault((blocks[-1], key[start : start + step]), len(known)))
        prompts.append(blocks[1:])
    return prompts
