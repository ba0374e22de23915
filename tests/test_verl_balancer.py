"""The load balancer for verl, in an event loop; verl itself and Ray are in tests/verl."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loops import in_a_loop

from peek.adapters.verl.load_balancer import NO_SERVERS, FleetLoadBalancer
from peek.errors import InvalidConfig, QueueFull

SYSTEM = [7] * 50
Acquired = tuple[str, Any]


def balancer(servers: int = 2, **options: Any) -> FleetLoadBalancer:
    handles = {f"s{number}": f"handle {number}" for number in range(servers)}
    return FleetLoadBalancer(
        handles, {"router_class": "here", "max_inflight": 2, **options}, clock=lambda: 1.0
    )


async def acquire_all(
    of: FleetLoadBalancer, prompts: dict[str, list[int]]
) -> dict[str, asyncio.Task[Acquired]]:
    tasks = {
        name: asyncio.create_task(of.acquire_server(name, prompt_ids=ids)) for name, ids in prompts.items()
    }
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


@in_a_loop
async def test_a_group_stays_together_and_groups_spread() -> None:
    lb = balancer(4, max_inflight=64)
    strangers = {f"stranger {n}": [100 + n] * 100 for n in range(16)}  # an idle server would take a share
    await acquire_all(lb, strangers)
    prompts = {f"{group}/{n}": [group] * 1000 for group in range(4) for n in range(4)}
    where = {name: (await task)[0] for name, task in (await acquire_all(lb, prompts)).items()}
    homes = [{where[f"{group}/{n}"] for n in range(4)} for group in range(4)]
    assert all(len(home) == 1 for home in homes)
    assert set.union(*homes) == {"s0", "s1", "s2", "s3"}
    assert lb.get_total_inflight() == 32


Step = tuple[str, int]
KINDS = ["ask", "ask", "ask", "leave", "release", "release", "remove", "add", "new weights", "settle"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9)), min_size=8, max_size=40)


class Rollout:
    """verl's clients, and beside the balancer plain lists of who asks and what is where."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.lb = balancer(1, max_inflight=most, max_warm_inflight=most)
        self.asking: dict[asyncio.Task[Acquired], str] = {}
        self.going: list[tuple[str, str]] = []
        self.late: list[tuple[str, str]] = []  # their servers are gone, perhaps come back
        self.names = map(str, count())

    def do(self, what: str, number: int) -> None:
        server = f"s{number % 3}"
        if what == "ask":
            name = next(self.names)
            asking = self.lb.acquire_server(name, prompt_ids=[number % 4] * (50 * number))
            self.asking[asyncio.create_task(asking)] = name
        elif what == "leave" and self.asking:
            list(self.asking)[number % len(self.asking)].cancel()
        elif what == "release" and self.going + self.late:
            ends = self.going or self.late
            self.lb.release_server(*ends.pop(number % len(ends)))
        elif what == "remove":
            self.lb.remove_servers([server, "unknown"])
            self.late += [each for each in self.going if each[0] == server]
            self.going = [each for each in self.going if each[0] != server]
        elif what == "add":
            self.lb.add_servers({server: f"new handle of {server}"})
        elif what == "new weights":
            self.lb.clear_sticky_cache()

    async def settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)
        for task in [task for task in self.asking if task.done()]:
            name = self.asking.pop(task)
            if not task.cancelled() and task.exception() is None:
                server = task.result()[0]
                (self.going if server in self.lb.get_all_servers() else self.late).append((server, name))
            elif not task.cancelled():
                assert str(task.exception()) == NO_SERVERS
        status = self.lb.get_status()
        assert status["waiting"] == len(self.asking)
        assert Counter(status["servers"]) == Counter(server for server, _ in self.going)
        assert not self.asking or max(status["servers"].values()) >= self.most, "waits for nothing"
        self.lb._fleet.check()


@given(STEPS, st.integers(1, 3))
def test_whatever_comes_in_whatever_order_nobody_waits_in_vain(steps: list[Step], most: int) -> None:
    async def play() -> None:
        rollout = Rollout(most)
        for step in steps:
            rollout.do(*step)
            if step[0] == "settle":
                await rollout.settle()
        rollout.do("add", 0)
        await rollout.settle()
        while rollout.going or rollout.late:
            rollout.do("release", 0)
            await rollout.settle()
        assert not rollout.asking
        assert not any(rollout.lb._under_way.values())
        assert [load.under_way for load in rollout.lb._fleet.status()] == [0] * len(rollout.lb._servers)
        assert rollout.lb._stock is None

    asyncio.run(play())


