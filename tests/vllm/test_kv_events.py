"""vLLM's own publisher of KV events: what a view knows of it, against what vLLM finds in its cache."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from support.listening import Listener, check_a_server, events_config
from support.plays import Play
from support.waiting import free_port
from test_engine import pytestmark as whole_engine
from vllm.config import KVEventsConfig
from vllm_lab import cached_now, hash_lookahead, make_request
from vllm_plays import INTERLEAVED, perform, plays
from vllm_server import serving


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
def test_the_view_is_the_pool(overlap: bool) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=25)
    @given(plays())
    @example(INTERLEAVED)
    def history(play: Play) -> None:
        listener = Listener(play)

        def compare(stepper: Any, scheduled: Any) -> None:
            engine = stepper.engine
            listener.listen()
            if scheduled is not None or engine.kv_cache_manager.block_pool.kv_event_queue:
                return  # published at the end of a step

            def cached(job: Any, tokens: list[int]) -> int:
                """vLLM never finds the last token of a prompt: one more than is asked for."""
                named = {"lora": job.space, "cache_salt": job.salt, "ahead": hash_lookahead(engine)}
                return cached_now(engine, make_request("probe", [*tokens, 0, 0], **named))

            listener.compare(engine.kv_event_publisher, cached)

        config = KVEventsConfig(enable_kv_cache_events=True, **listener.config)
        stepper = perform(play, None, overlap=overlap, stock=True, each_step=compare, events=config)
        listener.close(stepper.engine.kv_event_publisher)
        seen.update(listener.seen)

    history()
    assert min(seen["cached"], seen["cold"]) > 50


@pytest.mark.slow
@whole_engine[1]
def test_a_server_finds_what_the_view_foretold(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    flags = ("--kv-events-config", json.dumps({"enable_kv_cache_events": True, **events_config(ports)}))
    flags += ("--num-gpu-blocks-override=40",)
    with serving(tmp_path, "", None, *flags, VLLM_SERVER_DEV_MODE="1") as server:

        def ask(prompt: list[int], most: int, salt: str | None) -> int:
            usage = server.complete(prompt, most, **({"cache_salt": salt} if salt else {}))["usage"]
            return (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0

        def reset() -> None:
            server.post("/reset_prefix_cache")

        check_a_server(ports, 40 * 32, 32, ask, reset, [None, None, "salt"])
