"""vLLM's OpenAI server with the adapter, and eight clients at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from test_engine import BLOCK, NAMES, PEEK, pytestmark, worked_prompts
from vllm_server import Server, serving

__all__ = ["pytestmark"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the worked check's engine."""
    with serving(tmp_path_factory.mktemp("server"), PEEK, {"policy": "peek", "strict": True}) as server:
        yield server


def test_eight_clients(server: Server) -> None:
    for attempt in range(6):
        answers = ask_together(server, worked_prompts(attempt))
        if answers:
            break
    else:
        pytest.fail("six times the first request ended before all eight waited: the machine is too busy")
    usages = [answer["usage"] for answer in answers]
    assert [usage["prompt_tokens"] for usage in usages] == [288] * 8
    assert [usage["completion_tokens"] for usage in usages] == [8] * 8
    assert sum((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0 for usage in usages) == 1280


def ask_together(server: Server, prompts: dict[str, list[int]]) -> list[dict[str, Any]]:
    """The answers to all prompts; none if they did not all wait behind the one that fills the cache."""
    with ThreadPoolExecutor(9) as clients:
        first = clients.submit(server.complete, [5] * (2 * BLOCK), 250)
        while server.metric("vllm:num_requests_running") < 1 and not first.done():
            time.sleep(0.02)
        answers = [clients.submit(server.complete, prompts[name], 8) for name in NAMES]
        together = False
        while not together and not first.done():
            together = server.metric("vllm:num_requests_waiting") == len(NAMES)
        found = [answer.result() for answer in answers]
        assert first.result()["usage"]["completion_tokens"] == 250
    return found if together else []


def test_metrics_stand_next_to_those_of_vllm(server: Server) -> None:
    server.complete([6] * BLOCK, 2)
    text = server.get("/metrics")
    assert "vllm:prompt_tokens" in text
    for name in ("cycles", "cached_tokens_real", "fair_lane_admissions", "plan_seconds"):
        assert f"peek_{name}_total" in text, name
    assert len({line.split("{")[0] for line in text.splitlines() if line.startswith("peek_")}) >= 12
    assert 'model_name="m"' in next(line for line in text.splitlines() if line.startswith("peek_active"))
    assert server.metric("peek_active") == 1
    assert server.metric("peek_fallbacks_total") == 0
