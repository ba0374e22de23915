"""What a flood of requests does to the others: their TTFT under each policy, against arrival order.

    python -m bench.floods [--policies fcfs+lru lpm-nolimit+lru peek index] [--seed 1]

For four minutes others send 0.4 prompts a second of 2,048 tokens that nobody shares, and one tenant floods.
Simulated engines with 32 seats and an arena of 120,000 tokens; arrivals are Poisson.
"""

from __future__ import annotations

import argparse
from random import Random

import numpy as np

from bench.builds import require_compiled
from bench.evaluation.plans import SIMULATED
from bench.evaluation.record import play
from peek.simulation.cost import CostModel
from peek.simulation.workload import SYMBOL_BYTES, SimRequest, Workload, unique_tokens

LASTS_S = 240.0
OTHERS_PER_S = 0.4
FLOODS = {
    "one hot prefix of 4,096, 6/s, 512 out": (6.0, 1, 4096, 16, 512),
    "four hot prefixes of 4,096, 4/s, 512 of their own, 256 out": (4.0, 4, 4096, 512, 256),
    "groups of three, 64 + 64 tokens, 6/s, 512 out": (6.0, 0, 64, 64, 512),
}
"""Requests a second; hot prefixes (0: every three requests share a new one); their, own, answer's tokens."""


def flooded(name: str, seed: int) -> Workload:
    per_s, hot, shared, own, answer = FLOODS[name]
    rng = Random(seed)
    requests: list[SimRequest] = []
    for kind, rate in (("other", OTHERS_PER_S), ("flood", per_s)):
        at_s = rng.expovariate(rate)
        number = 0
        while at_s < LASTS_S:
            serial = len(requests)
            key = unique_tokens(f"own/{serial}", serial, 2048 if kind == "other" else own)
            if kind == "flood":
                group = number % hot if hot else number // 3
                key = unique_tokens(f"shared/{group}", 100_000 + group, shared) + key
            length, output = len(key) // SYMBOL_BYTES, 64 if kind == "other" else answer
            requests.append(SimRequest(f"{kind}-{number}", at_s, key, length, output))
            at_s += rng.expovariate(rate)
            number += 1
    requests.sort(key=lambda request: request.arrival_s)
    return Workload(
        name=name,
        load="",
        seed=seed,
        requests=tuple(requests),
        warmup=0,
        max_running=32,
        arena_tokens=120_000,
    )


def others_wait(engine: str, workload: Workload, label: str) -> tuple[float, float]:
    """Mean and longest TTFT of the others, in seconds."""
    played, _ = play(engine, workload, label, CostModel())
    ttft = [j.first_token_s - j.arrival_s for j in played.jobs.values() if j.request_id.startswith("other")]
    return float(np.mean(ttft)), max(ttft)


def main() -> None:
    require_compiled()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--policies", nargs="*", default=["fcfs+lru", "lpm-nolimit+lru", "peek", "index"])
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print("| flood | engine | " + " | ".join(f"`{label}`" for label in arguments.policies) + " |")
    print("|---" * (len(arguments.policies) + 2) + "|")
    for name in FLOODS:
        workload = flooded(name, arguments.seed)
        for engine in SIMULATED:
            found = [others_wait(engine, workload, label) for label in arguments.policies]
            cells = [f"{mean:.0f} / {longest:.0f}" for mean, longest in found]
            print(f"| {name} | {engine.removeprefix('simulated-')} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
