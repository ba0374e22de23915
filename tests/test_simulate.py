"""From names to figures: the worked check of both engines, the metrics, errors, and one real cell."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek.config import PRESETS
from peek.errors import WorkloadError
from peek.simulation.cells import cell
from peek.simulation.engines import Job
from peek.simulation.simulate import CACHES, PlanMeter, Target, figures, simulate
from peek.simulation.workload import SimRequest, Workload, pack_tokens, with_answers

both_kinds = pytest.mark.parametrize("cache", CACHES)


def workload(*requests: SimRequest, arena: int = 4096, seats: int = 8, unit: int = 1) -> Workload:
    return Workload(
        name="by hand", load="heavy", seed=7, requests=requests, warmup=0, max_running=seats,
        arena_tokens=arena, unit_tokens=unit,
    )  # fmt: skip


def asks(name: str, symbols: list[int], output: int = 4, at_s: float = 0.0, tokens: int = 0) -> SimRequest:
    return SimRequest(name, at_s, pack_tokens(symbols), tokens or len(symbols), output)


# -- the worked check ----------------------------------------------------------------------------------


def three_tenants(cache: str) -> Workload:
    """A1 B1 C1 A2 B2 C2 A3 B3: a tenant's prompts differ at their end, the cache holds one of them."""
    shared, own, arena = {"blocks": (256, 32, 352), "radix": (1900, 100, 2200)}[cache]
    return workload(*of_tenants("ABCABCAB", shared, own), arena=arena, seats=1)


def of_tenants(tenants: str, shared: int, own: int) -> list[SimRequest]:
    """A request of each tenant, in this order."""
    return [
        asks(f"{name}{number}", ["ABC".index(name) + 1] * shared + [10 + number] * own)
        for number, name in enumerate(tenants)
    ]


def hit_tokens(run: dict[str, Any], of: Workload) -> int:
    return round(run["cache_hit"] * sum(request.num_tokens for request in of.requests))


@both_kinds
def test_stock_caches_nothing_of_three_tenants_in_turn(cache: str) -> None:
    run = simulate(three_tenants(cache), "fcfs+lru", cache)
    assert (run["cache_hit"], run["finished"]) == (0.0, 8)


@pytest.mark.parametrize("label", ["peek", "clpm+gm", "clpm+gm+pe"])
@pytest.mark.parametrize(("cache", "tokens"), [("blocks", 1280), ("radix", 9500)])
def test_all_but_the_pioneers_of_three_tenants_hit(cache: str, tokens: int, label: str) -> None:
    tenants = three_tenants(cache)
    run = simulate(tenants, label, cache)
    assert hit_tokens(run, tenants) == tokens
    assert run["cache_hit"] == run["ideal_hit"]
    assert run["prefill_tokens"] == sum(request.num_tokens for request in tenants.requests) - tokens


# -- figures -------------------------------------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize("label", PRESETS)
def test_every_policy_answers_all(cache: str, label: str) -> None:
    run = simulate(three_tenants(cache), label, cache)
    given_back = (run["workload"], run["load"], run["policy"], run["seed"])
    assert given_back == ("by hand", "heavy", label, 7)
    assert run["requests"] == run["finished"] == 8
    assert 0.0 <= run["cache_hit"] <= run["ideal_hit"] < 1.0


