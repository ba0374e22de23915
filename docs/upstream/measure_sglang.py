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

from bench.evaluation.streams import context_tokens
from bench.kinds import ARENAS, JUDGING, KINDS, at_load, build
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
COLUMNS = ("ttft", "p99", "e2e", "hit")


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(JUDGING[:1]))
    parser.add_argument("--loads", nargs="*", type=float, default=[1.1, 1.5])
    asked = parser.parse_args()
    found: dict[tuple[str, bool], list[dict[str, float]]] = {order: [] for order in ORDERS}
    for kind, seed, load in product(asked.kinds, asked.seeds, asked.loads):
        workload = at_load(build(kind, seed, ARENAS[0]), load, "radix")
        rows = {order: play(workload, *order) for order in ORDERS}
        print(
            f"{kind} {load} {seed}",
            *(
                f"{o}{'' if lim else '+'} {r['ttft']:.1f}/{r['p99']:.1f}/{r['hit']:.2f}"
                for (o, lim), r in rows.items()
            ),
            flush=True,
        )
        if rows["fcfs", True]["ttft"] >= 1.0:
            for order, row in rows.items():
                found[order].append(row)
    base = found["fcfs", True]
    print(f"{len(base)} cells")
    for (order, limit), rows in found.items():
        over = {
            c: np.exp(np.mean([np.log(r[c] / b[c]) for r, b in zip(rows, base, strict=True)]))
            for c in COLUMNS[:3]
        }
        hit = np.mean([row["hit"] for row in rows])
        name = order if limit else f"{order}, no limit"
        print(f"| `{name}` | {over['ttft']:.2f} | {over['p99']:.2f} | {over['e2e']:.2f} | {hit:.2f} |")


if __name__ == "__main__":
    main()
