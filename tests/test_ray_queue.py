"""The queue for Ray Serve and a router's client of it, in an event loop; Ray itself is in tests/ray_serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.loops import in_a_loop

from peek.adapters.ray_serve import fleet_options, queue_client
from peek.adapters.ray_serve import queue as queue_module
from peek.adapters.ray_serve.queue import FleetQueue
from peek.adapters.ray_serve.queue_client import FULL, STOCK, Arrival, News, QueueClient
from peek.adapters.ray_serve.routing import Prompt, prompt_of
from peek.adapters.ray_serve.settings import divided, fleet_config
from peek.errors import InvalidConfig
from peek.fleet import openai_key, text_key, token_key

NO_NEWS = News([], [], [], [])


@pytest.fixture(autouse=True)
def polls_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "POLL_S", 0.05)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def arrival(serial: int, group: int, age_s: float = 0.0) -> Arrival:
    key = token_key([group] * 320 + [1000 + serial] * 16)
    return Arrival(serial, key.key, key.num_tokens, "", 0, age_s)


def coming(*arrivals: Arrival) -> News:
    return NO_NEWS._replace(arrivals=list(arrivals))


async def queue_of(replicas: int = 2, **options: Any) -> tuple[FleetQueue, Clock]:
    clock = Clock()
    queue = FleetQueue({"window": 1, "max_ongoing_requests": 2, **options}, clock)
    await queue.hello("a")
    queue.set_replicas({f"r{number}": 2 for number in range(replicas)})
    return queue, clock


async def tell(queue: FleetQueue, router: str, news: News) -> bool:
    """Whether the router is known; `told` brings also what is answered at once."""
    answers = await queue.tell(router, news)
    if answers:
        queue._routers[router].answers += answers
    return answers is not None


async def told(queue: FleetQueue, router: str = "a") -> dict[int, str]:
    answers = await queue.poll(router)
    assert answers is not None
    return dict(answers)


@in_a_loop
async def test_groups_stay_together_and_wait_where_there_is_no_room() -> None:
    queue, _ = await queue_of()
    assert await tell(queue, "a", coming(*[arrival(serial, serial) for serial in range(2)]))
    where = await told(queue)
    assert await tell(queue, "a", coming(*[arrival(serial, serial % 2) for serial in range(2, 8)]))
    where |= await told(queue)
    assert sorted(where) == [0, 1, 2, 3]  # two at each, the second of which shares the first's prompt
    assert where[0] == where[2] != where[1] == where[3]
    assert await told(queue) == {}
    assert (await queue.status())["waiting"] == 4
    await tell(queue, "a", NO_NEWS._replace(ended=[(0, True)]))
    assert await told(queue) == {4: where[0]}


@in_a_loop
async def test_what_need_not_wait_is_answered_at_once_and_the_rest_later() -> None:
    queue, _ = await queue_of(1)
    polling = asyncio.create_task(queue.poll("a"))
    await asyncio.sleep(0)
    assert await queue.tell("a", coming(arrival(1, 1), arrival(2, 2))) == [(1, "r0")]
    assert await queue.tell("a", NO_NEWS._replace(ended=[(1, True)])) == [(2, "r0")]
    await queue.hello("b")
    assert await queue.tell("b", coming(arrival(1, 3))) == []
    assert await queue.tell("a", NO_NEWS._replace(ended=[(2, True)])) == []
    assert await queue.poll("b") == [(1, "r0")]
    assert await polling == []


@in_a_loop
async def test_a_session_has_a_home() -> None:
    queue, _ = await queue_of(3, cache_tokens=0)
    where = {}
    for serial in range(6):
        await tell(queue, "a", coming(arrival(serial, serial)._replace(session="talk")))
        where |= await told(queue)
        await tell(queue, "a", NO_NEWS._replace(ended=[(serial, True)]))
    assert len(where) == 6
    assert len(set(where.values())) == 1


@in_a_loop
async def test_several_routers_share_the_replicas_and_hear_of_their_own() -> None:
    queue, _ = await queue_of(1)
    await queue.hello("b")
    await tell(queue, "a", coming(arrival(1, 1), arrival(2, 2)))
    await tell(queue, "b", coming(arrival(1, 1), arrival(2, 3)))
    assert await told(queue) == {1: "r0"}
    assert await told(queue, "b") == {1: "r0"}
    await tell(queue, "a", NO_NEWS._replace(ended=[(1, True)]))
    await tell(queue, "b", NO_NEWS._replace(ended=[(1, True)]))
    assert await told(queue) == {2: "r0"}
    assert await told(queue, "b") == {}
    await tell(queue, "a", NO_NEWS._replace(ended=[(2, True)]))
    assert await told(queue, "b") == {2: "r0"}


@in_a_loop
async def test_a_request_that_is_given_up_leaves_the_queue_at_once() -> None:
    queue, _ = await queue_of(1)
    await tell(queue, "a", coming(*[arrival(serial, serial) for serial in range(3)]))
    sent = await told(queue)
    waiting = sorted({0, 1, 2} - set(sent))
    await tell(queue, "a", NO_NEWS._replace(ended=[(waiting[0], False)]))
    assert (await queue.status())["waiting"] == 1
    await tell(queue, "a", NO_NEWS._replace(ended=[(serial, False) for serial in sent]))
    assert list(await told(queue)) == [waiting[1]]


@in_a_loop
async def test_one_too_many_is_refused() -> None:
    queue, _ = await queue_of(0, max_waiting=2)
    await tell(queue, "a", coming(*[arrival(serial, serial) for serial in range(3)]))
    assert await told(queue) == {2: FULL}


@in_a_loop
async def test_replicas_join_leave_and_are_found_dead() -> None:
    queue, _ = await queue_of(0)
    await tell(queue, "a", coming(*[arrival(serial, serial) for serial in range(4)]))
    assert await told(queue) == {}
    queue.set_replicas({"r0": 2, "r1": 2})
    where = await told(queue)
    assert set(where.values()) == {"r0", "r1"}
    await tell(queue, "a", NO_NEWS._replace(lost=["r0"]))
    queue.set_replicas({"r0": 2, "r1": 2})  # the controller does not know yet
    assert list((await queue.status())["replicas"]) == ["r1"]
    queue.set_replicas({"r2": 2})  # r1 ends what it has
    assert list((await queue.status())["replicas"]) == ["r1", "r2"]
    assert set((await told(queue)).values()) == {"r2"}
    await tell(queue, "a", NO_NEWS._replace(ended=[(serial, True) for serial in where]))
    assert list((await queue.status())["replicas"]) == ["r2"]
    queue.set_replicas({"r0": 2, "r2": 2})
    assert list((await queue.status())["replicas"]) == [
        "r2",
        "r0",
    ]  # alive after all: its name left the list


@in_a_loop
async def test_a_replica_that_refuses_is_left_alone_for_a_while() -> None:
    queue, _ = await queue_of(1)
    await tell(queue, "a", coming(arrival(1, 1)))
    assert await told(queue) == {1: "r0"}
    await tell(queue, "a", News([(1, False)], [], ["r0"], [arrival(2, 1)]))
    assert (await queue.status())["replicas"]["r0"]["accepting"] is False
    answers: dict[int, str] = {}
    while not answers:
        answers = await told(queue)
    assert answers == {2: "r0"}


@in_a_loop
async def test_a_router_that_does_not_call_any_more_has_died() -> None:
    queue, clock = await queue_of(1)
    await queue.hello("b")
    await tell(queue, "a", coming(arrival(1, 1)))
    assert await told(queue) == {1: "r0"}
    await tell(queue, "b", coming(arrival(1, 2)))
    clock.now += queue_module.LEASE_S + 1
    answers: dict[int, str] = {}
    while not answers:
        answers = await told(queue, "b")
    assert answers == {1: "r0"}
    assert await queue.poll("a") is None
    assert not await tell(queue, "a", NO_NEWS)


@in_a_loop
async def test_a_request_whose_end_was_never_told_is_forgotten() -> None:
    queue, clock = await queue_of(1, max_request_s=10.0)
    await tell(queue, "a", coming(arrival(1, 1), arrival(2, 2)))
    (first,) = await told(queue)
    answers: dict[int, str] = {}
    while not answers:
        clock.now += 2.0
        answers = await told(queue)
    assert list(answers) == [3 - first]
    assert not await told(queue)


@in_a_loop
async def test_after_an_error_the_stock_rule_decides_for_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_module, "ASIDE_S", 0.1)
    queue, _ = await queue_of(1)
    await tell(queue, "a", coming(arrival(1, 1), arrival(2, 2)))
    (sent,) = await told(queue)
    queue._fleet = object()  # type: ignore[assignment]
    await tell(queue, "a", coming(arrival(3, 3)))
    assert await told(queue) == {3 - sent: STOCK, 3: STOCK}
    await tell(queue, "a", coming(arrival(4, 4)))
    assert await told(queue) == {4: STOCK}
    assert (await queue.status())["working"] is False
    await tell(queue, "a", NO_NEWS._replace(ended=[(sent, True)]))
    while not (await queue.status())["working"]:
        await asyncio.sleep(0.01)
    await tell(queue, "a", coming(arrival(5, 5)))
    assert await told(queue) == {5: "r0"}
    assert len([record for record in caplog.records if "peek's queue failed" in record.message]) == 1


@in_a_loop
async def test_metrics_that_fail_are_told_once_and_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    queue, _ = await queue_of(1)
    queue.export = lambda status: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    await queue._export()
    await queue._export()
    await tell(queue, "a", coming(arrival(1, 1)))
    assert await told(queue) == {1: "r0"}
    assert [record.message for record in caplog.records] == ["the metrics of peek's queue cannot be exported"]


@in_a_loop
async def test_one_request_that_cannot_be_read_goes_alone() -> None:
    queue, _ = await queue_of(1)
    broken = arrival(1, 1)._replace(key=b"123")
    await tell(queue, "a", coming(broken, arrival(2, 2)))
    assert await told(queue) == {1: STOCK, 2: "r0"}


def test_options_are_checked() -> None:
    with pytest.raises(InvalidConfig, match="'windows' is unknown; valid: cache_tokens, decode_tokens"):
        fleet_options(windows=3)
    with pytest.raises(InvalidConfig, match="retry_after_s"):
        divided({"retry_after_s": -1.0})
    with pytest.raises(InvalidConfig, match="window"):
        divided({"window": 8, "max_ongoing_requests": 4})
    assert fleet_config(divided({"max_ongoing_requests": 5})[0]).window_requests == 3


def test_without_its_ray_it_stands_aside(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peek.adapters.ray_serve.settings.VERSIONS", ("0.0.",))
    assert fleet_options(max_ongoing_requests=40) == {"max_ongoing_requests": 40}
    assert "peek stands aside" in caplog.text


def test_where_a_prompt_is_in_a_call() -> None:
    body = {"model": "m", "prompt": "p" * 200, "max_tokens": 7}
    chat = [{"role": "user", "content": "c" * 200}]
    tokens = token_key([1, 2, 3])
    assert prompt_of([None, body], {}) == Prompt(openai_key(body), 7)
    assert prompt_of([SimpleNamespace(**body, tools=None)], {}) == Prompt(openai_key(body), 7)
    assert prompt_of([SimpleNamespace(messages=chat)], {}) == Prompt(openai_key({"messages": chat}), 0)
    assert prompt_of([body], {}, "adapter") == Prompt(openai_key(body)._replace(namespace="m\0adapter"), 7)
    assert (
        prompt_of([[1, 2, 3]], {}) == prompt_of([body], {"prompt_token_ids": [1, 2, 3]}) == Prompt(tokens, 0)
    )
    parameters = {"peek_session": "s"}
    for name in ("vllm_xargs", "custom_params"):
        assert prompt_of([{**body, name: parameters}], {}) == Prompt(openai_key(body), 7, parameters)
        assert prompt_of([SimpleNamespace(**body, **{name: parameters})], {}) == Prompt(
            openai_key(body), 7, parameters
        )
    assert prompt_of(["some text"], {}) == Prompt(text_key("some text"), 0)
    assert prompt_of([object(), 3, []], {"other": None}) is None


# -- a router's client ------------------------------------------------------------------------------------

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


def asked(group: int) -> Arrival:
    key = token_key([group] * 64)
    return Arrival(0, key.key, key.num_tokens, "", 0, 0.0)


def connected_to(find: Callable[[], Any]) -> QueueClient:
    client = QueueClient(find)
    client.want(True)
    return client


async def until(happened: Callable[[], Any]) -> None:
    while not happened():
        await asyncio.sleep(0.01)


@in_a_loop
async def test_every_request_is_sent_once_and_none_to_a_replica_that_is_taken() -> None:
    handle = Handle(3)
    clients = [connected_to(lambda: handle) for _ in range(2)]
    at_work: set[str] = set()

    async def one(number: int) -> None:
        client = clients[number % 2]
        serial, replica = await client.acquire(asked(number % 7))
        assert replica not in at_work
        at_work.add(replica)
        await asyncio.sleep(0)
        at_work.remove(replica)
        client.end(serial, True)

    await asyncio.gather(*[one(number) for number in range(60)])
    await until(lambda: handle.queue._fleet is not None and handle.queue._fleet.stats.finished == 60)
    state = await handle.queue.status()
    assert state["added"] == state["dispatched"] == 60
    assert state["tells"] < 120


@in_a_loop
async def test_one_after_the_other_they_cost_a_call_each() -> None:
    handle = Handle()
    client = connected_to(lambda: handle)
    for number in range(20):
        serial, replica = await client.acquire(asked(number))
        assert replica == "r0"
        client.end(serial, True)
    await until(lambda: handle.queue._fleet is not None and handle.queue._fleet.stats.finished == 20)
    assert (await handle.queue.status())["tells"] == 21  # the last end is told alone


@in_a_loop
async def test_a_cancelled_request_is_out_of_the_queue() -> None:
    handle = Handle()
    client = connected_to(lambda: handle)
    serial, replica = await client.acquire(asked(1))
    assert replica == "r0"
    tasks = [asyncio.create_task(client.acquire(asked(group))) for group in (2, 3)]
    await until(lambda: len(handle.queue._fleet or "") == 2)
    tasks[0].cancel()
    await until(lambda: len(handle.queue._fleet or "") == 1)
    client.end(serial, True)
    assert (await tasks[1])[1] == "r0"


@in_a_loop
async def test_when_the_queue_dies_the_stock_rule_decides_until_the_next_queue_is_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handles = [Handle(), Handle()]
    client = connected_to(lambda: handles[0])
    await client.acquire(asked(1))
    waiting = asyncio.create_task(client.acquire(asked(2)))
    await until(lambda: len(handles[0].queue._fleet or "") == 1)
    handles.pop(0).dead = True
    assert (await waiting)[1] == STOCK
    await until(lambda: client.connected)
    serial, replica = await client.acquire(asked(3))
    assert replica == "r0"
    client.end(serial, True)
    assert len([record for record in caplog.records if "cannot be asked" in record.message]) == 1


class Stoppable(Handle):
    """One whose actor can be stopped: it answers nothing until it goes on."""

    def __init__(self) -> None:
        super().__init__(3)
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any) -> Any:
            await self.goes_on.wait()
            return await getattr(self.queue, name)(*args)

        return SimpleNamespace(remote=call)


@in_a_loop
async def test_when_the_queue_hangs_the_stock_rule_decides_until_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_client, "ANSWER_S", 0.1)
    handle = Stoppable()
    client = connected_to(lambda: handle)
    assert (await client.acquire(asked(1)))[1] != STOCK
    handle.goes_on.clear()
    hung = await asyncio.gather(*[client.acquire(asked(group)) for group in range(10)])
    assert [answer for _, answer in hung] == [STOCK] * 10
    assert client.fallbacks == 10
    assert (await client.acquire(asked(1)))[1] == STOCK
    handle.goes_on.set()
    await until(lambda: client.connected)
    assert (await client.acquire(asked(2)))[1] != STOCK
    assert client.fallbacks == 11


@in_a_loop
async def test_first_requests_do_not_wait_for_a_queue_that_is_slow_to_answer() -> None:
    handle = Stoppable()
    handle.goes_on.clear()
    client = connected_to(lambda: handle)
    first = await asyncio.gather(*[client.acquire(asked(group)) for group in range(3)])
    assert [answer for _, answer in first] == [STOCK] * 3
    assert not client.connected
    handle.goes_on.set()
    await until(lambda: client.connected)
    assert (await client.acquire(asked(1)))[1] != STOCK


@in_a_loop
async def test_without_a_queue_the_stock_rule_decides_and_a_warning_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looked: list[int] = []
    client = connected_to(lambda: looked.append(1))
    assert [(await client.acquire(asked(group)))[1] for group in (1, 2)] == [STOCK, STOCK]
    await until(lambda: len(looked) > 2)
    assert [record.message for record in caplog.records] == [
        "peek's queue cannot be asked, Ray Serve's own rule decides until it can (0 wait): there is none"
    ]


@in_a_loop
async def test_a_queue_that_does_not_know_a_router_any_more_is_told_again() -> None:
    handle = Handle()
    client = connected_to(lambda: handle)
    await client.acquire(asked(1))
    handle.queue._forget_router(client.name)
    await until(lambda: client.name in handle.queue._routers and client.connected)
    assert (await client.acquire(asked(1)))[1] == "r0"
