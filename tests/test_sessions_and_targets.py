"""Sessions and targets for the first token: their parts against naive twins, and what they promise users."""

from __future__ import annotations

from math import exp, inf
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.queues import cache_of

from peek import InvalidConfig, PeekConfig, PeekPolicy, PendingRequest, Planner
from peek.policy.base import Listed, everybody
from peek.policy.default import OBJECTIVES, TARGET_S, PeekOptions
from peek.policy.default.expectations import MOST_AT_ONCE, Expectations, Sessions
from peek.policy.default.targets import Pace, TargetLane
from peek.simulation.engines import Job
from peek.simulation.simulate import CACHES, simulate
from peek.simulation.workload import SimRequest, Workload, unique_tokens, with_answers

both_kinds = pytest.mark.parametrize("cache", CACHES)


def asks(name: str, at_s: float = 0.0, tokens: int = 100, **more: Any) -> PendingRequest:
    return PendingRequest(name, [hash(name) % 2**31], at_s, num_tokens=tokens, **more)


# -- sessions ------------------------------------------------------------------------------------------


@given(
    turns=st.lists(
        st.tuples(st.sampled_from(["", "a", "b"]), st.sampled_from(["", "lora"]), st.integers(0, 30)),
        max_size=30,
    )
)
def test_a_turn_is_the_number_of_those_admitted_before_it(turns: list[tuple[str, str, int]]) -> None:
    """Also where a request is preempted, whichever turns were admitted since."""
    lengths = Expectations(inf)
    counted: list[tuple[PendingRequest, int]] = []

    def admits(request: PendingRequest, turn: int) -> None:
        lengths.arrived(request, ())
        assert lengths.waiting[request.request_id].turn == turn
        lengths.admitted(request)

    for number, (session, namespace, back) in enumerate(turns):
        turn = [each[:2] for each in turns[:number]].count((session, namespace)) if session else 0
        counted.append((asks(f"r{number}", session=session, namespace=namespace), turn))
        admits(*counted[-1])
        admits(*counted[back % len(counted)])
    assert len(lengths.sessions) == len({name[:2] for name in turns if name[0]})


def test_an_id_that_is_used_again_in_another_session_is_another_request() -> None:
    lengths = Expectations(inf)
    for name, session in (("r", "a"), ("r", "b"), ("next a", "a"), ("next b", "b")):
        lengths.arrived(asks(name, session=session), ())
        assert lengths.waiting[name].turn == (name != "r")
        lengths.admitted(asks(name, session=session))


def test_old_sessions_are_forgotten() -> None:
    sessions = Sessions()
    for number in range(16384 + 10):
        sessions.admitted(asks("r", float(number), session=f"s{number}"))
        sessions.admitted(asks(f"k{number}", float(number), session="kept"))
    assert len(sessions) == 16384
    assert sessions.turn_of(asks("next", session="s3")) == 0
    assert sessions.turn_of(asks("next", session="kept")) == 16384 + 10


def test_a_last_turn_goes_before_a_first_one_of_the_same_kind() -> None:
    """Jobs of two turns: whoever ends a job ahead of whoever begins one, though he is younger."""
    planner = Planner(PeekConfig())
    for number in range(4):
        for turn in range(2):
            name = f"{number}/{turn}"
            planner.add(PendingRequest(name, [7] * 100, 0.0, session=f"job{number}"))
            planner.remove(name)
            planner.answered(10, name)
    planner.add(PendingRequest("seen", [7] * 100, 0.0, session="goes on"))
    planner.remove("seen")
    planner.add(PendingRequest("begins", [7] * 64 + [1] * 64, 10.0, session="new"))
    planner.add(PendingRequest("ends", [7] * 64 + [2] * 64, 11.0, session="goes on"))
    assert planner.plan(cache_of([("", (7,) * 64)]), 20.0) == ["ends", "begins"]


