# ruff: noqa: T201
"""300 requests of 30 tenants at once: orders through SGLang's real cache, policy and `PrefillAdder`.

    OMP_NUM_THREADS=1 python tests/sglang/bench_order.py [--core python|rust]

2,000-token prompts (1,900 shared by a tenant), 8 tokens out, 16 seats, a cache of 9,000 tokens, results one
batch late (overlap).  A wait is in turns of the event loop; nothing in here depends on time.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import numpy as np
from sglang_lab import CORES, POLICIES, VERSION, leaked, make_request, make_world
from sglang_small import attach
from sglang_stepper import Stepper

REQUESTS, TENANTS, SHARED, OWN = 300, 30, 1900, 100
STOCK = [(name, limit) for name in POLICIES for limit in (True, False) if limit or name in ("lpm", "hrrn")]
LABELS = ("clpm+gm+dl+pe", "peek")


def prompts(seed: int = 5) -> list[list[int]]:
    rnd = random.Random(seed)
    shared = [[rnd.randrange(3, 30000) for _ in range(SHARED)] for _ in range(TENANTS)]
    tenants = [rnd.randrange(TENANTS) for _ in range(REQUESTS)]
    return [shared[tenant] + [rnd.randrange(3, 30000) for _ in range(OWN)] for tenant in tenants]


def play(policy: str, core: str | None, limit: bool = True, label: str | None = None) -> dict[str, float]:
    """Cache hit, and mean, p99 and longest wait.

    Args:
        policy: SGLang's own policy.
        core: of the unified cache.
        limit: False lifts the 128 waiting requests beyond which LPM and HRRN sort nothing.
        label: of a policy of `peek` in its place.
    """
    world = make_world(9000, policy=policy, core=core)
    if not limit:
        world.policy._determine_active_policy = lambda queue: world.policy.policy
    beside: Any = attach(world, label) if label else None
    stepper = Stepper(world, max_running=16, overlap=True)
    for i, tokens in enumerate(prompts()):
        stepper.add(make_request(f"r{i}", tokens, 8, arrival=1e-6 * (i + 1)))
    stepper.run_out(20_000)
    assert leaked(world) == 0
    assert beside is None or beside.shield.fallbacks == 0
    first = [record.admissions[0] for record in stepper.records.values()]
    waits = np.array([admission.step for admission in first])
    return {
        "hit": sum(admission.cached for admission in first) / (REQUESTS * (SHARED + OWN)),
        "mean": float(waits.mean()),
        "p99": float(np.percentile(waits, 99)),
        "max": float(waits.max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--core", choices=[core for core in CORES if core], default=None)
    core = parser.parse_args().core
    print(f"SGLang {VERSION}, core {core or 'default'}")
    print("policy                 hit   wait: mean   p99   max")
    rows = [(name if limit else f"{name}, no limit", play(name, core, limit)) for name, limit in STOCK]
    rows += [(label, play("fcfs", core, label=label)) for label in LABELS]
    for name, row in rows:
        print(f"{name:20} {row['hit']:.3f}   {row['mean']:10.0f} {row['p99']:5.0f} {row['max']:5.0f}")


if __name__ == "__main__":
    main()
