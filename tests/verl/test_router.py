"""verl's own router module, a real Ray, and rollout servers that only take their time.

The servers keep a cache of as many prompts as fit and take the simulated engine's time for the rest; the
client is a loop of what verl's does: acquire, generate, release.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import ray
from support.loops import in_a_loop
from support.waiting import start_ray
from verl.workers.rollout.router import get_router_handle

from peek.adapters.verl.load_balancer import FleetLoadBalancer

CACHE = 4
"""Groups that the cache of a server has room for."""

PROMPT = 600
TOKEN_S = 0.165e-3
SECOND = 0.4
"""Real seconds for a modelled one."""


@ray.remote(num_cpus=0)
class RolloutServer:
    """Computes one prompt after the other; what it computed last is cached."""

    def __init__(self) -> None:
        self._held: dict[int, None] = {}
        self._busy = asyncio.Lock()
        self.cached = 0

    async def generate(self, prompt_ids: list[int]) -> int:
        """Answers a prompt with a number that only the prompt decides."""
        async with self._busy:
            group = prompt_ids[0]
            known = group in self._held
            self.cached += PROMPT if known else 0
            self._held.pop(group, None)
            self._held[group] = None
            while len(self._held) > CACHE:
                del self._held[next(iter(self._held))]
            await asyncio.sleep((len(prompt_ids) - (PROMPT if known else 0)) * TOKEN_S * SECOND)
        return sum(prompt_ids) % 1009

    async def cached_tokens(self) -> int:
        return self.cached


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Any:
    start_ray(num_cpus=2, logging_level="error", log_to_driver=False)
    yield
    ray.shutdown()


def prompts() -> list[list[int]]:
    """24 groups of 6 samples, in the order in which a GRPO trainer sends them: sample by sample."""
    return [[group] * PROMPT + [1000 + sample] * 20 for sample in range(6) for group in range(24)]


async def roll_out(router: Any) -> list[int]:
    """Every prompt through `router`; the answers."""
    wanted = await router.require_acquire_fields.remote()

    async def one(number: int, prompt_ids: list[int]) -> int:
        extra = {"prompt_ids": prompt_ids} if wanted else {}
        server_id, server = await router.acquire_server.remote(request_id=f"r{number}", **extra)
        try:
            answer: int = await server.generate.remote(prompt_ids)
            return answer
        finally:
            router.release_server.remote(server_id=server_id, request_id=f"r{number}")

    return list(await asyncio.gather(*[one(*each) for each in enumerate(prompts())]))


def rolled_out(router: Any, servers: dict[str, Any]) -> tuple[list[int], int]:
    answers = asyncio.run(roll_out(router))
    return answers, sum(ray.get([server.cached_tokens.remote() for server in servers.values()]))


def config(tmp_path: Path, **options: int) -> str:
    path = tmp_path / "router.yaml"
    chosen = {"max_inflight": 4, "cache_tokens": CACHE * (PROMPT + 20), **options}
    lines = [f"{name}: {value}\n" for name, value in chosen.items()]
    path.write_text("router_class: peek.adapters.verl.load_balancer.FleetLoadBalancer\n" + "".join(lines))
    return str(path)


def four_servers() -> dict[str, Any]:
    return {f"s{number}": RolloutServer.remote() for number in range(4)}


def test_groups_hit_and_answers_are_the_same(tmp_path: Path) -> None:
    theirs, ours = four_servers(), four_servers()
    stock, stock_cached = rolled_out(get_router_handle(theirs), theirs)
    answers, cached = rolled_out(get_router_handle(ours, config(tmp_path)), ours)
    assert answers == stock == [sum(prompt) % 1009 for prompt in prompts()]
    assert cached > 1.5 * stock_cached


def test_servers_are_removed_and_added_under_way(tmp_path: Path) -> None:
    servers = four_servers()
    router = get_router_handle(servers, config(tmp_path))

    async def scenario() -> list[int]:
        rolling = asyncio.create_task(roll_out(router))
        await asyncio.sleep(0.5)
        await router.remove_servers.remote(["s0", "s1"])
        await router.add_servers.remote({"s4": RolloutServer.remote()})
        return await rolling

    answers = asyncio.run(scenario())
    assert answers == [sum(prompt) % 1009 for prompt in prompts()]
    assert ray.get(router.get_all_servers.remote()) == ["s2", "s3", "s4"]
    assert ray.get(router.get_total_inflight.remote()) == 0


def test_an_empty_pool_is_told_in_words_that_verls_client_knows(tmp_path: Path) -> None:
    router = get_router_handle({}, config(tmp_path))
    with pytest.raises(ray.exceptions.RayTaskError, match="No available servers in load balancer"):
        ray.get(router.acquire_server.remote(request_id="a", prompt_ids=[1]))


def test_the_turns_of_a_rollout_go_to_one_server(tmp_path: Path) -> None:
    servers = four_servers()
    router = get_router_handle(servers, config(tmp_path))

    async def homes(rollout: str) -> set[str]:
        found = set()
        for turn in range(8):  # what they have in common is the request id of the rollout only
            prompt_ids = [1000 * int(rollout) + turn] * PROMPT
            server_id, _ = await router.acquire_server.remote(request_id=rollout, prompt_ids=prompt_ids)
            await router.release_server.remote(server_id=server_id, request_id=rollout)
            found.add(server_id)
        return found

    assert [len(asyncio.run(homes(rollout))) for rollout in "12"] == [1, 1]
    assert ray.get(router.get_status.remote())["sessions_moved"] == 0


def test_what_verl_asks_of_a_balancer_is_there(tmp_path: Path) -> None:
    router = get_router_handle(four_servers(), config(tmp_path))
    status = ray.get(router.get_status.remote())
    assert {"servers", "total_inflight", "active_servers"} <= set(status)
    cleared = ray.get(router.clear_sticky_cache.remote())
    assert {"cleared_entries", "server_loads"} <= set(cleared)
    assert ray.get(router.require_release_fields.remote()) == ["request_id"]


class Breaks:
    """The real planner, of which one method fails; `calls` counts how often it is called."""

    def __init__(self, fleet: Any, broken: str) -> None:
        self.fleet, self.broken, self.calls = fleet, broken, 0

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self.broken else getattr(self.fleet, name)

    def __contains__(self, name: str) -> bool:
        return name in self.fleet

    def _fail(self, *_: Any, **__: Any) -> None:
        self.calls += 1
        raise ArithmeticError("a bug")


@pytest.mark.parametrize("broken", ["join", "dispatch", "cancel", "finished", "lost", "forget_caches", "add"])
@in_a_loop
async def test_whichever_call_fails_verl_hears_of_no_error_and_nobody_waits(broken: str) -> None:
    lb = FleetLoadBalancer({"s0": "a"}, {"max_inflight": 1, "max_warm_inflight": 1})
    await lb.acquire_server("1", prompt_ids=[1, 2, 3])
    waiting = [asyncio.create_task(lb.acquire_server(name, prompt_ids=[1, 2, 3])) for name in "234"]
    await asyncio.sleep(0)
    planner = lb._fleet = Breaks(lb._fleet, broken)
    for _ in range(2):
        lb.add_servers({"s1": "b"})
        waiting[0].cancel()
        await asyncio.sleep(0)
        lb.clear_sticky_cache()
        lb.release_server("s0", request_id="1")
        lb.remove_servers(["s1"])
        assert (await lb.acquire_server("5", prompt_ids=[5]))[0] == "s0"
        assert lb.get_status()["active_servers"] == 1
    assert lb._stock is not None
    assert planner.calls == 1, "it is left alone once it has failed"
    assert {(await each)[0] for each in waiting[1:]} <= {"s0", "s1"}
    lb.remove_servers(["s0"])
    with pytest.raises(RuntimeError, match="No available servers in load balancer"):
        await lb.acquire_server("6", prompt_ids=[6])


@in_a_loop
async def test_what_is_under_way_at_an_error_of_ours_counts_for_verls_own_balancer() -> None:
    lb = FleetLoadBalancer({"s0": "a", "s1": "b"}, {"max_inflight": 8})
    where = [(await lb.acquire_server(name, prompt_ids=[1] * 1000))[0] for name in "123"]
    lb._fleet = Breaks(lb._fleet, "add")  # type: ignore[assignment]
    where += [(await lb.acquire_server(name, prompt_ids=[2]))[0] for name in "4567"]
    assert sorted(lb.get_status()["servers"].values()) == [3, 4]
    for name, server in zip("123", where, strict=False):
        lb.release_server(server, request_id=name)
    assert lb._stock.get_status()["servers"] == lb.get_status()["servers"]


@pytest.mark.parametrize("broken", ["lost", "cancel"])
@in_a_loop
async def test_an_error_when_the_last_server_goes_leaves_nobody_waiting(broken: str) -> None:
    lb = FleetLoadBalancer({"s0": "a"}, {"max_inflight": 1, "max_warm_inflight": 1})
    await lb.acquire_server("1", prompt_ids=[1, 2, 3])
    waiting = asyncio.create_task(lb.acquire_server("2", prompt_ids=[1, 2, 3]))
    await asyncio.sleep(0)
    lb._fleet = Breaks(lb._fleet, broken)  # type: ignore[assignment]
    lb.remove_servers(["s0"])
    with pytest.raises(RuntimeError, match="No available servers in load balancer"):
        await waiting


@pytest.mark.parametrize(
    ("broken", "leaving"),
    [*[("forget_caches", each) for each in ("", "2", "3", "23")], ("cancel", "2"), ("cancel", "23")],
)
@in_a_loop
async def test_what_is_on_its_way_to_a_client_at_an_error_of_ours_counts_once(
    broken: str, leaving: str
) -> None:
    """One client is to hear of the planner's choice, another of verl's own; either may leave before."""
    lb = FleetLoadBalancer({"s0": "a"}, {"max_inflight": 1, "max_warm_inflight": 1})
    await lb.acquire_server("1", prompt_ids=[1])
    asking = {name: asyncio.create_task(lb.acquire_server(name, prompt_ids=[1])) for name in "234"}
    await asyncio.sleep(0)
    lb.release_server("s0", request_id="1")
    lb._fleet = Breaks(lb._fleet, broken)  # type: ignore[assignment]
    lb.clear_sticky_cache()
    for name in leaving:
        asking[name].cancel()
    await asyncio.gather(*asking.values(), return_exceptions=True)
    assert lb._stock.get_status()["servers"] == lb.get_status()["servers"]
    assert lb.get_total_inflight() == 3 - len(leaving)
