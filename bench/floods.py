"""Measures how a flood of requests delays other requests: their TTFT under each policy.

    python -m bench.floods [--policies fcfs+lru lpm-nolimit+lru peek] [--seed 1] [--tenants]

For four minutes other tenants send 0.4 prompts a second of 2,048 tokens that share nothing, and one tenant
floods.  The flood is beyond saturation (`bench.evaluation.traffic`) or, with short answers, about at it.  The
simulated engines have 32 seats and an arena of 120,000 tokens.  With `--tenants` requests name their tenants,
so policies that know tenants give turns.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from bench.builds import require_compiled
from bench.evaluation.plans import NAMED, SIMULATED
from bench.evaluation.record import play
from bench.evaluation.traffic import TRAFFIC, Source, Traffic, mixed
from peek.simulation.cost import CostModel
from peek.simulation.workload import Workload


def steady(per_s: float) -> Traffic:
    """Return traffic with a flood of cached prompts that the engine can just serve."""
    others = TRAFFIC["flood-one-prefix"].sources[0]
    hot = Source("flood", per_s, own=32, output=64, prefixes=1, prefix=4096)
    return replace(TRAFFIC["flood-one-prefix"], sources=(others, hot))


FLOODS = {
    "one hot prefix of 4,096, 6/s, 512 out": TRAFFIC["flood-one-prefix"],
    "four hot prefixes of 4,096, 4/s, 512 of their own, 256 out": TRAFFIC["flood-four-prefixes"],
    "groups of three, 64 + 64 tokens, 6/s, 512 out": TRAFFIC["flood-small-groups"],
    "steady: one hot prefix, 12/s, 32 of their own, 64 out": steady(12.0),
    "steady: the same, 14/s": steady(14.0),
}


def waits(engine: str, workload: Workload, label: str, who: str = "other") -> tuple[float, float]:
    """Return mean and longest TTFT, in seconds, of all requests with an id that begins with `who`."""
    played, _ = play(engine, workload, label, CostModel())
    ttft = [j.first_token_s - j.arrival_s for j in played.jobs.values() if j.request_id.startswith(who)]
    return float(np.mean(ttft)), max(ttft)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--policies", nargs="*", default=["fcfs+lru", "lpm-nolimit+lru", "peek"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tenants", action="store_true")
    arguments = parser.parse_args()
    require_compiled()
    print("| flood | engine | " + " | ".join(f"`{label}`" for label in arguments.policies) + " |")
    print("|---" * (len(arguments.policies) + 2) + "|")
    for name, traffic in FLOODS.items():
        flooded = mixed(traffic, "flood", NAMED if arguments.tenants else "new", arguments.seed)
        for engine in SIMULATED:
            found = [waits(engine, flooded, label) for label in arguments.policies]
            cells = [f"{mean:.0f} / {longest:.0f}" for mean, longest in found]
            print(f"| {name} | {engine.removeprefix('simulated-')} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
