"""What a shadow foretells is what comes true, in simulated engines, and its account adds up."""

from __future__ import annotations

import logging
from math import inf
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.followed import (
    CONFIG,
    FollowedBlocks,
    FollowedRadix,
    foretold,
    grouped,
    hit,
    in_blocks,
    limits_of,
)

from peek import PeekConfig
from peek.adapters import shadow as shadows
from peek.adapters.engine_adapter import Stated
from peek.adapters.shadow import AnswerLengths, Shadow, ShadowLifecycle
from peek.planner import Planner
from peek.request import PendingRequest
from peek.simulation.cost import CostModel
from peek.simulation.engines import BlockEngine, Job, RadixEngine, SimEngine
from peek.simulation.live import Limits, LiveBlocks, LiveRadix, folded, page_names
from peek.simulation.simulate import make_planner
from peek.simulation.workload import SimRequest, Workload, pack_tokens

KINDS: dict[str, tuple[Any, Any]] = {
    "blocks": (FollowedBlocks, BlockEngine),
    "radix": (FollowedRadix, RadixEngine),
}
POINTS = 2.0

# -- foretold against what comes true ------------------------------------------------------------------


@pytest.mark.parametrize("allowed", [1, 4])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_foretold_is_what_comes_true(kind: str, seed: int, allowed: int) -> None:
    """`allowed`: answers end well before they must, and nobody knows when."""
    followed, engine = KINDS[kind]
    workload = grouped(seed)
    real = followed(workload, CostModel())
    real.allowed = allowed
    stock = hit(real.run())
    planned = hit(engine(workload, make_planner(CONFIG, kind, None), CostModel()).run())
    ours, theirs = foretold(real.shadow)
    assert real.shadow.requests == len(workload.requests)
    assert theirs == pytest.approx(stock, abs=1e-9)
    assert ours - theirs == pytest.approx(planned - stock, abs=POINTS)
    assert planned - stock > 20, "there is something to foretell"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_foretold_where_nothing_is_shared(kind: str) -> None:
    real = KINDS[kind][0](grouped(1, alone=True), CostModel())
    real.run()
    assert foretold(real.shadow) == (0.0, 0.0)
    assert real.shadow.requests == 400


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_in_force_gains_nothing(kind: str) -> None:
    """A shadow of the policy that the engine has: first come, first served."""
    real = KINDS[kind][0](grouped(2), CostModel(), PeekConfig("fcfs"))
    real.run()
    ours, theirs = foretold(real.shadow)
    assert ours == pytest.approx(theirs, abs=POINTS)


# -- the virtual engine is the simulated one -----------------------------------------------------------


def live(kind: str, workload: Workload, config: PeekConfig) -> tuple[SimEngine, Any]:
    """A simulated engine, and the live one with the same step times."""
    planner = Planner(config, in_flight_gate=kind == "radix" and config.sees_prefills, plan_lasts_s=inf)
    if kind == "blocks":
        limits = limits_of(workload, workload.unit_tokens)
        return BlockEngine(workload, planner, CostModel()), LiveBlocks(limits, config, CostModel())
    limits = limits_of(workload)
    return RadixEngine(workload, planner, CostModel()), LiveRadix(limits, config, CostModel(), 0.0)


def times(jobs: list[Job]) -> list[tuple[str, int, float]]:
    return sorted((job.request_id, job.cached_at_admission, job.admitted_s) for job in jobs)


def test_one_that_was_put_back_and_never_fits_stops_nobody() -> None:
    """Its answer was guessed longer than the arena; the others wait behind it."""
    engine = LiveBlocks(Limits(160, 16, 8, 2048), CONFIG, CostModel())
    engine.offer(SimRequest("big", 0.0, pack_tokens(range(8)), 128, 1000))
    for at in range(5):
        engine.offer(SimRequest(f"s{at}", 5.0 + at, pack_tokens([100 + at]), 16, 4))
    engine.advance(1000.0, 20_000)
    assert not engine.waiting
    assert not engine.preempted
    assert not engine.running


