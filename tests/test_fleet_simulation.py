"""The simulated fleet: one engine behind a router is that engine; every router answers all requests once."""

from __future__ import annotations

import csv
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from support.fleets import NaiveCacheOf

from bench.builds import ROOT
from bench.fleet import DRAWN, OURS, ShardedRouter, overall, shared_prompts
from peek.errors import InvalidConfig, WorkloadError
from peek.simulation.cells import cell
from peek.simulation.fleet import ROUTERS, FleetShape, simulate_fleet
from peek.simulation.routers import (
    Arrival,
    CentralFifo,
    EarlyRouter,
    PeekRouter,
    PrefixAffinity,
    Router,
    SessionLeast,
    Site,
    WeighedScores,
    least_outstanding,
    lmetric,
    prefix_hash,
    round_robin,
    session_hash,
    token_balance,
)
from peek.simulation.simulate import CACHES, simulate
from peek.simulation.workload import SimRequest, Workload, faster, unique_tokens
from peek.trie.keys import pack

both_kinds = pytest.mark.parametrize("cache", CACHES)


def part_of(name: str, count: int, speed_up: float = 1.0) -> Workload:
    """The first requests of a cell."""
    whole = cell(name, "heavy", 7, "vllm")
    return faster(replace(whole, requests=whole.requests[:count], warmup=0), speed_up)


def alike(run: dict[str, Any]) -> dict[str, Any]:
    """What a run of a fleet has in common with one of a single engine."""
    apart = {"replicas", "router", "stale_s", "imbalance", "decision_us"}
    return {name: value for name, value in run.items() if name not in apart}


@both_kinds
@pytest.mark.parametrize("label", ["fcfs+lru", "peek"])
@pytest.mark.parametrize("name", ["w1c", "w3c"])  # open and closed loop
def test_one_replica_is_one_engine(cache: str, label: str, name: str) -> None:
    workload = part_of(name, 150)
    fleet = simulate_fleet(workload, label, FleetShape("round-robin", [1.0]), cache)
    assert alike(fleet) == simulate(workload, label, cache)


@both_kinds
@pytest.mark.parametrize("router", ROUTERS)
def test_every_request_is_answered_and_runs_can_be_repeated(router: str, cache: str) -> None:
    workload = part_of("w1c", 60, 2.0)
    shape = FleetShape(router, [1.0, 0.5, 1.0], losses=((2.0, 0),), joins=((3.0, 2.0),))
    run = simulate_fleet(workload, "peek", shape, cache)
    assert (run["finished"], run["replicas"], run["router"]) == (60, 3, router)
    assert run["imbalance"] >= 1.0
    assert simulate_fleet(workload, "peek", shape, cache) == run


@pytest.mark.parametrize("stale_s", [0.5, 5.0])
@pytest.mark.parametrize("router", ROUTERS)
def test_late_news_costs_time_and_no_request(router: str, stale_s: float) -> None:
    shape = FleetShape(router, [1.0, 1.0], stale_s, losses=((2.0, 1),), joins=((2.5, 1.0),))
    assert simulate_fleet(part_of("w1c", 60, 2.0), "peek", shape)["finished"] == 60


@pytest.mark.parametrize("stale_s", [0.0, 0.5])
def test_no_replica_is_left_to_answer(stale_s: float) -> None:
    shape = FleetShape("peek", [1.0], stale_s, losses=((1.0, 0),))
    with pytest.raises(WorkloadError, match="requests wait for a replica, and none is left"):
        simulate_fleet(part_of("w1c", 80), "peek", shape)


def test_a_workload_that_cannot_end_is_named_as_on_one_engine() -> None:
    base = part_of("w1c", 3)
    first, second, third = base.requests
    for requests, message in (
        ((first, second, first), "two requests have one id"),
        ((first, replace(second, after="z")), "comes after z, not there"),
        (
            (first, replace(second, after=third.request_id), replace(third, after=second.request_id)),
            "requests come after each other in a circle",
        ),
    ):
        with pytest.raises(WorkloadError, match=message):
            simulate_fleet(replace(base, requests=requests), "peek", FleetShape("peek", [1.0, 1.0]))


