"""The simulated radix engine against SGLang's own cache, policy and admission, in the same virtual time."""

from __future__ import annotations

from random import Random

import pytest
import sglang_versions as versions
from sglang_lab import make_world
from sglang_virtual import VirtualSglang

from peek.config import PeekConfig
from peek.simulation.cost import CostModel
from peek.simulation.engines import Job, SimEngine
from peek.simulation.simulate import PlanMeter, make_engine
from peek.simulation.workload import SimRequest, Workload, pack_tokens

POLICIES = {
    "fcfs": "fcfs+lru",
    "lpm": "lpm+lru",
    "hrrn": "hrrn-limit+lru",
    "shortest-prefill-first": "spf+lru",
}


def roomy(seed: int) -> Workload:
    """Few prompts, many of them equal, a few seats, and memory for all; names in order of arrival."""
    draws = Random(seed)
    requests, at_s = list[SimRequest](), 0.0
    for number in range(14):
        at_s += draws.choice([0.0, 0.02, 0.05, 0.3, 5.0])
        key = [draws.randint(1, 5)] * draws.choice([20, 60, 90]) + [9] * draws.choice([0, 3, 16, 40])
        output = draws.choice([1, 5, 12, 30])
        requests.append(SimRequest(f"r{number:02}", at_s, pack_tokens(key), len(key), output))
    return Workload(
        name="roomy", load="heavy", seed=seed, requests=requests, warmup=0, max_running=draws.randint(1, 6),
        arena_tokens=30_000,
    )  # fmt: skip


def fates(engine: SimEngine) -> list[tuple[str, float, float, int]]:
    def fate(job: Job) -> tuple[str, float, float, int]:
        return job.request_id, round(job.admitted_s, 6), round(job.finished_s, 6), job.cached_at_admission

    return list(map(fate, engine.run()))


@pytest.mark.skipif(not versions.COUNTS_TOKENS, reason="has no hrrn, and counts the last token as cached")
@pytest.mark.parametrize("policy", POLICIES)
def test_with_room_for_all_every_request_has_the_same_fate(policy: str) -> None:
    config = PeekConfig.from_label(POLICIES[policy])
    for seed in range(60):
        workload = roomy(seed)
        world = make_world(workload.arena_tokens, policy=policy, max_running=workload.max_running)
        ours = make_engine(config, "radix", workload, CostModel(), PlanMeter(None))
        assert fates(VirtualSglang(workload, CostModel(), world)) == fates(ours), seed