@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["come"] * 3 + ["admit", "abort"]), st.sampled_from("ab"), st.integers(0, 9)
        ),
        max_size=40,
    )
)
def test_requests_that_a_session_begins_with_are_as_large_as_those_that_wait(
    rows: list[tuple[str, str, int]],
) -> None:
    """Told of each change, none is out of date, and later turns do not count."""
    lengths = Expectations(inf)
    first: dict[str, str] = {}
    admitted: set[str] = set()
    later: list[str] = []
    for number, (event, session, pick) in enumerate(rows):
        waiting = [*first, *later]
        if event == "come":
            request = asks(f"r{number}", session=session)
            lengths.arrived(request, ())
            if session in admitted:
                later.append(request.request_id)
            else:
                first[request.request_id] = session
        elif waiting:
            name = waiting[pick % len(waiting)]
            of = first.pop(name, None)
            if of is None:
                later.remove(name)
            if event == "admit":
                lengths.admitted(asks(name, session=of or next(iter(admitted))))
                admitted.add(of or next(iter(admitted)))
            else:
                lengths.withdrawn(name)
        for name in list(lengths.changed):
            lengths.renew(name)
        lengths.changed.clear()
        for name, of in first.items():
            beside = list(first.values()).count(of)
            assert lengths.waiting[name].ratio == min(beside, MOST_AT_ONCE)
        assert all(lengths.waiting[name].ratio == 1.0 for name in later)


def test_a_job_that_has_begun_goes_before_one_that_has_not() -> None:
    """Two jobs of four chunks each, sent in turns: the first ends before the second begins."""
    planner = Planner(PeekConfig())
    for place in range(4):
        for job in "ab":
            planner.add(asks(f"{job}{place}", session=f"job {job}"))
    order = []
    while len(planner):
        order.append(planner.plan(cache_of([]), 10.0)[0])
        planner.remove(order[-1])
    assert order == [f"{job}{place}" for job in "ab" for place in range(4)]


def test_without_names_chunks_go_as_they_came() -> None:
    planner = Planner(PeekConfig())
    for place in range(4):
        for job in "ab":
            planner.add(asks(f"{job}{place}"))
    assert planner.plan(cache_of([]), 10.0) == [f"{job}{place}" for place in range(4) for job in "ab"]


def test_where_nothing_is_learned_no_request_is_a_first_one() -> None:
    planner = Planner(PeekConfig(), learns=False)
    for place in range(3):
        planner.add(asks(f"r{place}", session="job"))
    assert isinstance(planner.policy, PeekPolicy)
    assert [each.ratio for each in planner.policy.expectations.waiting.values()] == [1.0] * 3


# -- targets -------------------------------------------------------------------------------------------


def test_the_pace_is_what_was_admitted_while_requests_waited() -> None:
    pace = Pace()
    assert pace.at(10.0, True) == 0.0
    pace.admitted(300.0, True)
    pace.admitted(200.0, True)
    assert pace.at(10.5, True) == pytest.approx(1000.0)
    assert pace.at(10.5, True) == pytest.approx(1000.0)
    pace.admitted(700.0, False)  # nobody waits any more: the time until the next plan is no work
    assert pace.at(99.0, True) == pytest.approx(1000.0)
    pace.admitted(50.0, True)
    kept = exp(-0.1)
    assert pace.at(100.0, True) == pytest.approx((500.0 * kept + 50.0) / (0.5 * kept + 1.0))


def test_time_in_which_none_waits_is_no_pace() -> None:
    """Not before the first plan, nor after an abort of the last one, nor while an empty queue is planned."""

    def at(now: float) -> float:
        lane.merge(Listed([]), now)
        return lane._pace.at(now, lane._waiting > 0)

    lane = TargetLane(2.0, 0.15)
    requests = [PendingRequest(f"r{i}", [1], 0.0, num_tokens=1000) for i in range(4)]
    for request in requests[:3]:
        lane.arrived(request)
    lane.left(requests[0])
    lane.charge(requests[0], 1000)
    assert at(1e6) == 0.0, "time before the first plan"
    lane.left(requests[1])
    lane.charge(requests[1], 1000)
    assert at(1e6 + 0.1) == pytest.approx(10_000.0)
    lane.left(requests[2])  # aborted
    assert at(1e6 + 3600.0) == pytest.approx(10_000.0)
    assert at(1e6 + 7200.0) == pytest.approx(10_000.0), "an empty queue is planned"
    lane.arrived(requests[3])
    assert at(1e6 + 7200.1) == pytest.approx(10_000.0)


