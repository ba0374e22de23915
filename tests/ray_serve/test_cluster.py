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
from itertools import count
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from serving import Gateway, Ledger, engines, exchange, exported, prompt_of, router, told

from peek.adapters.ray_serve import fleet_options

GROUPS, EACH, HELD = 24, 8, 8
STRANGER = prompt_of(999, 999)
OPTIONS = {"cache_tokens": HELD * 352, "decode_tokens": 0}
ONE_BY_ONE = {**OPTIONS, "max_ongoing_requests": 1}
NUMBERS = count()


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
    raise AssertionError(f"not within {within_s} s: {happened}")


def until_idle(handle: Any) -> dict[str, Any]:
    """What its router says once it has nothing under way."""

    def is_idle() -> bool:
        loads = router(handle).status()["replicas"].values()
        return not any(load["under_way"] for load in loads)

    until(is_idle)
    status: dict[str, Any] = router(handle).status()
    return status


def run(ledger: Any, *args: Any, **options: Any) -> Any:
    """A handle of new engines, which has been asked once."""
    handle = new_handle(ledger, *args, **options)
    asyncio.run(ask(handle, STRANGER))
    return handle


def new_handle(ledger: Any, *args: Any, **options: Any) -> Any:
    """Of an application with a name of its own: Ray keeps handles, and their routers, by name."""
    name = options.pop("name", "") or f"app{next(NUMBERS)}"
    return serve.run(engines(ledger, *args, **options), name=name, route_prefix=None)


def test_groups_hit_and_every_request_is_computed_once(cluster: str) -> None:
    hits = {}
    stock = {"max_ongoing_requests": 1}
    for name, options in {"stock": stock, "waits": ONE_BY_ONE, "peek": OPTIONS}.items():
        ledger = Ledger.remote()
        chosen = options if name == "stock" else fleet_options(**options)
        handle = run(ledger, HELD, name=name, num_replicas=4, **chosen)
        hits[name] = sum(asyncio.run(ask_all(handle, shuffled())))
        assert set(computed(ledger).values()) == {1}
    status = until_idle(handle)
    assert status["finished"] == status["added"] == GROUPS * EACH + 1
    assert (status["by_rays_rule"], status["waiting"], status["fallbacks"]) == (0, 0, 0)
    assert min(hits["peek"], hits["waits"]) >= 0.8 * GROUPS * (EACH - 1)
    assert min(hits["peek"], hits["waits"]) > 1.3 * hits["stock"]


def test_answers_stream(cluster: str) -> None:
    handle = run(Ledger.remote(), num_replicas=2, **fleet_options(**OPTIONS))
    streaming = handle.options(stream=True, method_name="stream")

    async def one(number: int) -> list[int]:
        return [part async for part in streaming.remote(prompt_of(number, number % 3))]

    async def scenario() -> list[list[int]]:
        return list(await asyncio.gather(*[one(100 * number) for number in range(1, 20)]))

    assert asyncio.run(scenario()) == [[100 * n + place for place in range(5)] for n in range(1, 20)]
    assert until_idle(handle)["finished"] == 20


def test_beyond_their_places_requests_wait_and_leave_when_cancelled(cluster: str) -> None:
    ledger = Ledger.remote()
    handle = run(ledger, 4, 60.0, num_replicas=1, **fleet_options(**ONE_BY_ONE))
    answers = [handle.remote(prompt_of(number, number)) for number in range(1, 5)]
    until(lambda: router(handle).status()["waiting"] == 3)
    going = until(lambda: entries(ledger))[0][0]
    waiting = [number for number in range(1, 5) if number != going]
    for number in waiting[:2]:
        answers[number - 1].cancel()
    until(lambda: router(handle).status()["waiting"] <= 1)
    assert answers[going - 1].result()[0] == going
    assert answers[waiting[2] - 1].result()[0] == waiting[2]
    assert sorted(computed(ledger)) == sorted([going, waiting[2]])
    with pytest.raises(TimeoutError):
        handle.remote(prompt_of(9, 9)).result(timeout_s=0.1)
    assert until_idle(handle)["by_rays_rule"] == 0


def post(address: str, path: str, prompt: list[int]) -> str:
    request = Request(f"{address}{path}", json.dumps({"prompt": prompt}).encode())
    with urlopen(request, timeout=180) as answer:
        return str(answer.read().decode())