@pytest.mark.parametrize("label", ["lpm-nolimit+lru", "clpm+gm+lru"])
@pytest.mark.parametrize("kind", ["blocks", "radix"])
@settings(max_examples=25)
@given(pieces=st.lists(st.floats(0.01, 8.0), min_size=1, max_size=12), most=st.integers(1, 400))
def test_a_live_engine_is_the_simulated_one(kind: str, label: str, pieces: list[float], most: int) -> None:
    """However often it is told the time.

    By policies without a clock: for radix the live one has its own, and for blocks it plans anew less often,
    since it knows no names of answers, so that a plan stands while ages grow.
    """
    workload = in_blocks(grouped(5, 40)) if kind == "blocks" else grouped(5, 40)
    simulated, told = live(kind, workload, PeekConfig.from_label(label))
    expected = times(simulated.run())
    entered: list[Job] = []
    coming, now, turn = list(workload.requests), 0.0, 0
    while len(entered) < len(workload.requests) or told.jobs:
        now += pieces[turn % len(pieces)]
        turn += 1
        while coming and coming[0].arrival_s <= now:
            told.offer(coming.pop(0))
        told.advance(now, most)
        entered += told.entered
        told.entered.clear()
    assert times(entered) == expected
    told.cache.check()


@pytest.mark.parametrize("kind", KINDS)
def test_who_never_fits_is_passed_over(kind: str) -> None:
    workload = grouped(1, 3)
    _, told = live(kind, workload, CONFIG)
    for place, tokens in enumerate((100, 20_000, 100)):
        key = pack_tokens(range(place * 30_000, place * 30_000 + tokens))
        units = tokens if kind == "radix" else tokens // 16
        told.offer(SimRequest(f"r{place}", 0.1 * place, key[: 4 * units], tokens, 4))
    told.advance(50.0, 10_000)
    assert [job.request_id for job in told.entered] == ["r0", "r2"]
    assert not told.jobs
    assert told.now >= 50.0


@pytest.mark.parametrize("kind", KINDS)
def test_withdrawn_and_corrected(kind: str) -> None:
    _, told = live(kind, grouped(1, 3), CONFIG)
    for place in range(3):
        key = pack_tokens(range(place * 9000, place * 9000 + 6000))
        told.offer(SimRequest(f"r{place}", 0.0, key[: 24_000 if kind == "radix" else 1500], 6000, 1000))
    told.advance(0.9, 100)  # there is room for one
    assert [job.request_id for job in told.running] == ["r0"]
    told.give_up("r1")
    told.correct("r0", 20)
    told.advance(60.0, 10_000)
    assert [job.request_id for job in told.entered] == ["r0", "r2"]
    assert [job.generated for job in told.entered] == [20, 1000]
    assert not told.jobs
    assert "r1" not in told.planner


