"""The engines that bench.tiers and bench.prefetch compare: what they load, foretell and keep."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import erfc, exp, isnan, log, sqrt
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent))  # behind everything, as in test_evaluation_pages

from bench.arena.kinds import build
from bench.prefetch import FORETOLD, MODES, PrefetchingEngine, accuracy, run
from bench.tiered import Tier, TieredEngine, tier_hit
from bench.tiers import COMPUTED_PER_S, TIMES, ReturnsExpected, ReturnsKnown
from peek.config import PeekConfig
from peek.planner import Planner
from peek.simulation.engines import Job, StepWork
from peek.simulation.simulate import figures, make_planner, simulate
from peek.simulation.workload import SimRequest, Workload, pack_tokens

ARENA = 24_000
TIER = Tier(8 * ARENA, 4 * COMPUTED_PER_S)


def crowd() -> Workload:
    """Sessions of code, more than a device of `ARENA` tokens holds."""
    drawn = build("code", 11, ARENA)
    kept = sorted(drawn.requests, key=lambda each: int(each.request_id.rpartition("-")[2]))[:120]
    return replace(drawn, requests=[replace(each, arrival_s=0.0) for each in kept], max_running=4)


def planner() -> Planner:
    made = make_planner(PeekConfig.from_label("peek"), "blocks", None)
    assert made is not None
    return made


def tenants(order: str) -> Workload:
    """A request of each tenant in order, of 256 shared and 32 own tokens; the device holds one of them."""
    prompts = (["ABC".index(name) + 1] * 256 + [10 + number] * 32 for number, name in enumerate(order))
    requests = [SimRequest(f"{number}", 0.0, pack_tokens(key), 288, 4) for number, key in enumerate(prompts)]
    return Workload(
        name="by hand", load="heavy", seed=7, requests=requests, warmup=0, max_running=1, arena_tokens=352
    )


def test_what_the_cache_has_lost_is_loaded_from_a_tier() -> None:
    """Arrival order keeps nothing of three tenants: all but the first of each find their prefix there."""
    three = tenants("ABCABCAB")
    alone = simulate(three, "fcfs+lru", "blocks")
    tiers = [TieredEngine(three, None, TIMES, tier=Tier(100_000, speed)) for speed in (1e6, 5 * 256.0)]
    run, slow = [figures(three, engine.run()) for engine in tiers]
    assert (run["cache_hit"], tier_hit(three, tiers[0])) == (0.0, alone["ideal_hit"])
    assert run["prefill_tokens"] == alone["prefill_tokens"] - 5 * 256
    assert 8 / slow["throughput_rps"] - 8 / run["throughput_rps"] == pytest.approx(1.0, rel=0.01)


def test_what_is_loaded_makes_room_in_the_tier_first() -> None:
    """A tier for two prompts: while B is loaded C falls in, and A need not go."""
    engine = TieredEngine(tenants("ABCBA"), None, TIMES, tier=Tier(2 * 288, 1e6))
    jobs = engine.run()
    assert [job.cached_at_admission + engine.loaded[job.request_id] for job in jobs] == [0, 0, 0, 256, 256]


def times(jobs: list[Job]) -> list[tuple[float, float]]:
    return [(job.first_token_s, job.finished_s) for job in jobs]


def test_without_prefetching_the_engine_is_the_one_with_a_tier() -> None:
    plain = TieredEngine(crowd(), planner(), TIMES, tier=TIER)
    jobs = plain.run()
    engine = PrefetchingEngine(crowd(), planner(), TIMES, tier=TIER, mode="none")
    assert times(engine.run()) == times(jobs)
    assert engine.shares[0] == 0
    assert engine.shares[1] == sum(plain.loaded.values()) > 0
    assert engine.stalled_s >= engine.shares[1] / TIER.tokens_per_s


@pytest.mark.parametrize("mode", MODES[1:])
def test_what_is_prefetched_no_step_waits_for(mode: str) -> None:
    loading: list[float] = []

    class Watched(PrefetchingEngine):
        def complete(self, work: StepWork) -> None:
            loading.append(self.loading_s)

    engine = Watched(crowd(), planner(), TIMES, tier=TIER, mode=mode)
    jobs = engine.run()
    assert sum(engine.shares) == sum(engine.loaded.values())
    assert engine.shares[0] > 0
    assert not any(job.preemptions for job in jobs)
    assert sum(loading) == pytest.approx(engine.stalled_s)
    assert engine.stalled_s == pytest.approx(engine.shares[1] / TIER.tokens_per_s)


def test_only_a_run_with_a_planner_foretells() -> None:
    for policy in ("fcfs+lru", "peek"):
        found = run(crowd(), policy, "plan", TIER)
        assert [isnan(found[f"foretold {k}"]) for k in FORETOLD] == [policy == "fcfs+lru"] * len(FORETOLD)


def test_accuracy_counts_those_that_are_admitted_next() -> None:
    admitted = {"a": 0.0, "b": 1.0, "c": 1.0, "d": 2.0}
    jobs = [SimpleNamespace(request_id=name, admitted_s=at_s) for name, at_s in admitted.items()]
    assert accuracy([(0.0, ["a", "b"])], jobs, 1) == 1.0
    assert accuracy([(0.0, ["b", "a"])], jobs, 1) == 0.0
    assert accuracy([(0.0, ["b", "a"])], jobs, 2) == 1.0
    assert accuracy([(0.5, ["c"])], jobs, 1) == 1.0, "admitted with b"
    assert accuracy([(0.5, ["d", "b"])], jobs, 4) == 1.0, "a head may be shorter"
    assert accuracy([(0.5, ["d", "c"])], jobs, 2) == 0.5
    assert accuracy([], jobs, 1) == 0.0


def test_pauses_end_at_the_rate_of_their_distribution() -> None:
    """The rate, summed up to a time, is minus the logarithm of the share of longer pauses."""
    engine = ReturnsExpected(crowd(), None, TIMES)
    at_s = np.geomspace(1e-3, 20.0, 4000)
    total = np.trapezoid([engine._hazard(each) for each in at_s], at_s)
    longer = 0.5 * erfc(log(20.0 / 2.5) / 0.9 / sqrt(2.0))
    assert exp(-total) == pytest.approx(longer, rel=1e-3)


@pytest.mark.parametrize("kind", [ReturnsKnown, ReturnsExpected])
def test_a_session_that_returns_is_kept_before_one_that_returns_later(kind: type[ReturnsKnown]) -> None:
    engine = kind(crowd(), None, TIMES)
    first, later, alone = 1, 2, 3
    engine._used = dict.fromkeys((first, later, alone), 0.0)
    engine._pauses = {first: {"x": (99.0, 99.5)}, later: {"y": (99.0, 120.0)}}
    engine.now = 100.0
    assert engine._soon(first) > engine._soon(later) > engine._soon(alone)