def test_a_request_that_fits_nowhere() -> None:
    workload = replace(part_of("w1c", 3), arena_tokens=2000)
    with pytest.raises(MemoryError, match="the arena of 2000 tokens cannot hold request w1c-0"):
        simulate_fleet(workload, "peek", FleetShape("peek", [1.0, 1.0]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"router": "best"}, "router is 'best'; valid: round-robin"),
        ({"speeds": []}, "replicas is 0"),
        ({"speeds": [0.0]}, "speed is 0"),
        ({"stale_s": -1.0}, "stale_s is -1"),
        ({"losses": [(1.0, 2)]}, "there is no replica 2 to lose at 1.0 s"),
        ({"losses": [(2.0, 0), (1.0, 0)]}, "there is no replica 0 to lose at 2.0 s"),
        ({"losses": [(1.0, 2)], "joins": [(3.0, 1.0), (1.0, 1.0)]}, "there is no replica 2 to lose at 1.0 s"),
    ],
)
def test_shapes_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        FleetShape(**{"router": "peek", "speeds": [1.0, 1.0], **changes})


def test_late_news_needs_blocks() -> None:
    with pytest.raises(InvalidConfig, match="late news needs engines of kind 'blocks'"):
        simulate_fleet(part_of("w1c", 3), "peek", FleetShape("peek", [1.0], 1.0), "radix")


# -- the routers' rules, by hand --------------------------------------------------------------------------


def ask(key: list[int], name: str = "new") -> Arrival:
    return Arrival(name, pack(key), 10 * len(key), 1, 0.0, "")


def sites(*cached: list[int]) -> list[Site]:
    return [Site(name, NaiveCacheOf([("", key)], 10), 1000, 10) for name, key in enumerate(cached)]


def joined(router: Router, *cached: list[int]) -> list[Site]:
    there = sites(*cached)
    for site in there:
        router.joined(site)
    return there


@pytest.mark.parametrize("cache", CACHES)
def test_a_router_sees_what_was_computed_and_nothing_of_a_step_under_way(cache: str) -> None:
    key = unique_tokens("p", 1, 8000)
    seen: list[int] = []

    class Watching(Router):
        def arrived(self, arrival: Arrival) -> None:
            super().arrived(arrival)
            view, segment = self.sites[0].view, memoryview(arrival.key).cast("i")
            seen.append(view.advance(view.root(""), segment, 0)[0] * view.unit_tokens)

        def ready(self, now: float) -> list[tuple[str, int]]:
            return [self.send(self.queue.popleft(), self.sites[0]) for _ in range(len(self.queue))]

    times = [0.0, 0.1, 60.0]  # the first prefill takes longer than the second waits, and less than the third
    rows = tuple(SimRequest(f"r{at}", at_s, key, 8000, 5) for at, at_s in enumerate(times))
    of = Workload(
        name="by hand", load="trace", seed=0, requests=rows, warmup=0, max_running=8, arena_tokens=50_000
    )
    simulate_fleet(of, "fcfs+lru", FleetShape("round-robin", [1.0]), cache, router=Watching())
    assert seen[:2] == [0, 0]
    assert seen[2] > 7900


def test_round_robin_takes_turns() -> None:
    router = EarlyRouter(round_robin)
    joined(router, [0], [0])
    for name in "abc":
        router.arrived(ask([1], name))
    assert router.ready(0.0) == [("a", 0), ("b", 1), ("c", 0)]


def test_least_outstanding_counts_requests() -> None:
    there = sites([0], [0])
    there[0].queued["x"] = 1
    there[1].running.update(dict.fromkeys("yz"))
    assert least_outstanding(ask([1]), there) is there[0]


def test_prefix_hash_sees_the_beginning_only_and_moves_few() -> None:
    there = sites(*[[0]] * 4)
    beginnings = [[number] * 200 for number in range(40)]
    before = [prefix_hash(ask([*key, 1]), there) for key in beginnings]
    assert [prefix_hash(ask([*key, 2]), there) for key in beginnings] == before
    assert set(map(id, before)) == set(map(id, there))
    after = [prefix_hash(ask(key), there[:3]) for key in beginnings]
    assert all(new is old for new, old in zip(after, before, strict=True) if old is not there[3])