def test_the_pace_outlives_a_pause() -> None:
    """Requests waited while the engine slept for an hour; it is as fast as before."""
    pace = Pace()
    for tenth in range(600):
        pace.at(tenth / 10, True)
        pace.admitted(100.0, True)
    awake = 3660.0
    assert pace.at(awake, True) > 250.0
    for tenth in range(1, 101):
        pace.admitted(100.0, True)
        pace.at(awake + tenth / 10, True)
    assert pace.at(awake + 10.0, True) > 650.0


def test_a_clock_that_is_set_back_begins_a_new_stretch() -> None:
    pace = Pace()
    pace.at(7000.0, True)
    pace.admitted(100.0, True)
    assert pace.at(7001.0, True) == pytest.approx(100.0)
    for second in range(3401, 7004):
        pace.admitted(100.0, True)
        assert pace.at(float(second), True) == pytest.approx(100.0), second


@given(
    waits=st.lists(
        st.tuples(st.integers(1, 5000), st.floats(0.0, 20.0), st.none() | st.floats(0.1, 30.0)), max_size=12
    ),
    lead=st.floats(-20000.0, 20000.0),
    share=st.sampled_from([0.1, 0.5, 0.9]),
    default_s=st.sampled_from([None, inf, 2.0]),
)
def test_those_in_time_go_first_fewest_tokens_first_as_far_as_the_share_goes(
    waits: list[tuple[int, float, float | None]], lead: float, share: float, default_s: float | None
) -> None:
    lane = TargetLane(default_s, share)
    lane.lead = lead
    now = 20.0
    queue = [
        asks(f"r{i}", now - age_s, tokens, ttft_target_s=target)
        for i, (tokens, age_s, target) in enumerate(waits)
    ]
    for number, request in enumerate(queue):
        request.sequence = number
        lane.arrived(request)

    def target(request: PendingRequest) -> float:
        named = request.ttft_target_s if default_s is not None else None
        return named or default_s or inf

    early = [r for r in queue if target(r) < inf and now - r.arrival_time <= target(r)]
    early.sort(key=lambda r: (r.num_tokens, r.arrival_time, r.sequence))
    expected: list[PendingRequest] = []
    left = list(queue)
    while left:
        ready = [request for request in early if request in left]
        if ready and lead <= 0.0:
            picked = ready[0]
            lead += float(picked.num_tokens) / (1.0 - share)
        else:
            picked = left[0]
            lead -= float(picked.num_tokens) / share
        expected.append(picked)
        left.remove(picked)
    assert everybody(lane.merge(Listed(queue), now)) == expected


def test_a_request_that_is_in_time_to_the_dot_goes_first() -> None:
    lane = TargetLane(2.0, 0.5)
    late, in_time = asks("late", 17.0), asks("in time", 18.0)
    for request in (late, in_time):
        lane.arrived(request)
    assert everybody(lane.merge(Listed([late, in_time]), 20.0)) == [in_time, late]


@given(
    costs=st.lists(st.integers(1, 4000), max_size=60),
    share=st.sampled_from([0.15, 0.5]),
)
@example(
    costs=[1, 1, 5, 3122, 7, 1, 111, 138, 218, 402, 436, 574, 1, 2655, 3128, 3128, 3128, 3016], share=0.15
)
def test_the_others_get_their_share(costs: list[int], share: float) -> None:
    """Whatever the engine admits of what comes first: over any time in which both wait."""
    lane = TargetLane(2.0, share)
    others = in_time = 0.0
    largest = max(costs, default=0)
    for number, cost in enumerate(costs):
        fast = asks(f"fast{number}", 0.0, cost)
        slow = asks(f"slow{number}", -1000.0, cost)
        lane.arrived(fast)
        lane.arrived(slow)
        first = lane.merge(Listed([slow, fast]), 0.5).next()
        assert first is not None
        for request in (fast, slow):
            lane.left(request)
        lane.charge(first, cost)
        if first is fast:
            in_time += cost
        else:
            others += cost
    assert others >= share * (others + in_time) - largest
    assert in_time >= (1.0 - share) * (others + in_time) - largest


