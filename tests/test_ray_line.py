"""A router's line to the queue, in one event loop with it; between processes of Ray's in tests/ray_serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from peek.adapters.ray_serve import queue as queue_module
from peek.adapters.ray_serve.queue import FleetQueue
from peek.adapters.ray_serve.queue_client import STOCK, Arrival, QueueClient
from peek.fleet import token_key

ONE_BY_ONE = {"window": 1, "max_ongoing_requests": 1}


class Handle:
    """Calls as an actor's handle makes them; `dead` as one whose actor has died."""

    def __init__(self, replicas: int = 1) -> None:
        self.queue = FleetQueue(ONE_BY_ONE)
        self.queue.set_replicas({f"r{number}": 1 for number in range(replicas)})
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any) -> Any:
            answer = None if self.dead else await getattr(self.queue, name)(*args)
            if self.dead:
                raise ConnectionError("the actor died")
            return answer

        return SimpleNamespace(remote=call)


@pytest.fixture(autouse=True)
def polls_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "POLL_S", 0.05)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


def arrival(group: int) -> Arrival:
    key = token_key([group] * 64)
    return Arrival(0, key.key, key.num_tokens, "", 0, 0.0)


def tied_to(find: Callable[[], Any]) -> QueueClient:
    line = QueueClient(find)
    line.want(True)
    return line


async def until(happened: Callable[[], Any]) -> None:
    while not happened():
        await asyncio.sleep(0.01)


def test_everybody_is_sent_once_and_nobody_to_a_replica_that_is_taken() -> None:
    async def scenario() -> None:
        handle = Handle(3)
        lines = [tied_to(lambda: handle) for _ in range(2)]
        at_work: set[str] = set()

        async def one(number: int) -> None:
            line = lines[number % 2]
            serial, replica = await line.acquire(arrival(number % 7))
            assert replica not in at_work
            at_work.add(replica)
            await asyncio.sleep(0)
            at_work.remove(replica)
            line.end(serial, True)

        await asyncio.gather(*[one(number) for number in range(60)])
        await until(lambda: handle.queue._fleet is not None and handle.queue._fleet.stats.finished == 60)
        state = await handle.queue.status()
        assert state["added"] == state["dispatched"] == 60
        assert state["tells"] < 120

    run(scenario)


def test_who_is_cancelled_is_out_of_the_queue() -> None:
    async def scenario() -> None:
        handle = Handle()
        line = tied_to(lambda: handle)
        serial, replica = await line.acquire(arrival(1))
        assert replica == "r0"
        tasks = [asyncio.create_task(line.acquire(arrival(group))) for group in (2, 3)]
        await until(lambda: len(handle.queue._fleet or "") == 2)
        tasks[0].cancel()
        await until(lambda: len(handle.queue._fleet or "") == 1)
        line.end(serial, True)
        assert (await tasks[1])[1] == "r0"

    run(scenario)


def test_when_the_queue_dies_who_waits_goes_by_the_stock_rule_and_the_next_queue_is_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        handles = [Handle(), Handle()]
        line = tied_to(lambda: handles[0])
        await line.acquire(arrival(1))
        waiting = asyncio.create_task(line.acquire(arrival(2)))
        await until(lambda: len(handles[0].queue._fleet or "") == 1)
        handles.pop(0).dead = True
        assert (await waiting)[1] == STOCK
        await until(lambda: line.connected)
        serial, replica = await line.acquire(arrival(3))
        assert replica == "r0"
        line.end(serial, True)

    run(scenario)
    assert len([record for record in caplog.records if "cannot be asked" in record.message]) == 1


def test_without_a_queue_the_stock_rule_decides_and_a_warning_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        looked: list[int] = []
        line = tied_to(lambda: looked.append(1))
        assert [(await line.acquire(arrival(group)))[1] for group in (1, 2)] == [STOCK, STOCK]
        await until(lambda: len(looked) > 2)

    run(scenario)
    assert [record.message for record in caplog.records] == [
        "peek's queue cannot be asked, Ray Serve's own rule decides until it can (0 wait): there is none"
    ]


def test_a_queue_that_does_not_know_a_router_any_more_is_told_again() -> None:
    async def scenario() -> None:
        handle = Handle()
        line = tied_to(lambda: handle)
        await line.acquire(arrival(1))
        handle.queue._forget_router(line.name)
        await until(lambda: line.name in handle.queue._routers and line.connected)
        assert (await line.acquire(arrival(1)))[1] == "r0"

    run(scenario)
