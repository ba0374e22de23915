"""Ray Serve's own controller, proxy and handles, with replicas that only take their time."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from serving import Gateway, Ledger, engines, exported, prompt_of, queue, status

from peek.adapters.ray_serve import fleet_options

GROUPS, EACH = 24, 8
STRANGER = prompt_of(999, 999)
ONE_BY_ONE = {"max_ongoing_requests": 1, "window": 1, "cache_tokens": 4 * 352, "decode_tokens": 0}


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: str) -> Iterator[None]:
    yield
    for app in list(serve.status().applications):
        serve.delete(app)


def shuffled() -> list[list[int]]:
    prompts = [prompt_of(1000 + EACH * group + n, group) for group in range(GROUPS) for n in range(EACH)]
    random.Random(1).shuffle(prompts)
    return prompts


async def ask(handle: Any, prompt: list[int]) -> tuple[int, bool]:
    """Its answer; asked again where Ray says that a replica died with it."""
    while True:
        try:
            answer: tuple[int, bool] = await handle.remote(prompt)
        except RayActorError:
            continue
        return answer


async def ask_all(handle: Any, prompts: list[list[int]]) -> list[bool]:
    """Whether each found its prompt cached; every one is answered with its own number."""
    answers = await asyncio.gather(*[ask(handle, prompt) for prompt in prompts])
    assert [number for number, _ in answers] == [prompt[-1] for prompt in prompts]
    return [hit for _, hit in answers]


def entries(ledger: Any) -> list[tuple[int, str]]:
    """Who was computed where, `STRANGER` aside."""
    return [entry for entry in ray.get(ledger.entries.remote()) if entry[0] != STRANGER[-1]]


def computed(ledger: Any) -> Counter[int]:
    return Counter(number for number, _ in entries(ledger))


def until(happened: Callable[[], Any], within_s: float = 180.0) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = happened()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {within_s} s: {happened}; {status()}")


def idle(app: str = "default") -> bool:
    now = status(app=app)
    return (
        bool(now) and now["waiting"] == 0 and not any(each["under_way"] for each in now["replicas"].values())
    )


def until_connected(handle: Any, app: str = "default") -> None:
    """Until the queue decides for a handle."""
    before = status(app=app).get("finished", 0)

    def comes_in() -> bool:
        asyncio.run(ask(handle, STRANGER))
        return bool(status(app=app).get("finished", 0) > before)

    until(comes_in)


def test_groups_hit_and_every_request_is_computed_once(cluster: str) -> None:
    hits = {}
    for name, options in {"stock": {"max_ongoing_requests": 1}, "peek": fleet_options(**ONE_BY_ONE)}.items():
        ledger = Ledger.remote()
        handle = serve.run(engines(ledger, num_replicas=4, **options), name=name, route_prefix=None)
        if name == "peek":
            until_connected(handle, name)
        hits[name] = sum(asyncio.run(ask_all(handle, shuffled())))
        assert set(computed(ledger).values()) == {1}
    until(lambda: idle("peek"))  # where the machine is slow some may have gone by Ray's own rule
    assert status(app="peek")["finished"] > GROUPS * EACH // 2
    assert hits["peek"] >= 0.8 * GROUPS * (EACH - 1)
    assert hits["peek"] > 2 * hits["stock"]


def test_answers_stream(cluster: str) -> None:
    handle = serve.run(
        engines(Ledger.remote(), num_replicas=2, **fleet_options(**ONE_BY_ONE)), route_prefix=None
    )
    until_connected(handle)
    before = status()["finished"]
    streaming = handle.options(stream=True, method_name="stream")

    async def one(number: int) -> list[int]:
        return [part async for part in streaming.remote(prompt_of(number, number % 3))]

    async def scenario() -> list[list[int]]:
        return list(await asyncio.gather(*[one(100 * number) for number in range(1, 20)]))

    assert asyncio.run(scenario()) == [[100 * n + place for place in range(5)] for n in range(1, 20)]
    until(idle)
    assert status()["finished"] == before + 19


def test_who_is_cancelled_leaves_the_queue_at_once(cluster: str) -> None:
    ledger = Ledger.remote()
    options = fleet_options(**ONE_BY_ONE)
    handle = serve.run(engines(ledger, 4, 60.0, num_replicas=1, **options), route_prefix=None)
    until_connected(handle)
    answers = [handle.remote(prompt_of(number, number)) for number in range(1, 5)]
    until(lambda: status().get("waiting") == 3)
    going = until(lambda: entries(ledger))[0][0]
    waiting = [number for number in range(1, 5) if number != going]
    for number in waiting[:2]:
        answers[number - 1].cancel()
    until(lambda: status()["waiting"] <= 1)
    assert answers[going - 1].result()[0] == going
    assert answers[waiting[2] - 1].result()[0] == waiting[2]
    assert sorted(computed(ledger)) == sorted([going, waiting[2]])
    with pytest.raises(TimeoutError):
        handle.remote(prompt_of(9, 9)).result(timeout_s=0.1)


def post(address: str, path: str, prompt: list[int]) -> str:
    request = Request(f"{address}{path}", json.dumps({"prompt": prompt}).encode())
    with urlopen(request, timeout=180) as answer:
        return str(answer.read().decode())


async def post_all(address: str, path: str, prompts: list[list[int]]) -> list[str]:
    return list(await asyncio.gather(*[asyncio.to_thread(post, address, path, each) for each in prompts]))


def test_several_gateways_share_the_queue(cluster: str) -> None:
    ledger = Ledger.remote()
    model = engines(ledger, num_replicas=4, **fleet_options(**ONE_BY_ONE))
    gateway = serve.deployment(Gateway).options(num_replicas=2, ray_actor_options={"num_cpus": 0.01})
    serve.run(gateway.bind(model), route_prefix="/")
    until(lambda: post(cluster, "/", STRANGER) and status()["routers"] >= 2)
    until(idle)
    before = status()["finished"]
    prompts = shuffled()[:64]
    assert asyncio.run(post_all(cluster, "/", prompts)) == [str(prompt[-1]) for prompt in prompts]
    assert asyncio.run(post_all(cluster, "/stream", prompts[:4])) == [
        "".join([f"{prompt[-1] + place}\n" for place in range(5)]) for prompt in prompts[:4]
    ]
    until(idle)
    assert status()["finished"] == before + 68


def test_a_full_queue_refuses_and_says_when_to_come_again(cluster: str) -> None:
    options = fleet_options(**ONE_BY_ONE, max_waiting=2, retry_after_s=7.0)
    model = engines(Ledger.remote(), 4, 20.0, num_replicas=1, **options)
    gateway = serve.deployment(Gateway).options(ray_actor_options={"num_cpus": 0.01})
    serve.run(gateway.bind(model), route_prefix="/")
    until(lambda: post(cluster, "/", STRANGER) and status()["finished"])
    prompts = [prompt_of(number, number) for number in range(8)]

    async def scenario() -> list[Any]:
        calls = [asyncio.to_thread(post, cluster, "/", each) for each in prompts]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    answers = asyncio.run(scenario())
    refused = [each for each in answers if isinstance(each, HTTPError)]
    assert len(refused) == 5
    assert {(each.code, each.headers["Retry-After"]) for each in refused} == {(503, "7")}
    assert status()["refused"] == 5
    handle = serve.get_deployment_handle("Engine", "default")
    until_connected(handle)
    with pytest.raises(BackPressureError):
        asyncio.run(ask_all(handle, prompts))


def test_when_the_queue_is_killed_the_stock_rule_decides_until_it_is_back(cluster: str) -> None:
    ledger = Ledger.remote()
    options = fleet_options(**ONE_BY_ONE)
    handle = serve.run(engines(ledger, num_replicas=4, **options), route_prefix=None)
    until_connected(handle)
    prompts = shuffled()

    async def scenario() -> None:
        asking = asyncio.create_task(ask_all(handle, prompts))
        while status().get("waiting", 0) <= 20:
            await asyncio.sleep(0.05)
        ray.kill(queue())
        await asking

    asyncio.run(scenario())
    assert set(computed(ledger).values()) == {1}
    until(lambda: status().get("routers"))
    until_connected(handle)


def of_router(series: str, app: str) -> float:
    """What the router of this process exports, 0.0 as long as it does not."""
    found = [value for labels, value in exported(series) if labels.get("application") == app]
    return found[0] if found else 0.0


def test_while_the_queue_hangs_the_stock_rule_decides_and_the_router_tells_it(cluster: str) -> None:
    ledger = Ledger.remote()
    options = fleet_options(**ONE_BY_ONE)
    handle = serve.run(engines(ledger, num_replicas=4, **options), name="hangs", route_prefix=None)
    until_connected(handle, "hangs")
    until(lambda: of_router("peek_fleet_active", "hangs") == 1.0)
    before = of_router("peek_fleet_fallback_requests_total", "hangs")
    actor = queue(app="hangs")
    pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGSTOP)
    try:
        asyncio.run(asyncio.wait_for(ask_all(handle, shuffled()[4:14]), 60.0))
        until(lambda: of_router("peek_fleet_active", "hangs") == 0.0)
        until(lambda: of_router("peek_fleet_fallback_requests_total", "hangs") >= before + 10.0)
    finally:
        with suppress(ProcessLookupError):  # Ray has killed it, and starts another
            os.kill(pid, signal.SIGCONT)
    until(lambda: of_router("peek_fleet_active", "hangs") == 1.0)
    until_connected(handle, "hangs")
    assert set(computed(ledger).values()) == {1}


def test_a_long_prompt_that_everybody_shares_uses_the_seats_of_all_replicas(cluster: str) -> None:
    seats, replicas = 16, 4
    ledger = Ledger.remote()
    options = fleet_options(max_ongoing_requests=64)
    handle = serve.run(engines(ledger, 4, 50.0, num_replicas=replicas, **options), route_prefix=None)
    until_connected(handle)
    prompts = [[7] * 16_384 + [number] * 200 for number in range(seats * replicas)]
    asyncio.run(ask_all(handle, prompts))
    most = ray.get(ledger.most.remote())
    assert len(most) == replicas
    assert max(most.values()) <= seats  # or one waits for a seat while another replica has one free


def test_the_turns_of_a_session_go_to_one_replica(cluster: str) -> None:
    ledger = Ledger.remote()
    options = fleet_options(max_ongoing_requests=4, cache_tokens=0)
    handle = serve.run(engines(ledger, num_replicas=3, **options), route_prefix=None)
    until_connected(handle)

    async def scenario() -> None:
        for turn in range(6):  # what they have in common is the session only
            for session in range(2):
                number = 100 * session + turn + 100
                await ask(handle.options(session_id=f"talk {session}"), prompt_of(number, number))

    asyncio.run(scenario())
    until(idle)
    homes = [{where for number, where in entries(ledger) if number // 100 == session} for session in (1, 2)]
    assert [len(home) for home in homes] == [1, 1]
    assert status()["sessions_moved"] == 0


def test_on_another_ray_the_stock_rule_decides(
    cluster: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = fleet_options(**ONE_BY_ONE)
    monkeypatch.setattr(
        "peek.adapters.ray_serve.settings.VERSIONS", ("2.59.",)
    )  # for the handle of this process
    handle = serve.run(engines(Ledger.remote(), num_replicas=2, **options), name="other", route_prefix=None)
    with caplog.at_level("ERROR", logger="ray.serve.peek"):
        asyncio.run(ask_all(handle, shuffled()[:20]))
    assert "peek stands aside, Ray Serve's own router decides: Ray 2.60.0 is none" in caplog.text
    assert status(app="other")["routers"] == 0


def test_direct_streaming_is_told_to_bypass_the_queue(
    cluster: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING", "1")
    options = fleet_options(**ONE_BY_ONE)
    handle = serve.run(engines(Ledger.remote(), num_replicas=1, **options), name="direct", route_prefix=None)
    with caplog.at_level("WARNING", logger="ray.serve.peek"):
        asyncio.run(ask_all(handle, shuffled()[:2]))
    assert "its requests pass by peek's queue" in caplog.text


def test_when_a_replica_is_killed_others_answer(cluster: str) -> None:
    ledger = Ledger.remote()
    options = fleet_options(**{**ONE_BY_ONE, "max_ongoing_requests": 2})
    handle = serve.run(engines(ledger, num_replicas=3, **options), route_prefix=None)
    until_connected(handle)

    async def scenario() -> None:
        asking = asyncio.create_task(ask_all(handle, shuffled()))
        await asyncio.sleep(0.6)
        victim = next(iter(status()["replicas"]))
        ray.kill(ray.get_actor(f"SERVE_REPLICA::default#Engine#{victim}", namespace="serve"))
        await asking
        assert victim not in status()["replicas"]

    asyncio.run(scenario())
    counts = computed(ledger)
    assert len(counts) == GROUPS * EACH
    assert sum(counts.values()) <= GROUPS * EACH + 2  # what the dead one had begun
    until(lambda: len(status()["replicas"]) == 3 and idle())


def test_replicas_come_with_the_load_and_go_with_it(cluster: str) -> None:
    ledger = Ledger.remote()
    scaling = {
        "min_replicas": 1,
        "max_replicas": 4,
        "target_ongoing_requests": 2,
        "upscale_delay_s": 0.5,
        "downscale_delay_s": 1.0,
        "metrics_interval_s": 0.2,
        "look_back_period_s": 0.5,
    }
    options = fleet_options(**ONE_BY_ONE)
    handle = serve.run(engines(ledger, 4, 4.0, autoscaling_config=scaling, **options), route_prefix=None)
    assert len(until(lambda: status()["replicas"])) == 1
    until_connected(handle)
    hits = asyncio.run(ask_all(handle, shuffled()))
    assert len(hits) == GROUPS * EACH
    assert set(computed(ledger).values()) == {1}
    assert len({replica for _, replica in entries(ledger)}) == 4
    until(lambda: len(status()["replicas"]) == 1)


def test_a_rolling_update_loses_nobody(cluster: str) -> None:
    ledger = Ledger.remote()
    options = fleet_options(**ONE_BY_ONE)
    handle = serve.run(engines(ledger, 4, 1.0, num_replicas=3, **options), route_prefix=None)
    until_connected(handle)
    before = queue()._actor_id

    async def scenario() -> None:
        asking = asyncio.create_task(ask_all(handle, shuffled() * 2))
        await asyncio.sleep(0.6)
        serve.run(engines(ledger, 4, 1.1, num_replicas=3, **options), route_prefix=None)
        await asking

    asyncio.run(scenario())
    assert set(computed(ledger).values()) == {2}
    assert queue()._actor_id != before
    until(lambda: status().get("routers"))
    until_connected(handle)
    asyncio.run(ask_all(handle, shuffled()[:10]))
    assert status()["added"] >= 10
