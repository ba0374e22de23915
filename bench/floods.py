"""What a flood of requests does to the others: their TTFT under each policy, against arrival order.

    python -m bench.floods [--policies fcfs+lru lpm-nolimit+lru peek] [--seed 1] [--tenants]

The floods are those of `bench.evaluation.traffic`: for four minutes others send 0.4 prompts a second of 2,048
tokens that nobody shares, and one tenant floods.  Simulated engines with 32 seats and an arena of 120,000
tokens.  With `--tenants` the one who floods and the others are named, and policies that know tenants let them
take turns.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from bench.builds import require_compiled
from bench.evaluation.plans import FLOODS, SIMULATED
from bench.evaluation.record import play
from bench.evaluation.traffic import workload
from peek.simulation.cost import CostModel
from peek.simulation.workload import Workload

SAID = {
    "flood-one-prefix:new": "one hot prefix of 4,096, 6/s, 512 out",
    "flood-four-prefixes:new": "four hot prefixes of 4,096, 4/s, 512 of their own, 256 out",
    "flood-small-groups:new": "groups of three, 64 + 64 tokens, 6/s, 512 out",
}


def others_wait(engine: str, workload: Workload, label: str) -> tuple[float, float]:
    """Mean and longest TTFT of the others, in seconds."""
    played, _ = play(engine, workload, label, CostModel())
    ttft = [j.first_token_s - j.arrival_s for j in played.jobs.values() if j.request_id.startswith("other")]
    return float(np.mean(ttft)), max(ttft)


def named(workload: Workload) -> Workload:
    """The same requests, accounted to the one who floods or to the others."""
    requests = [
        replace(each, tenant="others" if each.request_id.startswith("other") else "flood")
        for each in workload.requests
    ]
    return replace(workload, requests=requests)


def main() -> None:
    require_compiled()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--policies", nargs="*", default=["fcfs+lru", "lpm-nolimit+lru", "peek"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tenants", action="store_true")
    arguments = parser.parse_args()
    print("| flood | engine | " + " | ".join(f"`{label}`" for label in arguments.policies) + " |")
    print("|---" * (len(arguments.policies) + 2) + "|")
    for stream in FLOODS:
        kind, load = stream.split(":")
        flooded, name = workload(kind, load, "", 0, arguments.seed), SAID[stream]
        if arguments.tenants:
            flooded = named(flooded)
        for engine in SIMULATED:
            found = [others_wait(engine, flooded, label) for label in arguments.policies]
            cells = [f"{mean:.0f} / {longest:.0f}" for mean, longest in found]
            print(f"| {name} | {engine.removeprefix('simulated-')} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
