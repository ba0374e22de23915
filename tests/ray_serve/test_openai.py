"""`ray.serve.llm`'s OpenAI endpoint, over two real vLLM engines on the CPU, behind peek's routers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
import ray
from openai_app import build
from ray import serve
from serving import exchange, exported, needs_its_vllm, start_cluster, stop_cluster, told
from support.tokenizers import write_tokenizer
from vllm_lab import TINY_LLAMA, write_model

from peek.adapters.ray_serve.decider import WAITING

pytestmark = [pytest.mark.slow, needs_its_vllm]

DEPLOYMENT = "LLMServer:m"
ENGINE = {
    "load_format": "dummy",
    "enforce_eager": True,
    "enable_prefix_caching": True,
    "block_size": 32,
    "max_model_len": 2048,
    "num_gpu_blocks_override": 400,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 8,
    "enable_prompt_tokens_details": True,
    "seed": 0,
}
OPTIONS = {"max_ongoing_requests": 64, "seats": 8, "cache_tokens": 12_800, "decode_tokens": 8}
TEMPLATE = "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}assistant: "
GROUPS, EACH = 12, 6


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    write_tokenizer(folder, TINY_LLAMA["vocab_size"])
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    found = start_cluster(VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    said = {"model": str(folder), "replicas": "2", "cpu": "1"}
    serve.run(build({**said, "options": json.dumps(OPTIONS), "engine": json.dumps(ENGINE)}))
    while len(told(DEPLOYMENT)) < ingress_replicas():  # each has a router of its own
        asyncio.run(post_all(found, conversations()[:24]))
    yield found
    stop_cluster()


def ingress_replicas() -> int:
    deployments = serve.status().applications["default"].deployments
    return sum(sum(each.replica_states.values()) for name, each in deployments.items() if name != DEPLOYMENT)


def under_way() -> int:
    """Requests that the routers have told each other of."""
    return sum(requests for loads in told(DEPLOYMENT).values() for requests, _ in loads.values())


def busy() -> list[str]:
    """Replicas that routers have told each other of; not the requests that wait in a router."""
    return [replica for loads in told(DEPLOYMENT).values() for replica in loads if replica != WAITING]


def counted(series: str) -> float:
    return sum(value for labels, value in exported(series) if labels.get("deployment") == DEPLOYMENT)


def chat(group: int, number: int, **more: Any) -> dict[str, Any]:
    """A conversation of a group: same instructions, another question."""
    return {
        "model": "m",
        "messages": [
            {"role": "system", "content": f"assistant number {group}, " + f"rule {group}; " * 60},
            {"role": "user", "content": f"question {number}"},
        ],
        "max_tokens": 4,
        "temperature": 0,
        **more,
    }


async def post(session: Any, address: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer; asked again where the engine that had the request died."""
    for _ in range(20):
        async with session.post(f"{address}/v1/chat/completions", json=body) as answer:
            if answer.status == 200:
                found: dict[str, Any] = await answer.json()
                return found
            assert answer.status >= 500, await answer.text()
        await asyncio.sleep(0.5)
    raise AssertionError("not answered")


async def post_all(address: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
        return list(await asyncio.gather(*[post(session, address, body) for body in bodies]))


def conversations() -> list[dict[str, Any]]:
    return [chat(group, number) for number in range(EACH) for group in range(GROUPS)]


async def until(happened: Callable[[], bool]) -> None:
    for _ in range(300):
        if happened():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(told(DEPLOYMENT))


async def idle() -> None:
    await until(lambda: bool(told(DEPLOYMENT)) and not under_way())


def test_conversations_find_their_instructions_cached(address: str) -> None:
    asyncio.run(idle())
    answers = asyncio.run(post_all(address, conversations()))
    prompt = sum(each["usage"]["prompt_tokens"] for each in answers)
    cached = sum((each["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0 for each in answers)
    assert len({each["id"] for each in answers}) == GROUPS * EACH
    assert cached > 0.72 * prompt
    asyncio.run(until(lambda: counted("peek_fleet_finished_requests_total") >= GROUPS * EACH))
    asyncio.run(until(lambda: counted("peek_fleet_sticky_requests_total") > 0.6 * GROUPS * EACH))
    assert counted("peek_fleet_fallback_requests_total") == 0.0


def test_an_answer_streams_and_a_client_that_goes_away_is_forgotten(address: str) -> None:
    async def scenario() -> None:
        await idle()
        async with aiohttp.ClientSession() as session:
            body = chat(1, 1, stream=True, ignore_eos=True, max_tokens=8)
            async with session.post(f"{address}/v1/chat/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                lines = [line async for line in answer.content if line.startswith(b"data: ")]
            assert lines[-1].strip() == b"data: [DONE]"
            long = chat(1, 2, stream=True, ignore_eos=True, max_tokens=1500)
            async with session.post(f"{address}/v1/chat/completions", json=long) as answer:
                await answer.content.readline()
                await until(lambda: under_way() == 1)
        await idle()

    asyncio.run(scenario())


def test_a_session_is_named_in_a_header_or_in_the_body(address: str) -> None:
    named = [
        (chat(1, 1), {"x-session-id": "in a header"}),
        (chat(1, 2, vllm_xargs={"peek_session": "in the body"}), {"x-session-id": "another"}),
    ]

    async def scenario() -> None:
        async with aiohttp.ClientSession() as session:
            for body, headers in named:
                url = f"{address}/v1/chat/completions"
                async with session.post(url, json=body, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()

    asyncio.run(scenario())
    sent = exchange(DEPLOYMENT).__ray_call__
    sessions = ["in a header", "in the body"]
    asyncio.run(
        until(
            lambda: ray.get(sent.remote(lambda it: [each.session for _, each in it._sent][-2:])) == sessions
        )
    )


def test_the_exchange_and_a_replica_are_killed_and_everybody_is_answered_once(address: str) -> None:
    async def scenario() -> None:
        long = [{**body, "max_tokens": 64} for body in conversations()]  # an idle router tells once a second
        asking = asyncio.create_task(post_all(address, long))
        await until(lambda: under_way() > 8 and bool(busy()))
        victim = busy()[0]
        ray.kill(exchange(DEPLOYMENT))
        await asyncio.sleep(0.3)
        ray.kill(ray.get_actor(f"SERVE_REPLICA::default#{DEPLOYMENT}#{victim}", namespace="serve"))
        answers = await asking
        assert len({each["id"] for each in answers}) == GROUPS * EACH

    asyncio.run(scenario())