@pytest.mark.parametrize(("queued", "chosen"), [(35, 0), (45, 1)])  # + 10 against 50
def test_token_balance_adds_what_is_to_compute(queued: int, chosen: int) -> None:
    there = sites([1, 1, 1, 1], [0])
    there[0].queued["x"] = queued
    assert token_balance(ask([1, 1, 1, 1, 2]), there) is there[chosen]


def test_lmetric_multiplies_with_requests() -> None:
    there = sites([1, 1], [0])
    there[0].running.update(dict.fromkeys("abc"))
    assert lmetric(ask([1, 1, 2]), there) is there[1]  # 10 x 4 against 30 x 1


def turn(session: str, name: str, key: list[int]) -> Arrival:
    return ask(key, name)._replace(session=session)


def test_sessions_stay_where_their_hash_or_their_first_turn_says() -> None:
    there = sites(*[[0]] * 4)
    hashed = [session_hash(turn(f"s{n}", "a", [n]), there) for n in range(40)]
    assert [session_hash(turn(f"s{n}", "b", [n, 1]), there) for n in range(40)] == hashed
    assert set(map(id, hashed)) == set(map(id, there))
    router = SessionLeast()
    first, other = joined(router, [0], [0])
    first.queued["x"] = 1
    assert router.choose(turn("s", "a", [1]), [first, other]) is other
    other.queued.update(dict.fromkeys("yz", 1))
    assert router.choose(turn("s", "b", [1, 2]), [first, other]) is other
    assert router.choose(turn("t", "c", [1]), [first, other]) is first


def test_weighed_scores_add_prefix_queue_and_room() -> None:
    router = WeighedScores()
    first, other = joined(router, [0], [0])
    assert router.choose(ask([1] * 10, "a"), [first, other]) is first
    assert router.choose(ask([1] * 9 + [2], "b"), [other, first]) is first  # 3 x 0.9
    first.queued["x"] = 1
    assert router.choose(ask([1] * 5 + [3] * 5, "c"), [first, other]) is other  # 3 x 0.5 against 2


def users_of_one_prompt(seed: int) -> Workload:
    """A hundred conversations of three turns behind one prompt of 16,384 tokens; 16 seats a replica."""
    think, system = Random(seed), unique_tokens("system", seed, 16_384)
    turns: list[SimRequest] = []
    for user in range(100):
        prompt, before = system, None
        for number in range(3):
            prompt += unique_tokens(f"{user}/{number}", 1000 + 10 * user + number, 200)
            turns.append(
                SimRequest(
                    f"{user}/{number}", user / 100, prompt, len(prompt) // 4, 128, after=before,
                    think_s=think.expovariate(1.0) if before else 0.0, session=str(user),
                )
            )  # fmt: skip
            before = turns[-1].request_id
    return Workload(
        name="w1c", load="one prompt", seed=seed, requests=turns, warmup=0, max_running=16,
        arena_tokens=200_000,
    )  # fmt: skip


@pytest.mark.parametrize("router", ["peek", "peek-early"])
def test_one_long_system_prompt_does_not_gather_all_users_at_one_replica(router: str) -> None:
    run = simulate_fleet(users_of_one_prompt(1), "peek", FleetShape(router, [1.0] * 4))
    best = simulate_fleet(users_of_one_prompt(1), "peek", FleetShape("session-least", [1.0] * 4))
    assert run["imbalance"] < 1.1
    assert run["ttft_s"]["mean"] < 1.03 * best["ttft_s"]["mean"]


@pytest.mark.parametrize(("name", "apart"), [("ray-prefix", 10), ("cache-aware", 64)])
def test_prefix_affinity_follows_the_longest_match_while_loads_are_even(name: str, apart: int) -> None:
    router = ROUTERS[name]()
    assert isinstance(router, PrefixAffinity)
    there = joined(router, [0], [0])
    first = router.choose(ask([1] * 10, "a"), there)
    other = next(site for site in there if site is not first)
    assert router.choose(ask([2] * 10, "b"), there) is other  # no match: the one that was sent least
    assert router.choose(ask([1] * 9 + [3], "c"), there) is first
    first.queued.update({str(number): 1 for number in range(apart)})
    assert router.choose(ask([1] * 10, "d"), there) is first
    first.queued["one more"] = 1
    assert router.choose(ask([1] * 10, "e"), there) is other  # uneven: the fewest