def test_a_target_counts_only_where_targets_are_wanted() -> None:
    """Any client can name one."""
    for options, first in (
        ({}, "short"),
        ({"ttft_target_s": inf}, "named"),
        ({"objective": "target"}, "short"),
    ):
        planner = Planner(PeekConfig(options=options))
        planner.add(asks("named", 9.0, 3000, ttft_target_s=2.0))
        planner.add(asks("short", 9.0, 10))
        assert planner.plan(cache_of([]), 10.0)[0] == first, options


def test_the_words_of_an_objective() -> None:
    assert {name: PeekOptions(objective=name).bias for name in OBJECTIVES} == OBJECTIVES
    assert PeekOptions(objective="mean", mean_bias=0.25).bias == 0.25
    assert PeekOptions().target_s is None
    assert PeekOptions(objective="target").target_s == TARGET_S
    assert PeekOptions(objective="target", ttft_target_s=5.0).target_s == 5.0
    with pytest.raises(InvalidConfig, match="objective is 'fast'; valid: tail, balanced, mean, target"):
        PeekOptions(objective="fast")
    for wrong in (0, -1.0, "2", True, float("nan")):
        with pytest.raises(InvalidConfig, match=r"ttft_target_s is .*; need a number above 0, or infinity"):
            PeekOptions(ttft_target_s=wrong)  # type: ignore[arg-type]


# -- what users are promised ---------------------------------------------------------------------------


@pytest.mark.parametrize("lazily", [False, True])
def test_a_request_that_was_overdue_is_not_charged_to_those_in_time(lazily: bool) -> None:
    """It is the overdue lane's, however much of the order behind it was asked for."""
    planner = Planner(policy=PeekPolicy(PeekOptions(ttft_target_s=100.0, grace_tokens=0.0, fair_share=0.5)))
    for name, tokens in (("a", 10), ("b", 5), ("c", 7)):
        planner.add(PendingRequest(name, [ord(name)] * tokens, 0.0))
    for name, lead in (("b", 10.0), ("a", -10.0)):
        plan = planner.lazy_plan(cache_of([]), 1.0).at(0) if lazily else planner.plan(cache_of([]), 1.0)[0]
        assert plan == name
        planner.remove(name)
        assert planner.policy.targets.lead == lead


def test_an_old_request_is_not_passed_for_ever() -> None:
    """11 tokens with nothing shared before an endless stream of warm prompts, 20 in and out a second."""
    for bias in (0.0, 0.25, 0.5, 0.75, 1.0):
        assert passed_by(PeekOptions(mean_bias=bias), 11) <= 200, bias
    # Of the work 0.15 goes to those that are late, and some of them are older.
    assert passed_by(PeekOptions(objective="target"), 11) <= 300


def passed_by(options: PeekOptions, tokens: int) -> int:
    """How many are admitted before the old one; 60 wait, each of 1,000 tokens of which 980 are cached."""
    planner = Planner(policy=PeekPolicy(options))
    template = list(range(980))
    view = cache_of([("", tuple(template))])
    now = 0.0
    planner.add(PendingRequest("old", list(range(5000, 5000 + tokens)), 0.0))
    for number in range(10_000):
        planner.add(PendingRequest(f"warm{number}", [*template, *([10_000 + number] * 20)], now))
        now += 0.05
        if number < 60:
            continue
        first = planner.plan(view, now)[0]
        if first == "old":
            return number - 60
        planner.remove(first, True, 20)
    return 10_000


