"""`peek.testing` as it comes: importable without hypothesis, its strategies as varied as they say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from support.queues import facts_of, naive_tree

import peek.testing
from peek import InvalidConfig
from peek.testing import Arrival, History, Replay, Scene, Step, check_policy, strategies
from peek.testing.scenes import show_history, show_scene, show_symbols
from peek.testing.twins import prefixes

# -- without hypothesis -----------------------------------------------------------------------------------

WITHOUT = """
import sys
sys.modules["hypothesis"] = None  # as if it were not installed
import peek, peek.testing
{uses}
"""


def ran(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "use",
    [
        "check_policy(peek.FirstCome)", "check_cache_view(None, None)", "strategies.prompts()",
        "strategies.queues()", "strategies.caches([])", "strategies.scenes()", "strategies.histories()",
    ],
)  # fmt: skip
def test_what_draws_examples_says_that_hypothesis_is_missing(use: str) -> None:
    done = ran(WITHOUT.format(uses=f"peek.testing.{use}"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "peek.testing.hypotheses.MissingHypothesis: "
        "peek.testing needs hypothesis here: pip install hypothesis"
    )


def test_the_twins_work_without_hypothesis() -> None:
    uses = "t = peek.testing.NaivePendingTree(); t.insert('a', [1]); print(t.scores())"
    done = ran(WITHOUT.format(uses=uses))
    assert (done.returncode, done.stdout) == (0, "{'a': 1}\n")


def test_importing_the_library_imports_neither() -> None:
    done = ran("import sys, peek; print({'hypothesis', 'peek.testing'} & set(sys.modules))")
    assert (done.returncode, done.stdout) == (0, "set()\n")


ONCE = settings(max_examples=2000, phases=[Phase.generate], database=None)
"""For `find`: whether there is one, not the smallest."""

# -- strategies -------------------------------------------------------------------------------------------


def depths_shared(rows: tuple[Arrival, ...]) -> set[int]:
    """Depths at which two prompts or more are together and then part or end."""
    tree = naive_tree(rows)
    return {len(symbols) for (_, symbols), count in tree.nodes().items() if count >= 2}


def nested(rows: tuple[Arrival, ...]) -> bool:
    return any(a.place != b.place and a.place in prefixes(b.place) for a in rows for b in rows)


QUEUES: dict[str, Callable[[tuple[Arrival, ...]], bool]] = {
    "sharing at three depths": lambda rows: len(depths_shared(rows)) >= 3,
    "nested prompts": nested,
    "equal prompts": lambda rows: len({row.place for row in rows}) < len(rows),
    "nothing shared": lambda rows: len(rows) >= 4 and not depths_shared(rows),
    "two namespaces": lambda rows: len({row.namespace for row in rows}) == 2,
    "together": lambda rows: len(rows) >= 3 and len({row.arrival_time for row in rows}) == 1,
    "a prompt that fills no page": lambda rows: any(0 < row.num_tokens % 16 < 15 for row in rows),
}


@pytest.mark.parametrize("kind", QUEUES)
def test_queues_of_every_kind_are_drawn(kind: str) -> None:
    rows = find(strategies.queues(unit=16), QUEUES[kind], settings=ONCE)
    assert all(row.num_tokens in (0, max(row.num_tokens, 16 * len(row.symbols))) for row in rows)


@given(rows=strategies.queues(2, 9))
def test_a_queue_is_in_arrival_order(rows: tuple[Arrival, ...]) -> None:
    assert [row.request_id for row in rows] == [f"r{i}" for i in range(len(rows))]
    times = [row.arrival_time for row in rows]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] < 64.0


@given(data=st.data(), rows=strategies.queues())
def test_a_cache_holds_prefixes_of_the_queue(data: st.DataObject, rows: tuple[Arrival, ...]) -> None:
    for place in data.draw(strategies.caches(rows)):
        assert any(place in prefixes(row.place) for row in rows)


def test_a_cache_for_an_empty_queue_is_empty() -> None:
    assert find(strategies.caches(()), lambda _: True) == ()


SCENES: dict[str, Callable[[Scene], bool]] = {
    "pages": lambda scene: scene.unit == 16,
    "partly cached": lambda scene: any(0 < f.cached_len < f.num_tokens // 2 for f in facts_of(scene)),
    "mostly cached": lambda scene: any(f.cached_len > f.num_tokens // 2 for f in facts_of(scene)),
    "nothing cached": lambda scene: not any(f.cached_len for f in facts_of(scene)),
    "under way": lambda scene: any(f.coming_len > f.cached_len for f in facts_of(scene)),
    "nothing waits": lambda scene: not scene.rows,
}


@pytest.mark.parametrize("kind", SCENES)
def test_scenes_of_every_kind_are_drawn(kind: str) -> None:
    scene = find(strategies.scenes(0, under_way=True), SCENES[kind], settings=ONCE)
    for fact in facts_of(scene):
        assert fact.cached_len % scene.unit == 0 <= fact.cached_len <= fact.num_tokens


@given(scene=strategies.scenes(one_namespace=True))
def test_what_is_not_asked_for_is_not_drawn(scene: Scene) -> None:
    assert scene.in_flight == ()
    assert {row.namespace for row in scene.rows} == {""}


@given(scene=strategies.scenes(under_way=True), theta=st.sampled_from([1, 32]))
def test_a_scene_prepares_the_signals_that_the_definitions_give(scene: Scene, theta: int) -> None:
    signals = "request_id", "num_tokens", "cached_len", "coming_len", "score", "cluster_size", "cluster_depth"
    for request, fact in zip(scene.prepare(theta).queue, facts_of(scene, theta), strict=True):
        for name in signals:
            assert getattr(request, name) == getattr(fact, name), name


HISTORIES: dict[str, Callable[[History], bool]] = {
    "a request comes back": lambda history: any(
        row.arrival_time < step.now for step in history.steps for row in step.arrivals
    ),
    "the cache forgets": lambda history: any(
        set(b.cached) < set(a.cached) for a, b in zip(history.steps, history.steps[1:], strict=False)
    ),
    "admitted and withdrawn": lambda history: any(s.admitted and s.withdrawn for s in history.steps),
}


@pytest.mark.parametrize("kind", HISTORIES)
def test_histories_of_every_kind_are_drawn(kind: str) -> None:
    history = find(strategies.histories(), HISTORIES[kind], settings=ONCE)
    times = [step.now for step in history.steps]
    assert times == sorted(times), "time goes forward"


# -- replay -----------------------------------------------------------------------------------------------


@given(history=strategies.histories())
def test_a_replay_is_at_every_step_what_is_written_down(history: History) -> None:
    """The living tree and a new one give every request the same signals, but for the ids of nodes."""
    replay = Replay(history.unit)
    for step in history.steps:
        replay.arrive(step.arrivals)
        living = replay.prepare(step.cached, step.now)
        written = replay.scene(step.cached, step.now).prepare(work_done=replay.work_done)
        assert len(living.queue) == len(written.queue) == len(replay)
        for a, b in zip(living.queue, written.queue, strict=True):
            for name in ("request_id", "arrival_work", "num_tokens", "cached_len", "score", "cluster_size"):
                assert getattr(a, name) == getattr(b, name), name
        for request in living.queue[: step.admitted]:
            replay.admit(request.request_id)
        replay.withdraw(step.withdrawn)


def test_a_replay_counts_the_work_and_forgets_what_left() -> None:
    replay = Replay()
    second = Arrival("b", (1, 2, 4), 1.0, num_tokens=10)
    replay.arrive([Arrival("a", (1, 2, 3)), second, Arrival("c", (9,), 2.0)])
    assert [r.cached_len for r in replay.prepare((("", (1, 2)),), 5.0).queue] == [2, 2, 0]
    assert (replay.admit("b"), replay.work_done) == (8, 8)
    replay.arrive([Arrival("d", (9, 9), 3.0)])
    assert [row.arrival_work for row in replay.scene((), 5.0).rows] == [0, 0, 8]
    replay.withdraw(5)
    assert len(replay) == 0


# -- what is shown ----------------------------------------------------------------------------------------


def test_a_key_is_shown_with_its_runs() -> None:
    assert show_symbols([1, 2, 2, 3]) == "[1, 2 x2, 3]"
    assert show_symbols([]) == "[]"


def test_a_moment_is_shown_line_by_line() -> None:
    rows = (Arrival("a", (1, 2, 2), 0.5), Arrival("b", (7,), 3.0, "lora", 40))
    scene = Scene(rows, (("", (1, 2)),), (("lora", (7,)),), 16)
    assert show_scene(scene).splitlines() == [
        "  queue at 64, 16 tokens a symbol, symbols cached in brackets:",
        "    a: arrived at 0.5, [1, 2 x2] (2)",
        "    b: arrived at 3, 40 tokens, [7] in namespace 'lora' (0, 1 being computed)",
    ]


def test_a_history_is_shown_step_by_step() -> None:
    first = Step(0.0, (Arrival("a", (1,)),), (("", (1,)),), 1, 2)
    assert show_history(History((first, Step(7.0)))).splitlines() == [
        "  history, step by step:",
        "    at 0:",
        "      arrives a: arrived at 0, [1]",
        "      cached [1]",
        "      then 1 admitted, 2 withdrawn",
        "    at 7:",
    ]


def test_examples_follow_the_settings_profile() -> None:
    calls: list[int] = []

    class Counting(peek.FirstCome):
        def order(self, queue: list[peek.PendingRequest], cycle: peek.Cycle) -> list[peek.PendingRequest]:
            calls.append(1)
            return list(queue)

    check_policy(Counting, examples=3)
    few = len(calls)
    check_policy(Counting, examples=30)
    assert len(calls) - few > 4 * few


def test_more_requests_than_come_in_time_are_refused() -> None:
    strategies.scenes(0, 9)
    with pytest.raises(InvalidConfig, match="max_size is 10, more than 9"):
        strategies.queues(1, 10)