def test_cache_aware_asks_for_a_ratio_of_loads_too() -> None:
    router = ROUTERS["cache-aware"]()
    assert isinstance(router, PrefixAffinity)
    there = joined(router, [0], [0])
    first = router.choose(ask([1] * 10, "a"), there)
    other = next(site for site in there if site is not first)
    first.queued.update({f"first {number}": 1 for number in range(300)})
    other.queued.update({f"other {number}": 1 for number in range(200)})
    assert router.choose(ask([1] * 10, "b"), there) is first
    first.queued["one more"] = 1
    assert router.choose(ask([1] * 10, "c"), there) is other


def test_central_fifo_sends_the_oldest_where_there_is_room() -> None:
    router = CentralFifo()
    there = joined(router, [0], [0])
    for name in "abc":
        router.arrived(ask([1] * 1000, name))
    assert router.ready(0.0) == [("a", 0), ("b", 1)]
    router.started("b", 1)
    assert router.ready(0.0) == [("c", 1)]
    assert [len(site.outstanding) for site in there] == [1, 2]


def test_the_fleets_planner_hears_of_first_tokens() -> None:
    router = PeekRouter()
    joined(router, [0])
    router.arrived(ask([1] * 9, "a"))
    assert router.ready(0.0) == [("a", 0)]
    assert not router.fleet._replicas["0"].tells
    router.started("a", 0)
    assert router.fleet._replicas["0"].tells


def test_several_planners_with_a_share_of_the_replicas_each() -> None:
    shape = FleetShape("peek-early", [1.0] * 16)
    workload = shared_prompts(16, 2, 42)
    one = simulate_fleet(workload, "peek", shape)
    assert alike(simulate_fleet(workload, "peek", shape, router=ShardedRouter(1))) == alike(one)
    router = ShardedRouter(4)
    run = simulate_fleet(faster(workload, 8.0), "peek", shape, router=router)
    assert run["requests"] == one["requests"]
    assert router.given, "a planner with little to do gives replicas to one that has too much"


def test_the_page_has_the_figures_of_drawn_mixes() -> None:
    with (ROOT / "docs/data/fleet_drawn.csv").open(newline="", encoding="utf-8") as stream:
        rows: list[dict[str, Any]] = list(csv.DictReader(stream))
    for row in rows:
        row.update({name: float(row[name] or 0.0) for name in ("mean_s", "p99_s", "job_s")})
    ours, _, next_best = ([cell.strip() for cell in line.split("|")[1:-1]] for line in overall(rows)[:3])
    best = {
        title: min(row["mean_s"] for row in rows if row["cell"] == title and row["router"] not in OURS)
        for title in [each.title for each in DRAWN.values()]
    }
    near = sum(row["mean_s"] <= 1.03 * best[row["cell"]] for row in rows if row["router"] == "peek")
    page = " ".join((ROOT / "docs/fleet_results.md").read_text(encoding="utf-8").split())
    assert f"Of {len(best)} mixes" in page
    assert f"within 3 % of the best other's mean in {near}." in page
    assert (ours[0], next_best[0]) == ("`peek`", "`llm-d`")
    assert f"its mean is {ours[1]} times the best of each and its p99 {ours[3]};" in page
    assert f"next with {next_best[1]} and {next_best[3]}." in page
    assert f"`peek` takes {ours[2]} times as long" in page


def test_a_drawn_mix_is_as_large_as_its_fleet() -> None:
    two, four = (DRAWN[f"drawn{number}"] for number in (1000, 1001))
    sizes = [len(each.workload(0).requests) / len(each.speeds) for each in (two, four)]
    assert all(250 <= size < 260 for size in sizes)
    assert [len(each.speeds) for each in (two, four)] == [2, 4]
