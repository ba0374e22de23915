"""Measures how policies divide the work between a noisy tenant and quiet ones, and the cost of turns.

    python -m bench.neighbours [--seeds 1 2 3]

Four quiet tenants send 1.2 requests a second each, a noisy one 8.  Each tenant has ten prefixes of 2,048
tokens; a prompt adds 256 tokens of its own, and an answer has 128.  The simulated engines have an arena of
100,000 tokens and 64 seats, and are beyond saturation.  Two figures are of the 60th to 240th second, while
requests come: the noisy tenant's part of the work (uncached tokens, and two for each token of an answer), and
Jain's index over each tenant's work divided by its fair part (1: all equal).  The third is the mean TTFT.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from bench.builds import require_compiled
from bench.evaluation.plans import SIMULATED
from bench.evaluation.record import play
from bench.evaluation.traffic import Source, Traffic, mixed
from peek.policy.default.tenants import DECODE_WEIGHT
from peek.simulation.cost import CostModel

FROM_S, TO_S = 60.0, 240.0
QUIET, NOISY = 1.2, 8.0
NAMES = ("noisy", "quiet1", "quiet2", "quiet3", "quiet4")


SOURCES = tuple(
    Source(name, NOISY if name == "noisy" else QUIET, 256, 128, prefixes=10, prefix=2048, pick="zipf")
    for name in NAMES
)


def shares(engine: str, load: str, label: str, seed: int) -> tuple[float, float, float]:
    """Return the noisy tenant's share of the work, Jain's index, and the mean TTFT of all in seconds.

    Fair shares are max-min: a tenant that asks for less than a fair part leaves the rest to the others.
    """
    asked = replace(mixed(Traffic(SOURCES, 100_000, 64), "neighbours", load, seed), warmup=0)
    played, _ = play(engine, asked, label, CostModel())
    served, demand = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 0.0)
    for job in played.jobs.values():
        name = job.request_id.rpartition("-")[0]
        work = job.prompt_tokens - job.cached_at_admission + DECODE_WEIGHT * job.output_tokens
        if job.arrival_s < TO_S:
            demand[name] += work
        if FROM_S <= job.admitted_s < TO_S:
            served[name] += work
    fair = max_min({name: demand[name] * (TO_S - FROM_S) / TO_S for name in NAMES}, sum(served.values()))
    ratios = np.array([served[name] / fair[name] for name in NAMES])
    jain = ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())
    ttft = np.mean([job.first_token_s - job.arrival_s for job in played.jobs.values()])
    return served["noisy"] / sum(served.values()), float(jain), float(ttft)


def max_min(demand: dict[str, float], capacity: float) -> dict[str, float]:
    """Divide a capacity so that no part can grow without one that is no larger becoming smaller."""
    left, parts = dict(demand), {}
    while left:
        part = capacity / len(left)
        content = [name for name, wanted in left.items() if wanted <= part]
        for name in content or list(left):
            parts[name] = left.pop(name) if content else part
        capacity -= sum(parts[name] for name in content)
        if not content:
            break
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    seeds = parser.parse_args().seeds
    require_compiled()
    print("| engine | | noisy one's work | Jain's index | mean TTFT, s |")
    print("|---|---|---|---|---|")
    for engine in SIMULATED:
        for label, load in (
            ("fcfs+lru", "new"),
            ("lpm-nolimit+lru", "new"),
            ("peek", "new"),
            ("peek", "named"),
        ):
            share, jain, ttft = np.mean([shares(engine, load, label, seed) for seed in seeds], axis=0)
            said = f"`{label}`" + (", named" if load == "named" else "")
            name = engine.removeprefix("simulated-")
            print(f"| {name} | {said} | {100 * share:.0f} % | {jain:.3f} | {ttft:.1f} |", flush=True)


if __name__ == "__main__":
    main()
