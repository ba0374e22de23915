# ruff: noqa: T201
"""Orders of the waiting queue on SGLang's real scheduling classes, in virtual time.

    python docs/upstream/overlay.py docs/upstream/sglang-0.5.23-aged-prefix.patch PATCHED
    PYTHONPATH=PATCHED:tests/sglang:. python docs/upstream/measure_sglang.py [--kinds rag chat] [--seeds 901]

Cache, policy, `PrefillAdder` and batches are SGLang's (`tests/sglang/sglang_virtual.py`); the times of rounds
are those of the evaluation's cost model.  Rows are geometric means over kinds, loads and seeds, each over
arrival order in the same cell.  Cells in which arrival order waits less than a second are left out.
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import numpy as np
from sglang_lab import make_world
from sglang_small import attach
from sglang_virtual import VirtualSglang

from bench.arena.kinds import ARENAS, JUDGING, KINDS, at_load, build
from bench.evaluation.streams import context_tokens
from peek.simulation.cost import cost_model_for
from peek.simulation.simulate import figures
from peek.simulation.workload import Workload

ORDERS = (
    ("fcfs", True),
    ("lpm", True),
    ("lpm", False),
    ("hrrn", True),
    ("hrrn", False),
    ("shortest-prefill-first", True),
    ("aged-prefix", True),
    ("peek", True),
)
"""The order, and whether SGLang's limit of 128 waiting requests holds where the order has one."""


def play(workload: Workload, order: str, limit: bool) -> dict[str, float]:
    """Mean and p99 TTFT and mean E2E in seconds, and the share of prompt tokens found in the cache."""
    context = context_tokens(workload)
    stock = "fcfs" if order == "peek" else order
    world = make_world(workload.arena_tokens, policy=stock, max_running=workload.max_running, context=context)
    if not limit:
        world.policy._determine_active_policy = lambda _queue: world.policy.policy
    beside: Any = attach(world, "peek") if order == "peek" else None
    run = figures(workload, VirtualSglang(workload, cost_model_for("w1c"), world).run())
    assert beside is None or beside.shield.fallbacks == 0
    ttft = run["ttft_s"]
    return {"ttft": ttft["mean"], "p99": ttft["p99"], "e2e": run["e2e_s"]["mean"], "hit": run["cache_hit"]}


def play_all(workload: Workload) -> dict[tuple[str, bool], dict[str, float]]:
    """All orders; none of them where the played scheduler runs out of slots under one."""
    rows = {}
    for order in ORDERS:
        try:
            rows[order] = play(workload, *order)
        except RuntimeError as error:
            print(
                f"left out: {workload.name} runs out of slots under {order[0]}: {str(error).splitlines()[0]}"
            )
            return {}
    return rows


def over(rows: list[dict[str, float]], base: list[dict[str, float]], column: str) -> tuple[float, float]:
    """Geometric mean and largest of a column's ratios."""
    ratios = [row[column] / other[column] for row, other in zip(rows, base, strict=True)]
    return float(np.exp(np.mean(np.log(ratios)))), max(ratios)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(JUDGING[:1]))
    parser.add_argument("--loads", nargs="*", type=float, default=[1.5])
    asked = parser.parse_args()
    found: dict[tuple[str, bool], list[dict[str, float]]] = {order: [] for order in ORDERS}
    for kind, seed, load in product(asked.kinds, asked.seeds, asked.loads):
        rows = play_all(at_load(build(kind, seed, ARENAS[0]), load, "radix"))
        if rows and rows["fcfs", True]["ttft"] >= 1.0:
            print(
                kind,
                load,
                seed,
                *(f"{name}: {row['ttft']:.2f}" for (name, _), row in rows.items()),
                flush=True,
            )
            for order, row in rows.items():
                found[order].append(row)
    base = found["fcfs", True]
    print(
        f"{len(base)} cells", "| policy | mean TTFT | p99 TTFT | worst p99 of a cell | E2E | hit |", sep="\n"
    )
    for (policy, limit), own in found.items() if base else ():
        (ttft, _), (p99, worst), (e2e, _) = (over(own, base, column) for column in ("ttft", "p99", "e2e"))
        hit = np.mean([row["hit"] for row in own])
        name = f"`{policy}`" if limit else f"`{policy}`, limit lifted"
        print(f"| {name} | {ttft:.2f} | {p99:.2f} | {worst:.1f} | {e2e:.2f} | {hit:.2f} |")


if __name__ == "__main__":
    main()