@pytest.mark.parametrize("told_at_s", [0.0, 50.0], ids=["before it ends", "once it has ended"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_next_turn_finds_the_answer(kind: str, told_at_s: float) -> None:
    """All of its 33 tokens but the last, which is never computed; under the symbols told, and no others."""
    workload = grouped(1, 3)
    _, live_one = live(kind, workload if kind == "radix" else in_blocks(workload), CONFIG)
    unit = 1 if kind == "radix" else 16
    prompt, answer, other = (
        pack_tokens(range(at, at + n // unit)) for at, n in ((0, 64), (500, 32), (900, 32))
    )
    live_one.offer(SimRequest("turn 1", 0.0, prompt, 64, 33))
    live_one.advance(told_at_s, 1000)
    live_one.correct("turn 1", 33, answer)
    live_one.offer(SimRequest("turn 2", 60.0, prompt + answer + pack_tokens(range(1000, 1016)), 112, 4))
    live_one.offer(SimRequest("another", 61.0, prompt + other + pack_tokens(range(1000, 1016)), 112, 4))
    live_one.advance(100.0, 1000)
    cached = {job.request_id: job.cached_at_admission for job in live_one.entered}
    assert cached == {"turn 1": 0, "turn 2": 96, "another": 64}


# -- the account ---------------------------------------------------------------------------------------


def shadow_of(monkeypatch: pytest.MonkeyPatch) -> Shadow:
    """A shadow with a virtual engine whose steps are known from the start."""
    monkeypatch.setattr("peek.simulation.cost.ENOUGH", 0)
    limits = limits_of(grouped(1, 3), 16)
    return Shadow(lambda _: LiveBlocks(limits, CONFIG, CostModel()))


def test_only_the_first_admission_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = shadow_of(monkeypatch)
    shadow.arrived("r", pack_tokens(range(8)), 130, 6, 0.5)
    shadow.admitted("r", 0)
    shadow.admitted("r", 64)  # preempted, and found again what it had computed
    for second in range(20):
        shadow.step(1.0 + second)
    assert (shadow.requests, shadow.stock_hit_tokens) == (1, 0)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["arrive", "arrive", "admit", "end", "step", "step"]), st.integers(0, 7)),
    max_size=80,
)


@given(events=EVENTS)
def test_the_account_adds_up_whatever_comes_first(events: list[tuple[str, int]]) -> None:
    """Each request counts once, when both have admitted it; nobody is left behind."""
    with pytest.MonkeyPatch.context() as patch:
        shadow = shadow_of(patch)
        now, real, prompts = 0.0, {}, []
        for event, number in [*events, *[("step", 0)] * 60]:
            name = f"r{number}"
            now += 0.5
            if event == "arrive":
                real[name] = -1
                shadow.arrived(name, pack_tokens(range(number, number + 8)), 130 + number, 6, now)
            elif event == "admit" and name in shadow._pairs and not shadow._pairs[name].ended:
                if real[name] < 0:
                    prompts.append(130 + number)
                real[name] = max(real[name], 0)
                shadow.admitted(name, 16)
            elif event == "end":
                shadow.ended(name, 3)
            shadow.step(now)
            assert shadow.stock_hit_tokens == 16 * shadow.requests
            assert shadow.hit_tokens <= shadow.prompt_tokens
            assert shadow.requests <= len(prompts)
        for number in range(8):
            shadow.ended(f"r{number}", 3)
        for _ in range(20):
            now += 5.0
            shadow.step(now)
        assert not shadow._pairs
        assert not shadow._by_name
        assert shadow._ghosts == 0


def test_one_that_falls_behind_starts_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shadows, "MOST_GHOSTS", 10)
    shadow = shadow_of(monkeypatch)
    for number in range(40):  # the real engine is a thousand times as fast
        shadow.arrived(f"r{number}", pack_tokens(range(number * 90, number * 90 + 60)), 970, 100, 0.0)
        shadow.admitted(f"r{number}", 0)
        shadow.ended(f"r{number}", 100)
        shadow.step(0.001 * number)
    assert len(shadow._pairs) <= 11
    assert "the shadow fell behind and starts anew" in caplog.text


