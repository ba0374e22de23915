"""`Planner.cycle`: only the difference between two looks at the engine's queue counts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.queues import NOW, PROMPTS, Arrival, cache_of

from peek import (
    PRESETS,
    DuplicateRequest,
    InvalidKey,
    LaneOptions,
    PeekConfig,
    PendingRequest,
    Planner,
    WaitingQueue,
)

LABELS = [label for label in PRESETS if PRESETS[label].lanes is None]
CACHE = cache_of([("", (3,) * 31), ("", (5,) * 40)])


class FakeEngine:
    """A waiting queue as `cycle` sees it; remembers what it was asked."""

    def __init__(self) -> None:
        self.rows: dict[str, Arrival] = {}
        self.waiting: list[str] = []
        self.left: dict[str, int] = {}
        self.translated: list[str] = []
        self.asked: list[str] = []
        self.reorders = 0
        self.clock = 0.0

    def waiting_ids(self) -> list[str]:
        return list(self.waiting)

    def translate(self, request_id: str) -> PendingRequest:
        self.translated.append(request_id)
        return self.rows[request_id].request()

    def uncached_tokens(self, request_id: str) -> int:
        self.asked.append(request_id)
        return self.left.pop(request_id)

    def reorder(self, order: list[str]) -> None:
        assert sorted(order) == sorted(self.waiting)
        self.waiting = list(order)
        self.reorders += 1

    def arrive(self, symbols: tuple[int, ...]) -> None:
        name = f"r{len(self.rows)}"
        self.rows[name] = Arrival(name, symbols, self.clock)
        self.clock += 1.0
        self.waiting.append(name)

    def leave(self, name: str, uncached: int) -> None:
        """Admitted with so many uncached tokens, or gone if they are negative."""
        self.waiting.remove(name)
        self.left[name] = uncached


MUTATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), PROMPTS),
        st.tuples(st.just("leave"), st.tuples(st.integers(0, 99), st.integers(-1, 50))),
        st.tuples(st.just("return"), st.integers(0, 99)),
        st.tuples(st.just("shuffle"), st.randoms(use_true_random=False)),
    ),
    max_size=5,
)


def mutate(engine: FakeEngine, mutations: list) -> None:
    gone = [name for name in engine.rows if name not in engine.waiting]
    for kind, value in mutations:
        if kind == "arrive":
            engine.arrive(value)
        elif kind == "shuffle":
            value.shuffle(engine.waiting)
        elif kind == "leave" and engine.waiting:
            which, uncached = value
            engine.leave(engine.waiting[which % len(engine.waiting)], uncached)
        elif kind == "return" and gone:
            engine.waiting.append(gone.pop(value % len(gone)))


def by_arrival(engine: FakeEngine) -> list[Arrival]:
    return sorted((engine.rows[name] for name in engine.waiting), key=lambda row: row.arrival_time)


def test_the_fake_is_a_waiting_queue() -> None:
    assert isinstance(FakeEngine(), WaitingQueue)


@given(cycles=st.lists(MUTATIONS, min_size=1, max_size=6))
def test_whatever_happens_to_the_queue_the_planner_is_up_to_date(cycles: list[list]) -> None:
    engine, planner = FakeEngine(), Planner(PeekConfig("clpm+gm", eviction="cluster"))
    admitted = withdrawn = uncached = 0
    for mutations in cycles:
        mutate(engine, mutations)
        left = dict(engine.left)
        expected = {name for name in left if name in planner and name not in engine.waiting}
        arrived = [name for name in engine.waiting if name not in planner]
        engine.asked.clear()
        engine.translated.clear()
        planner.cycle(engine, CACHE, NOW)
        planner.tree.check()
        assert sorted(request.request_id for request in planner.tree.requests()) == sorted(engine.waiting)
        assert set(engine.asked) == expected
        assert engine.translated == arrived, "once each, only those that are new"
        admitted += sum(left[name] >= 0 for name in expected)
        withdrawn += sum(left[name] < 0 for name in expected)
        uncached += sum(left[name] for name in expected if left[name] >= 0)
        stats = planner.stats
        assert (stats.admitted, stats.withdrawn, stats.uncached_admitted) == (admitted, withdrawn, uncached)
        fresh = Planner(planner.config)
        for row in by_arrival(engine):
            fresh.add(row.request())
        assert engine.waiting == fresh.plan(CACHE, NOW)
        assert planner.tree.scores() == fresh.tree.scores()


@pytest.mark.parametrize("label", [label for label in LABELS if not label.startswith("hrrn")])
@settings(max_examples=50)
@given(first=MUTATIONS, second=MUTATIONS, prompts=st.lists(PROMPTS, min_size=2, max_size=6))
def test_a_planner_kept_up_to_date_plans_like_a_new_one(
    label: str, first: list, second: list, prompts: list[tuple[int, ...]]
) -> None:
    # Hrrn is left out: its orders depend on the work done since arrival by definition.
    config = PeekConfig(PRESETS[label].policy)
    engine, planner = FakeEngine(), Planner(config)
    for prompt in prompts:
        engine.arrive(prompt)
    for mutations in (first, second):
        mutate(engine, mutations)
        planner.cycle(engine, CACHE, NOW)
    fresh = Planner(config)
    for row in by_arrival(engine):
        fresh.add(row.request())
    assert engine.waiting == fresh.plan(CACHE, NOW)


def test_one_cycle_literally() -> None:
    engine, planner = FakeEngine(), Planner(PeekConfig.from_label("lpm+lru"))
    for symbols in ((1,) * 40, (2,) * 40, (5,) * 40):
        engine.arrive(symbols)
    planner.cycle(engine, CACHE, NOW)
    assert engine.waiting == ["r2", "r0", "r1"]
    assert (engine.reorders, planner.stats.reordered) == (1, 1)
    planner.cycle(engine, CACHE, NOW)
    assert (engine.reorders, planner.stats.reordered) == (1, 1), "an order that stands is left alone"
    engine.leave("r2", 0)
    engine.leave("r1", -1)
    planner.cycle(engine, CACHE, NOW)
    assert engine.waiting == ["r0"]
    stats = planner.stats
    assert (stats.plans, stats.admitted, stats.withdrawn, stats.uncached_admitted) == (3, 1, 1, 0)
    assert (stats.prompt_tokens, stats.cached_expected, stats.reordered) == (40, 40, 1)


def test_lanes_are_charged_with_what_the_engine_says() -> None:
    """One fair pick of 1000 tokens instead of 10: the cache lane is next for 1000 tokens."""
    engine, planner = FakeEngine(), Planner(PeekConfig("lpm", lanes=LaneOptions("work", 0.5)))
    for i in range(30):
        engine.arrive((100 + i,) * 10)
    fair = []
    for cost in [1000] + [10] * 20:
        planner.cycle(engine, CACHE, NOW)
        before = planner.stats.fair_admitted
        engine.leave(engine.waiting[0], cost)
        planner.cycle(engine, CACHE, NOW)
        fair.append(planner.stats.fair_admitted - before)
    assert fair == [1] + [0] * 20


def test_a_request_that_left_and_came_back_between_two_cycles_never_left() -> None:
    engine, planner = FakeEngine(), Planner()
    engine.arrive((1, 2))
    planner.cycle(engine, CACHE, NOW)
    engine.leave("r0", 2)
    engine.waiting.append("r0")
    planner.cycle(engine, CACHE, NOW)
    assert (planner.stats.admitted, engine.translated) == (0, ["r0"])


def test_a_preempted_request_stands_by_its_old_arrival_time() -> None:
    engine, planner = FakeEngine(), Planner(PeekConfig.from_label("clpm"))
    for _ in range(3):
        engine.arrive((1,) * 40)
    planner.cycle(engine, CACHE, NOW)
    engine.leave("r0", 40)
    planner.cycle(engine, CACHE, NOW)
    engine.waiting.append("r0")
    planner.cycle(engine, CACHE, NOW)
    assert engine.waiting == ["r0", "r1", "r2"]


def test_a_queue_that_names_a_request_twice_is_refused_each_time() -> None:
    engine, planner = FakeEngine(), Planner()
    engine.arrive((1, 2))
    engine.waiting.append("r0")
    for _ in range(3):
        with pytest.raises(DuplicateRequest, match=r"twice|already waiting"):
            planner.cycle(engine, CACHE, NOW)
    engine.waiting.pop()
    assert planner.cycle(engine, CACHE, NOW) == ["r0"]


def test_a_request_named_twice_hides_no_departure() -> None:
    """As many names as before, and not the same requests; a queue that is refused changes nothing."""
    engine, planner = FakeEngine(), Planner()
    engine.arrive((1, 2))
    engine.arrive((1, 2))
    planner.cycle(engine, CACHE, NOW)
    engine.waiting = ["r0", "r0"]
    with pytest.raises(DuplicateRequest, match="twice"):
        planner.cycle(engine, CACHE, NOW)
    assert engine.waiting == ["r0", "r0"], "it is given no order of requests that have left"
    engine.arrive((1, 2))
    engine.waiting = ["r0", "r1", "r2", "r2"]
    with pytest.raises(DuplicateRequest, match="twice"):
        planner.cycle(engine, CACHE, NOW)
    assert "r2" not in planner


def test_a_request_is_translated_by_the_id_that_the_queue_has() -> None:
    """It would come anew in each cycle, and count as one that has left."""
    engine, planner = FakeEngine(), Planner()
    engine.arrive((1, 2))
    engine.rows["r0"] = Arrival("0", (1, 2), 0.0)
    for _ in range(2):
        with pytest.raises(InvalidKey, match=r"translate\('r0'\) answered request '0'"):
            planner.cycle(engine, CACHE, NOW)
    assert (len(planner), planner.stats.admitted, engine.reorders) == (0, 0, 0)


def test_the_direct_calls_and_cycle_go_together() -> None:
    engine, planner = FakeEngine(), Planner()
    engine.arrive((1, 2))
    planner.cycle(engine, CACHE, NOW)
    with pytest.raises(DuplicateRequest):
        planner.add(PendingRequest("r0", [1, 2], 0.0))
    engine.leave("r0", 2)
    planner.remove("r0")
    planner.cycle(engine, CACHE, NOW)
    assert engine.asked == [], "the planner knew"
