"""A long run of SGLang's real cache, policy and `PrefillAdder` with `peek` on them: is anything lost or kept?

    make soak-sglang                                      (100,000 requests)
    PYTHONPATH=tests OMP_NUM_THREADS=1 python tests/sglang/soak.py [--requests 5000] [--core rust]

A pool of 6,400 tokens for 40 seats and about 200 waiting, chunked prefill, results one batch late, so that
requests are evicted and retracted all the time.  At every twentieth plan SGLang's `match_prefix` is asked
about everybody that waits, which must be what the plan counted on.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any

from sglang_lab import CORES, VERSION, leaked, make_request, make_world, stock_match
from sglang_small import attach
from sglang_stepper import Stepper
from sglang_tree import locked
from support.traffic import Arrival, Soak

SLOTS, SEATS = 6400, 40
RESERVED = 0.05
"""The share of the tokens still to be generated that an admission reserves, at the least."""
CHECK_EVERY = 20


def soaked(requests: int, core: str | None, policy: str) -> Soak:
    world = make_world(SLOTS, core=core, max_running=SEATS)
    beside = attach(world, policy, strict=False)
    limits: Any = {"chunk": 256, "max_running": SEATS, "max_prefill_tokens": 1024, "ratio": RESERVED}
    stepper = Stepper(world, overlap=True, **limits)
    planned, plans = world.policy.calc_priority, [0]

    def make(new: Arrival) -> Any:
        arrival = stepper.now + 1e-6 * soak.traffic.made
        more = {"extra_key": new.lora, "cache_salt": new.salt}
        return make_request(new.name, new.tokens, new.max_tokens, arrival=arrival, **more)

    def fall() -> None:
        stepper.ratio = max(RESERVED, 0.99 * stepper.ratio)  # a retraction raises it, SGLang lets it fall

    def calc_priority(queue: list[Any], *args: Any, **kwargs: Any) -> Any:
        answer = planned(queue, *args, **kwargs)
        plans[0] += 1
        if plans[0] % CHECK_EVERY == 0 and len(queue) >= 2:
            # All answers first: asking SGLang splits nodes.
            expected = [int(beside.adapter.planner.cached_len(request.rid)) for request in queue]
            for request, mine in zip(queue, expected, strict=True):
                most = len(request.origin_input_ids) + len(request.output_ids) - 1
                soak.compare(mine, min(stock_match(world, request), most))
        return answer

    world.policy.calc_priority = calc_priority
    soak = Soak(requests, stepper, make, lambda: len(stepper.waiting_queue), fall, vocabulary=30000)
    soak.run()
    beside.adapter.order([])
    return soak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--core", choices=[core for core in CORES if core], default=None)
    parser.add_argument("--policy", default="peek")
    asked = parser.parse_args()
    logging.disable(logging.INFO)
    soak = soaked(asked.requests, asked.core, asked.policy)
    world, adapter = soak.stepper.world, soak.stepper.beside.adapter
    left = {
        "slots leaked": leaked(world),
        "slots locked": locked(world),
        "known to the adapter": len(adapter._waiting) + len(adapter._in_flight),
    }
    title = f"SGLang {VERSION}, {world.core or 'radix cache'}, {asked.policy}"
    sys.exit(soak.verdict(title, soak.stepper.beside, left))


if __name__ == "__main__":
    main()