@in_a_loop
async def test_the_next_turn_goes_where_the_last_one_was() -> None:
    lb = balancer(3)
    turn = SYSTEM + [1] * 300
    first, _ = await lb.acquire_server("talk", prompt_ids=turn)
    await lb.acquire_server("other", prompt_ids=SYSTEM + [2] * 300)
    lb.release_server(first, request_id="talk")
    assert (await lb.acquire_server("talk", prompt_ids=turn + [3] * 50))[0] == first


@in_a_loop
async def test_a_conversation_has_its_home_also_where_the_balancer_has_forgotten_its_prompt() -> None:
    lb = balancer(2, cache_tokens=0, max_inflight=8)
    first, _ = await lb.acquire_server("talk", prompt_ids=[1] * 1000)
    lb.release_server(first, request_id="talk")
    others: dict[str, list[str]] = {"s0": [], "s1": []}
    for name in map(str, range(12)):
        others[(await lb.acquire_server(name, prompt_ids=[2 + int(name)] * 10))[0]].append(name)
    for server, names in others.items():
        for name in names[: 1 if server == first else 2]:  # a cache knows the newest only
            lb.release_server(server, request_id=name)
    assert lb.get_status()["servers"][first] == 5  # and four at the other server
    assert (await lb.acquire_server("talk", prompt_ids=[1] * 1000 + [9] * 50))[0] == first
    assert lb.get_status()["sessions_moved"] == 0


@in_a_loop
async def test_no_server_is_said_in_verls_words() -> None:
    with pytest.raises(RuntimeError, match="No available servers in load balancer"):
        await balancer(0).acquire_server("a", prompt_ids=[1])
    lb = balancer(1)
    tasks = await acquire_all(lb, {str(n): [n] * 100 for n in range(3)})
    lb.remove_servers(["s0"])
    gone = await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert [str(each) for each in gone if isinstance(each, RuntimeError)] == [
        "No available servers in load balancer"
    ]


@in_a_loop
async def test_a_full_queue_refuses() -> None:
    lb = balancer(1, max_waiting=1)
    await acquire_all(lb, {str(n): [n] * 100 for n in range(3)})
    with pytest.raises(QueueFull):
        await lb.acquire_server("more", prompt_ids=[1])


@pytest.mark.parametrize("prompt_ids", [None, [], [-1], ["a"]])
@in_a_loop
async def test_a_prompt_that_is_none_goes_somewhere(prompt_ids: Any) -> None:
    lb = balancer(2)
    assert (await lb.acquire_server("a", prompt_ids=prompt_ids))[0] in ("s0", "s1")


@in_a_loop
async def test_new_weights_empty_the_caches() -> None:
    lb = balancer(2)
    first, _ = await lb.acquire_server("a", prompt_ids=[1] * 100)
    lb.release_server(first, request_id="a")
    assert lb.clear_sticky_cache() == {"cleared_entries": 0, "server_loads": {"s0": 0, "s1": 0}}
    assert (await lb.acquire_server("b", prompt_ids=[1] * 100))[0] != first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windows": 1}, "router option 'windows' is unknown"),
        ({"max_inflight": 0}, "^max_inflight is 0"),
        ({"max_inflight": 2000}, "^max_warm_inflight is 1024; need a whole number from 2000"),
        ({"max_warm_inflight": "many"}, "^max_warm_inflight is 'many'"),
        ({"policy": False}, "'False'"),  # what `off` is in YAML
        ({"metrics_port": 70000}, "^metrics_port is 70000; need a whole number from 0 to 65535"),
        ({"metrics_port": "9400"}, "^metrics_port is '9400'"),
        ({"cache_tokens": -1}, "cache_tokens is -1"),
        ({"decode_tokens": -1}, "decode_tokens is -1"),
        ({"decode_tokens": 1.5}, "decode_tokens is 1.5; need a whole number"),
        ({"cache_tokens": 4e5}, "cache_tokens is 400000.0; need a whole number"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        FleetLoadBalancer({}, options)