async def post_all(address: str, path: str, prompts: list[list[int]]) -> list[str]:
    return list(await asyncio.gather(*[asyncio.to_thread(post, address, path, each) for each in prompts]))


def test_several_gateways_hear_of_each_other(cluster: str) -> None:
    ledger = Ledger.remote()
    model = engines(ledger, num_replicas=4, **fleet_options(**{**OPTIONS, "max_ongoing_requests": 2}))
    gateway = serve.deployment(Gateway).options(num_replicas=2, ray_actor_options={"num_cpus": 0.01})
    serve.run(gateway.bind(model), route_prefix="/")
    until(lambda: post(cluster, "/", STRANGER) and len(told()) >= 2)
    prompts = shuffled()[:64]
    assert asyncio.run(post_all(cluster, "/", prompts)) == [str(prompt[-1]) for prompt in prompts]
    assert asyncio.run(post_all(cluster, "/stream", prompts[:4])) == [
        "".join([f"{prompt[-1] + place}\n" for place in range(5)]) for prompt in prompts[:4]
    ]
    assert asyncio.run(post_all(cluster, "/twice", prompts[4:8])) == [
        json.dumps([prompt[-1], 0], separators=(",", ":")) for prompt in prompts[4:8]
    ]
    until(lambda: not any(told().values()))
    assert all(
        count == 1 for number, count in computed(ledger).items() if number not in prompt_numbers(prompts[:8])
    )


def prompt_numbers(prompts: list[list[int]]) -> set[int]:
    return {0, *[prompt[-1] for prompt in prompts]}


def test_two_handles_send_equal_prompts_to_one_replica(cluster: str) -> None:
    ledger = Ledger.remote()
    handle = run(ledger, HELD, num_replicas=4, **fleet_options(**OPTIONS))
    other = serve.get_deployment_handle("Engine", handle.app_name)
    asyncio.run(ask(other, STRANGER))
    until(lambda: router(handle).status()["routers"] == router(other).status()["routers"] == 2)

    async def one_by_one(by: Any, number: int) -> None:
        for group in range(8):
            await ask(by, prompt_of(1000 + 10 * group + number, group))

    asyncio.run(one_by_one(handle, 1))
    until(lambda: router(other)._exchange._heard == 2 + 8)
    until(lambda: not router(other)._decider._theirs)  # an ended load counts until the next exchange
    asyncio.run(one_by_one(other, 2))
    homes = dict(entries(ledger))
    assert [homes[1002 + 10 * group] for group in range(8)] == [
        homes[1001 + 10 * group] for group in range(8)
    ]
    answers = [handle.remote(prompt_of(7000 + number, 50 + number)) for number in range(4)]
    assert [answer.result()[0] for answer in answers] == [7000, 7001, 7002, 7003]
    until(lambda: not any(told(app=handle.app_name).values()))


def test_two_handles_share_the_places_of_the_replicas(cluster: str) -> None:
    ledger = Ledger.remote()
    handle = run(ledger, num_replicas=2, **fleet_options(**{**OPTIONS, "max_ongoing_requests": 2}))
    other = serve.get_deployment_handle("Engine", handle.app_name)
    prompts = shuffled()[:96]

    async def scenario() -> None:
        await asyncio.gather(ask_all(handle, prompts[:48]), ask_all(other, prompts[48:]))

    asyncio.run(scenario())
    assert set(computed(ledger).values()) == {1}
    assert max(ray.get(ledger.most.remote()).values()) <= 2
    until_idle(handle)
    until_idle(other)


@pytest.mark.parametrize("chooses_first", [False, True])
def test_a_refused_request_counts_once_where_it_is_computed_at_last(
    cluster: str, chooses_first: bool
) -> None:
    ledger = Ledger.remote()
    handle = run(ledger, 4, 6.0, num_replicas=1, **fleet_options(**ONE_BY_ONE))
    other = serve.get_deployment_handle("Engine", handle.app_name)
    asyncio.run(ask(other, STRANGER))
    until(lambda: router(other).status()["routers"] == 2 and not router(other)._decider._theirs)
    router(other)._exchange._task.cancel()  # so that it does not know of what the replica has

    async def chosen(prompt: list[int]) -> None:
        async with other.choose_replica(prompt) as selection:
            await other.dispatch(selection, prompt)

    async def scenario() -> None:
        for number in range(4):
            first = asyncio.create_task(ask(handle, prompt_of(10 + number, number)))
            await asyncio.sleep(0.2)
            prompt = prompt_of(20 + number, 50 + number)
            await (chosen(prompt) if chooses_first else ask(other, prompt))
            await first

    asyncio.run(scenario())
    status = until_idle(other)
    assert status["cancelled"] >= 4, "each was refused"
    assert status["finished"] == 5, "each was computed once"


