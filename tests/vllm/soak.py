"""A long run of vLLM's real scheduler with `peek` on it, two steps deep: is anything lost or kept?

    make soak-vllm                                        (100,000 requests)
    PYTHONPATH=tests OMP_NUM_THREADS=1 python tests/vllm/soak.py [--requests 5000] [--sync]

A cache of 400 blocks for 16 seats and about 200 waiting, so blocks are evicted and requests preempted all
the time.  Every twentieth step vLLM is asked what it would find in its cache for everybody that waits, which
must be what the plan counts on.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any

from support.traffic import Arrival, Soak
from vllm_lab import free_blocks, hash_lookahead, make_request, make_scheduler, vllm
from vllm_plays import Stepper
from vllm_small import compared

BLOCKS = 400
CHECK_EVERY = 20


def soaked(requests: int, asynchronous: bool, policy: str) -> Soak:
    from peek.adapters.vllm import PeekAsyncScheduler, PeekScheduler

    engine = make_scheduler(
        PeekAsyncScheduler if asynchronous else PeekScheduler,
        BLOCKS,
        max_num_seqs=16,
        max_num_batched_tokens=512,
        asynchronous=asynchronous,
        options={"policy": policy},
    )
    stepper = Stepper(engine, asynchronous)

    def make(new: Arrival) -> Any:
        more = {"lora": new.lora, "cache_salt": new.salt, "ahead": hash_lookahead(engine)}
        return make_request(new.name, new.tokens, new.max_tokens, arrival_time=stepper.now, **more)

    def compare() -> None:
        if stepper.at % CHECK_EVERY == 0:
            for anew, mine, truth in (compared(engine) or {}).values():
                soak.compare(mine if mine == anew else -1, truth)

    soak = Soak(requests, stepper, make, lambda: len(engine.waiting), compare)
    soak.run()
    engine.schedule()  # the adapter learns that the last one has left
    return soak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--sync", action="store_true", help="the synchronous scheduler, one step deep")
    parser.add_argument("--policy", default="peek")
    asked = parser.parse_args()
    logging.disable(logging.INFO)
    soak = soaked(asked.requests, not asked.sync, asked.policy)
    engine = soak.stepper.engine
    adapter = engine.peek.adapter
    left = {
        "blocks leaked": BLOCKS - 1 - free_blocks(engine),
        "known to vLLM": len(engine.requests) + len(adapter._keys),
        "symbols kept": len(adapter.mirror),
    }
    title = f"vLLM {vllm.__version__}, {'sync' if asked.sync else 'async'}, {asked.policy}"
    sys.exit(soak.verdict(title, engine.peek, left))


if __name__ == "__main__":
    main()