def percentile(values: list[float], percent: int) -> float:
    """The value at its place in the order, between two neighbours in proportion."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


SPANS = st.floats(0.001, 100.0)
LIVES = st.tuples(SPANS, SPANS, SPANS, SPANS, st.integers(1, 5), st.integers(1, 50), st.integers(0, 50))


@st.composite
def finished_jobs(draw: st.DrawFn) -> list[Job]:
    jobs = []
    for number, life in enumerate(draw(st.lists(LIVES, min_size=1, max_size=12))):
        arrival_s, wait_s, prefill_s, decode_s, output, prompt, cached = life
        job = Job(asks(str(number), [1], output, arrival_s, prompt), arrival_s, [])
        job.admitted_s = arrival_s + wait_s
        job.first_token_s = job.admitted_s + prefill_s
        job.finished_s = job.first_token_s + decode_s
        job.cached_at_admission = min(cached, prompt - 1)
        job.generated, job.prefill_tokens, job.preemptions = output, prompt, number % 3
        jobs.append(job)
    return jobs


@given(jobs=finished_jobs(), warmup=st.integers(0, 11))
def test_figures_against_a_naive_twin(jobs: list[Job], warmup: int) -> None:
    warmup = min(warmup, len(jobs) - 1)
    found = figures(replace(workload(*(job.request for job in jobs)), warmup=warmup), jobs)
    counted = jobs[warmup:]
    assert (found["requests"], found["finished"]) == (len(jobs), len(jobs))
    hit = sum(job.cached_at_admission for job in counted)
    assert found["cache_hit"] == hit / sum(job.prompt_tokens for job in counted)
    span_s = max(job.finished_s for job in counted) - min(job.arrival_s for job in counted)
    assert found["throughput_rps"] == pytest.approx(len(counted) / span_s)
    for name, end in (("ttft_s", "first_token_s"), ("e2e_s", "finished_s")):
        spans = [getattr(job, end) - job.arrival_s for job in counted]
        twin = {"mean": sum(spans) / len(spans), "p50": percentile(spans, 50), "p99": percentile(spans, 99)}
        assert found[name] == pytest.approx(twin)
    slowed = [(job.finished_s - job.arrival_s) / (job.finished_s - job.admitted_s) for job in counted]
    assert found["slowdown"]["mean"] == pytest.approx(sum(slowed) / len(slowed))
    waits = [job.admitted_s - job.arrival_s for job in counted]
    assert found["queue_wait_s"] == pytest.approx({"p99": percentile(waits, 99), "max": max(waits)})
    several = [job for job in counted if job.generated > 1]
    gaps = [(job.finished_s - job.first_token_s) / (job.generated - 1) for job in several]
    assert found["tpot_ms"]["mean"] == pytest.approx(1000 * sum(gaps) / len(gaps) if gaps else 0.0)


@pytest.mark.parametrize(("ends_s", "share"), [(1.2, 1.0), (1.25, 0.0)])
def test_the_first_token_is_none_of_those_after_it(ends_s: float, share: float) -> None:
    request = SimRequest("r", 0.0, pack_tokens([1]), 16, 3)
    job = Job(request, 0.0, [1])
    job.note_admission(0.5, 0)
    job.first_token_s, job.generated, job.finished_s = 1.0, 3, ends_s
    workload = replace(cell("w1d", "heavy", 1, "vllm"), requests=[request], warmup=0)
    assert figures(workload, [job], [Target(2.0, 100.0)])["goodput"][0]["share"] == share


def test_goodput_is_who_met_both_parts_of_a_target() -> None:
    """First tokens after 1 to 4 s; then ten of 50 ms each, of the second request 150 ms, of the last none."""
    jobs = []
    for number in range(4):
        job = Job(asks(f"{number}", [1], 11 if number < 3 else 1), 0.0, [1])
        job.admitted_s, job.first_token_s = 0.5, 1.0 + number
        job.generated, job.cached_at_admission = job.output_tokens, 0
        job.finished_s = job.first_token_s + (0.15, 0.05)[number != 1] * (job.generated - 1) - 1e-9
        jobs.append(job)
    targets = [Target(3.5), Target(3.5, 200), Target(9)]
    found = figures(workload(*(job.request for job in jobs)), jobs, targets)
    assert found["goodput"] == [
        {"ttft_s": 3.5, "tpot_ms": 100.0, "share": 0.5},
        {"ttft_s": 3.5, "tpot_ms": 200, "share": 0.75},
        {"ttft_s": 9, "tpot_ms": 100.0, "share": 0.75},
    ]


@both_kinds
def test_the_next_turn_finds_the_answer_before_it(cache: str) -> None:
    """Prompt 32, answer 33 (the last token of which is never computed), then 15 more."""
    turns = [
        asks("first", list(range(32)), output=33),
        replace(asks("second", list(range(80)), output=5, at_s=0.1), after="first", think_s=2.0),
    ]
    turns = [replace(each, session="talk") for each in turns]
    found: dict[str, list[Job]] = {}
    for name, requests in {"named": with_answers(turns, 1), "unnamed": turns}.items():

        def watch(jobs: list[Job], name: str = name) -> None:
            found[name] = jobs

        run = simulate(workload(*requests), "fcfs+lru", cache, watch=watch)
        first, second = found[name]
        assert second.arrival_s == pytest.approx(first.finished_s + 2.0)
        span = second.finished_s - first.arrival_s
        assert run["job_s"] == {"mean": span, "p50": span, "p99": span}
    assert [each.answer for each in with_answers(turns, 1)] == [pack_tokens(range(32, 65)), b""]
    assert found["named"][1].cached_at_admission == 64
    assert found["unnamed"][1].cached_at_admission == 32


def test_only_a_turn_that_goes_on_finds_an_answer() -> None:
    first = asks("first", [1, 2, 3, 4], output=2)
    other = replace(asks("other", [1, 2, 9, 9, 9]), after="first")
    assert with_answers([first, other], 1) == [first, other]
    assert "job_s" not in simulate(workload(first), "fcfs+lru", "radix")


def test_the_warm_up_warms_the_cache_and_is_not_counted() -> None:
    twice = workload(asks("a", [5] * 1001, 4, 0.0), asks("b", [5] * 1001, 4, 9.0))
    all_counted = simulate(twice, "fcfs+lru")
    assert all_counted["cache_hit"] == 1000 / 2002
    warm = simulate(replace(twice, warmup=1), "fcfs+lru")
    assert warm["cache_hit"] == warm["ideal_hit"] == 1000 / 1001
    assert (warm["requests"], warm["finished"], warm["prefill_tokens"]) == (2, 2, 1)
    assert warm["throughput_rps"] == pytest.approx(1.0 / warm["e2e_s"]["mean"])
    assert warm["ttft_s"]["p50"] < all_counted["ttft_s"]["p50"]


def test_where_all_warm_up_nothing_is_measured() -> None:
    with pytest.raises(WorkloadError) as raised:
        simulate(replace(workload(asks("a", [1, 2])), warmup=1), "fcfs+lru")
    assert str(raised.value) == "nothing to measure: 1 requests, the first 1 warm up"


# -- what must not matter ------------------------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize("label", ["fcfs+lru", "peek", "clpm+gm+dl+pe"])
def test_timer_and_progress_change_nothing(cache: str, label: str) -> None:
    tenants = three_tenants(cache)
    ticks, seen = count(), list[int]()
    watched = simulate(tenants, label, cache, lambda: float(next(ticks)), None, seen.append)
    assert seen == [1, 2, 3, 4, 5, 6, 7, 8]
    cycles = 1e6 if label != "fcfs+lru" else 0.0
    assert watched.pop("plan_us") == {"mean": cycles, "p99": cycles}
    assert simulate(tenants, label, cache) == {**watched, "plan_us": {"mean": 0.0, "p99": 0.0}}


def test_the_plan_meter_takes_spans_between_two_readings() -> None:
    readings = iter([1.0, 1.5, 7.0, 7.25])
    meter = PlanMeter(lambda: next(readings))
    assert meter.figures() == {"mean": 0.0, "p99": 0.0}
    assert [meter() for _ in range(4)] == [1.0, 1.5, 7.0, 7.25]
    assert meter.figures() == {"mean": 375_000.0, "p99": pytest.approx(percentile([5e5, 2.5e5], 99))}


# -- sizes that do not fit, and odd units --------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize("label", ["fcfs+lru", "peek"])
@pytest.mark.parametrize("at_s", [0.0, 9.0])
@pytest.mark.parametrize(("prompt", "output"), [(100, 1), (50, 100)], ids=["prompt", "answer"])
def test_what_the_arena_cannot_hold_is_named(
    cache: str, label: str, at_s: float, prompt: int, output: int
) -> None:
    small = [asks("small", [1] * 20, 5), asks("later", [2] * 20, 5, 20.0)]
    with pytest.raises(MemoryError, match="arena of 96 tokens cannot hold request large"):
        simulate(workload(*small, asks("large", [3] * prompt, output, at_s), arena=96), label, cache)


@both_kinds
@given(
    unit=st.sampled_from([1, 10, 16, 512]),
    arena=st.sampled_from([1000, 1024, 3000, 9999]),
    over=st.integers(-30, 4),
    output=st.sampled_from([1, 5, 20]),
)
def test_whether_a_request_fits_is_known_beforehand(
    cache: str, unit: int, arena: int, over: int, output: int
) -> None:
    tokens = arena + over - output
    of = workload(asks("r", [1] * (tokens // unit), output, tokens=tokens), arena=arena, unit=unit)
    fits = CACHES[cache].fits(of, of.requests[0])
    try:
        simulate(of, "fcfs+lru", cache)
    except MemoryError:
        assert not fits
    else:
        assert fits


@both_kinds
@pytest.mark.parametrize(
    ("after", "message"),
    [
        ({"a": "z"}, "request a comes after z, not there"),
        ({"a": "b", "b": "a"}, "requests come after each other in a circle"),
    ],
)
def test_what_comes_after_nothing_is_named(cache: str, after: dict[str, str], message: str) -> None:
    rows = [replace(asks(name, [1, 2]), after=after.get(name)) for name in "ab"]
    with pytest.raises(WorkloadError, match=message):
        simulate(workload(*rows), "fcfs+lru", cache)
    with pytest.raises(WorkloadError, match="two requests have one id"):
        simulate(workload(*rows, rows[0]), "fcfs+lru", cache)


def test_an_answer_longer_than_sglang_plans_for_is_named() -> None:
    """4096 tokens of output are planned for; the 6000 that come do not fit."""
    with pytest.raises(MemoryError, match="arena of 5000 tokens cannot hold request large"):
        simulate(workload(asks("large", [1] * 100, 6000), arena=5000), "fcfs+lru", "radix")


@both_kinds
@pytest.mark.parametrize("label", ["fcfs+lru", "peek", "clpm+gm+dl+pe"])
def test_pages_of_512_tokens(cache: str, label: str) -> None:
    """Prompts of two full pages and less than one: 100 tokens behind the pages are always computed."""
    pages = [([5, 6], 1124), ([], 100), ([5, 6], 1124), ([5, 6], 1024), ([], 100), ([5, 7], 1124)]
    requests = [
        asks(str(number), symbols, 3, 5.0 * number, tokens) for number, (symbols, tokens) in enumerate(pages)
    ]
    trace = workload(*requests, arena=16384, unit=512)
    assert hit_tokens(simulate(trace, label, cache), trace) == 1024 + 512 + 512


@both_kinds
@pytest.mark.parametrize(("unit", "block"), [(10, 20), (24, 24), (1, 16)])
def test_units_that_do_not_divide_a_block(cache: str, unit: int, block: int) -> None:
    """Six equal symbols; blocks are made of whole units, at least 16 tokens."""
    same = [1, 2, 3, 4, 5, 6]
    asked = [asks(f"{last}", [*same, *[last] * 4], 1, at_s, 10 * unit) for last, at_s in ((7, 0.0), (8, 9.0))]
    pair = workload(*asked, unit=unit)
    whole = unit if cache == "radix" else block
    assert hit_tokens(simulate(pair, "fcfs+lru", cache), pair) == 6 * unit // whole * whole


# -- regression goals on a real cell -------------------------------------------------------------------


@pytest.mark.slow
@both_kinds
def test_w1c_heavy(cache: str) -> None:
    requests = cell("w1c", "heavy", 42)
    lpm = simulate(requests, "lpm+lru", cache)
    assert lpm["cache_hit"] < 0.55
    for label in ("peek", "clpm+gm+dl+pe"):
        run = simulate(requests, label, cache)
        assert run["finished"] == 1000
        assert 0.86 <= run["cache_hit"] <= run["ideal_hit"]
        assert run["ttft_s"]["mean"] * 4 <= lpm["ttft_s"]["mean"]
        assert run["throughput_rps"] >= 2 * lpm["throughput_rps"]