def test_ray_refuses_what_is_too_much_and_says_when_to_come_again(cluster: str) -> None:
    bounds = {"max_queued_requests": 2, "backpressure_config": {"retry_after_s": 7}}
    options = {**fleet_options(**ONE_BY_ONE), **bounds}
    model = engines(Ledger.remote(), 4, 20.0, num_replicas=1, **options)
    gateway = serve.deployment(Gateway).options(ray_actor_options={"num_cpus": 0.01})
    serve.run(gateway.bind(model), route_prefix="/")
    post(cluster, "/", STRANGER)
    prompts = [prompt_of(number, number) for number in range(8)]

    async def scenario() -> list[Any]:
        calls = [asyncio.to_thread(post, cluster, "/", each) for each in prompts]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    answers = asyncio.run(scenario())
    refused = [each for each in answers if isinstance(each, HTTPError)]
    assert 0 < len(refused) <= 5  # Ray does not count exactly
    served = {each for each in answers if isinstance(each, str)}
    assert len(served) == len(prompts) - len(refused)
    assert served < {str(prompt[-1]) for prompt in prompts}
    assert {(each.code, each.headers["Retry-After"]) for each in refused} == {(503, "7")}
    handle = serve.get_deployment_handle("Engine", "default")
    with pytest.raises(BackPressureError):
        asyncio.run(ask_all(handle, prompts))


def of_router(series: str, app: str) -> float:
    """What the router of this process exports, -1.0 as long as it does not."""
    found = [value for labels, value in exported(series) if labels.get("application") == app]
    return found[0] if found else -1.0


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_without_the_exchange_routers_go_on_alone_and_tell_it(cluster: str, how: str) -> None:
    ledger = Ledger.remote()
    handle = run(ledger, num_replicas=4, name=how, **fleet_options(**OPTIONS))
    until(lambda: exchange(app=how) and len(told(app=how)) == 1)
    actor = exchange(app=how)
    before = router(handle).status()["exchange_failures"]
    pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    if how == "killed":
        ray.kill(actor)
    else:
        os.kill(pid, signal.SIGSTOP)
    try:
        asyncio.run(asyncio.wait_for(ask_all(handle, shuffled()[:20]), 60.0))
        until(lambda: router(handle).status()["exchange_failures"] > before)
        asyncio.run(asyncio.wait_for(ask_all(handle, shuffled()[20:40]), 60.0))
        until(lambda: of_router("peek_fleet_exchange_failures_total", how) >= 1.0)
    finally:
        if how == "stopped":
            with suppress(ProcessLookupError):  # Ray has killed it, and starts another
                os.kill(pid, signal.SIGCONT)
    until(lambda: exchange(app=how) and len(told(app=how)) == 1)
    assert set(computed(ledger).values()) == {1}
    status = until_idle(handle)
    assert (status["by_rays_rule"], status["fallbacks"], status["finished"]) == (0, 0, 41)
    assert of_router("peek_fleet_active", how) == 1.0


def test_after_an_error_of_ours_rays_rule_decides_and_the_router_tells_it(cluster: str) -> None:
    ledger = Ledger.remote()
    handle = run(ledger, num_replicas=4, name="broken", **fleet_options(**OPTIONS))
    router(handle)._decider._fleet = object()
    asyncio.run(ask_all(handle, shuffled()[:20]))
    status = router(handle).status()
    assert (status["active"], status["fallbacks"], status["by_rays_rule"]) == (False, 1, 20)
    assert set(computed(ledger).values()) == {1}
    until(lambda: of_router("peek_fleet_active", "broken") == 0.0)
    until(lambda: of_router("peek_fleet_fallbacks_total", "broken") == 1.0)
    until(lambda: of_router("peek_fleet_fallback_requests_total", "broken") == 20.0)


def test_a_long_prompt_that_everybody_shares_uses_the_seats_of_all_replicas(cluster: str) -> None:
    seats, replicas = 16, 4
    ledger = Ledger.remote()
    handle = run(ledger, 4, 50.0, num_replicas=replicas, **fleet_options(seats=seats))
    prompts = [[7] * 16_384 + [number] * 200 for number in range(seats * replicas)]
    asyncio.run(ask_all(handle, prompts))
    most = ray.get(ledger.most.remote())
    assert len(most) == replicas
    assert max(most.values()) <= seats  # or one waits for a seat while another replica has one free