def two_classes(seed: int, per_s: float = 18.0) -> Workload:
    """Short requests with a target of 2 s beside a batch without one."""
    rng = Random(seed)
    requests: list[SimRequest] = []
    at_s = 0.0
    for number in range(600):
        at_s += rng.expovariate(per_s)
        batch = rng.random() < 0.3
        tokens = rng.randint(800, 1600) if batch else rng.randint(50, 400)
        key = unique_tokens(f"{seed}/{number}", number, tokens)
        requests.append(
            SimRequest(
                f"r{number}", at_s, key, tokens, 60 if batch else 40, tenant="batch" if batch else "people",
                ttft_target_s=None if batch else 2.0,
            )
        )  # fmt: skip
    return Workload(
        name="two classes", load="1.3", seed=seed, requests=requests, warmup=0, max_running=64,
        arena_tokens=50_000,
    )  # fmt: skip


@pytest.mark.parametrize(("cache", "late"), [("blocks", 0.05), ("radix", 0.08)])
def test_a_class_with_a_target_is_in_time_beside_a_batch(cache: str, late: float) -> None:
    """At 1.3 times what the engine gets through; a prefill batch of SGLang's takes half a second here."""
    found: dict[str, list[Job]] = {"people": [], "batch": []}

    def watch(jobs: list[Job]) -> None:
        for job in jobs:
            found[job.request.tenant].append(job)

    simulate(two_classes(5), "peek:ttft_target_s=inf", cache, watch=watch)
    people, batch = found["people"], found["batch"]
    last_s = max(job.arrival_s for job in [*people, *batch])
    assert max(job.finished_s for job in [*people, *batch]) > 1.2 * last_s
    assert sum(job.first_token_s - job.arrival_s > 2.0 for job in people) <= late * len(people)
    served = {name: sum(job.last_uncached for job in jobs if job.admitted_s < last_s)
              for name, jobs in found.items()}  # fmt: skip
    assert served["batch"] >= 0.15 * sum(served.values())


@both_kinds
def test_a_fan_out_computes_the_context_of_its_parent_once(cache: str) -> None:
    """Eight sub-agents begin with the context of their parent, while others wait who would evict it."""
    parent = unique_tokens("parent", 0, 4000)
    first = SimRequest("parent", 0.0, parent, 4000, 8, session="job")
    requests = [first]
    for number in range(40):  # 1,500 tokens each: a queue that fills the arena several times
        key = unique_tokens(f"other{number}", 1 + number, 1500)
        requests.append(SimRequest(f"other{number}", 0.2 + 0.01 * number, key, 1500, 64))
    for number in range(8):
        key = parent + unique_tokens(f"child{number}", 100 + number, 150)
        requests.append(
            SimRequest(f"child{number}", 0.0, key, 4150, 16, after="parent", think_s=0.05, session="job")
        )
    workload = Workload(
        name="fan out", load="1", seed=0, requests=with_answers(requests, 1), warmup=0, max_running=16,
        arena_tokens=40_000,
    )  # fmt: skip
    computed: dict[str, int] = {}

    def watch(jobs: list[Job]) -> None:
        computed.update({job.request_id: job.prompt_tokens - job.cached_at_admission for job in jobs})

    simulate(workload, "peek", cache, watch=watch)
    children = [computed[f"child{number}"] for number in range(8)]
    assert sum(children) < 8 * 150 + 8 * 16 + 1, children
    stock: dict[str, int] = {}
    simulate(workload, "fcfs+lru", cache, watch=lambda jobs: stock.update(
        {job.request_id: job.prompt_tokens - job.cached_at_admission for job in jobs}))  # fmt: skip
    assert sum(stock[f"child{number}"] for number in range(8)) >= 4000, "nothing was at risk"


def test_time_between_plans_counts_while_requests_wait() -> None:
    """A plan is made because somebody waits, also where the last admission left nobody waiting."""
    pace = Pace()
    pace.admitted(100.0, False)
    assert pace.at(1.0, True) == 0.0
    assert pace.at(2.0, True) == 0.0
    pace.admitted(50.0, True)
    assert 26.0 < pace.at(3.0, True) < 27.0