def test_what_it_says(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(shadows, "REPORT_EVERY", 2)
    shadow = shadow_of(monkeypatch)
    assert str(shadow) == "the shadow has seen no request through yet"
    key = pack_tokens(range(8))
    with caplog.at_level(logging.INFO, "peek"):
        for number, name in enumerate("ab"):
            shadow.arrived(name, key, 130, 2, 5.0 * number)
            shadow.admitted(name, 13)
            shadow.step(5.0 * number + 4.0)
    line = (
        "of 260 prompt tokens of 2 requests 10.0 % were cached;"
        " in the order of peek it would have been 49.2 % (+39.2 points)"
    )
    assert str(shadow) == line
    assert f"peek: {line}" in caplog.text
    assert shadow.counters() == {
        "peek_shadow_prompt_tokens": 260,
        "peek_shadow_hit_tokens": 128,
        "peek_shadow_stock_hit_tokens": 26,
    }


def test_the_virtual_planner_knows_sessions_and_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = shadow_of(monkeypatch)
    heard: list[PendingRequest] = []

    def pending(engine: LiveBlocks, job: Job) -> PendingRequest:
        heard.append(BlockEngine._pending(engine, job))
        return heard[-1]

    monkeypatch.setattr(LiveBlocks, "_pending", pending)
    for name, stated in [("says", Stated("s", 2.5)), ("says not", Stated())]:
        shadow.arrived(name, pack_tokens(range(8)), 130, 4, 0.0, stated=stated)
    shadow.step(1e-9)
    assert [(request.session, request.ttft_target_s) for request in heard] == [("s", 2.5), ("~2", None)]


def test_lengths_of_answers() -> None:
    lengths = AnswerLengths(keep=3)
    assert lengths.guess(70) == 70, "nothing is known: as long as it may be"
    lengths.note(10, 100)
    lengths.note(50, 50)  # cut off
    lengths.note(30, 100)
    assert [lengths.guess(40) for _ in range(6)] == [40, 30, 10, 40, 30, 10]
    assert lengths.guess(20) == 20
    lengths.note(5, 100)
    assert sorted(lengths.guess(40) for _ in range(3)) == [5, 30, 40]


# -- symbols -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_symbols_are_from_zero_on(values: list[int]) -> None:
    packed = folded(values)
    symbols = [int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed), 4)]
    assert len(symbols) == len(values)
    assert all(0 <= symbol < 2**31 for symbol in symbols)
    small = [value for value in values if 0 <= value < 2**31]
    assert folded(small) == pack_tokens(small)


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40), st.integers(2, 5))
@example([1, 2, 1, 0, 2], [2, 0, 1, 2, 1], 5)
def test_equal_pages_have_equal_names(one: list[int], other: list[int], page: int) -> None:
    names = [page_names(tokens, page) for tokens in (one, other)]
    assert [len(name) // 4 for name in names] == [len(one) // page, len(other) // page]
    for at in range(min(len(one), len(other)) // page):
        pages = [tokens[at * page : (at + 1) * page] for tokens in (one, other)]
        same = names[0][4 * at : 4 * at + 4] == names[1][4 * at : 4 * at + 4]
        assert same == (pages[0] == pages[1])


# -- in an attachment ----------------------------------------------------------------------------------


class Toy:
    """An engine's part of a shadow."""

    def __init__(self, account: Shadow | None) -> None:
        self.account = account
        self.told: list[object] = []

    def event(self, what: object) -> None:
        if what == "fails":
            raise RuntimeError("injected")
        self.told.append(what)


def test_a_shadow_that_fails_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    book = shadow_of(monkeypatch)
    book.arrived("a", pack_tokens(range(8)), 130, 2, 0.0)
    book.admitted("a", 13)
    book.step(4.0)
    made = [Toy(book), Toy(None)]
    foretold = ShadowLifecycle(False, lambda _: made.pop(0))
    foretold.tell("event", "before there is one")
    assert foretold.counters() == {}
    foretold.follow("an adapter")
    first = foretold.shadow
    foretold.tell("event", 1)
    foretold.tell("event", "fails")
    foretold.tell("event", 2)
    assert (first.told, foretold.shadow) == ([1], None)
    assert "the shadow failed, and foretells nothing more" in caplog.text
    assert foretold.counters()["peek_shadow_prompt_tokens"] == 130
    foretold.follow("an adapter")
    assert foretold.counters()["peek_shadow_prompt_tokens"] == 130, "counters never go back"
    foretold.follow(None)
    assert foretold.shadow is None
    strict = ShadowLifecycle(True, lambda _: Toy(None))
    strict.follow("an adapter")
    with pytest.raises(RuntimeError, match="injected"):
        strict.tell("event", "fails")


def test_why_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    foretold = ShadowLifecycle(False, lambda _: "requests are scheduled by priority")
    foretold.follow("an adapter")
    assert foretold.shadow is None
    assert "does not foretell the hits: requests are scheduled by priority" in caplog.text
    ShadowLifecycle(False, None).follow("an adapter")