def test_the_turns_of_a_session_go_to_one_replica(cluster: str) -> None:
    ledger = Ledger.remote()
    handle = run(ledger, num_replicas=3, **fleet_options(cache_tokens=0))

    async def scenario() -> None:
        for turn in range(6):  # what they have in common is the session only
            for session in range(2):
                number = 100 * session + turn + 100
                await ask(handle.options(session_id=f"talk {session}"), prompt_of(number, number))

    asyncio.run(scenario())
    assert until_idle(handle)["sessions_moved"] == 0
    homes = [{where for number, where in entries(ledger) if number // 100 == session} for session in (1, 2)]
    assert [len(home) for home in homes] == [1, 1]


def test_on_another_ray_the_stock_rule_decides(
    cluster: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = fleet_options(**OPTIONS)
    monkeypatch.setattr("peek.adapters.ray_serve.settings.VERSIONS", ("0.0.",))  # for this process's handle
    handle = new_handle(Ledger.remote(), num_replicas=2, **options)
    with caplog.at_level("ERROR", logger="ray.serve.peek"):
        asyncio.run(ask_all(handle, shuffled()[:20]))
    assert f"peek stands aside, Ray Serve's own router decides: Ray {ray.__version__} is none" in caplog.text
    assert router(handle).status() == {"active": False, "replicas": {}}


def test_direct_streaming_is_told_to_bypass_the_router(
    cluster: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING", "1")
    options = fleet_options(**OPTIONS)
    handle = new_handle(Ledger.remote(), num_replicas=1, **options)
    with caplog.at_level("WARNING", logger="ray.serve.peek"):
        asyncio.run(ask_all(handle, shuffled()[:2]))
    assert "its requests pass by peek" in caplog.text


def test_when_a_replica_is_killed_others_answer(cluster: str) -> None:
    ledger = Ledger.remote()
    handle = run(ledger, num_replicas=3, **fleet_options(**{**OPTIONS, "max_ongoing_requests": 2}))

    async def scenario() -> str:
        asking = asyncio.create_task(ask_all(handle, shuffled()))
        await asyncio.sleep(0.6)
        victim: str = next(iter(router(handle).status()["replicas"]))
        actor = f"SERVE_REPLICA::{handle.app_name}#Engine#{victim}"
        ray.kill(ray.get_actor(actor, namespace="serve"))
        await asking
        return victim

    victim = asyncio.run(scenario())
    counts = computed(ledger)
    assert len(counts) == GROUPS * EACH
    assert sum(counts.values()) <= GROUPS * EACH + 2  # what the dead one had begun
    until(lambda: len(router(handle).status()["replicas"]) == 3)
    assert victim not in until_idle(handle)["replicas"]


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
    handle = run(ledger, 4, 4.0, autoscaling_config=scaling, **fleet_options(**ONE_BY_ONE))
    assert len(router(handle).status()["replicas"]) == 1
    hits = asyncio.run(ask_all(handle, shuffled()))
    assert len(hits) == GROUPS * EACH
    assert set(computed(ledger).values()) == {1}
    assert len({replica for _, replica in entries(ledger)}) == 4
    until(lambda: len(router(handle).status()["replicas"]) == 1)


def test_a_rolling_update_loses_nobody(cluster: str) -> None:
    ledger = Ledger.remote()
    options = fleet_options(**{**OPTIONS, "max_ongoing_requests": 2})
    handle = run(ledger, 4, 1.0, num_replicas=3, **options)
    app = handle.app_name
    until(lambda: exchange(app=app) and told(app=app))
    before = exchange(app=app)._actor_id

    async def scenario() -> None:
        asking = asyncio.create_task(ask_all(handle, shuffled() * 2))
        await asyncio.sleep(0.6)
        serve.run(engines(ledger, 4, 1.1, num_replicas=3, **options), name=app, route_prefix=None)
        await asking

    asyncio.run(scenario())
    assert set(computed(ledger).values()) == {2}
    until(lambda: exchange(app=app) and exchange(app=app)._actor_id != before and told(app=app))
    asyncio.run(ask_all(handle, shuffled()[:10]))
    until_idle(handle)
