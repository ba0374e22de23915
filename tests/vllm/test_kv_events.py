"""vLLM's own publisher of KV events: what a view knows of it, against what vLLM finds in its cache."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from support.listening import listen_until_quiet, matched, settle
from support.waiting import free_port
from test_engine import VERSION
from vllm.config import KVEventsConfig
from vllm_lab import BLOCK, cached_now, expected_tokens, hash_lookahead, make_request
from vllm_plays import INTERLEAVED, Job, Play, perform, plays
from vllm_server import Server, serving

from peek.adapters.kv_events import KvEvents, namespace_of
from peek.fleet import EventView

_names = count()


class Listener:
    """Follows a scheduler from its first step on, and compares at each."""

    def __init__(self, play: Play, config: Any) -> None:
        self.seen: Counter[str] = Counter()
        self.view = EventView(play.num_blocks * BLOCK)
        self.events = KvEvents(config.endpoint, self.view, replay_endpoint=config.replay_endpoint)
        self._play = play

    def __call__(self, engine: Any, scheduled: Any) -> None:
        pool = engine.kv_cache_manager.block_pool
        if scheduled is not None or pool.kv_event_queue:
            return  # published at the end of a step
        publisher = engine.kv_event_publisher
        publisher._event_queue.join()
        settle(self.events, lambda: publisher._buffer[-1][0] if publisher._buffer else -1)
        for number, job in enumerate(self._play.jobs):
            for tokens in prompts_of(job, number):
                truth = cached_now(engine, probe(engine, job, tokens))
                held = matched(self.view, tokens, namespace_of(job.lora, job.salt))
                assert held // BLOCK * BLOCK == truth, (number, len(tokens), held, truth)
                self.seen["cached" if truth else "cold"] += 1
        self.view.check()


def prompts_of(job: Job, number: int) -> Iterator[list[int]]:
    """A job's prompt, that with its answer, and one that parts from it inside a block."""
    tokens = list(job.request(f"r{number}", number).prompt_token_ids)
    yield tokens
    yield tokens + expected_tokens(f"r{number}", len(tokens), job.max_tokens)
    yield [*tokens[: len(tokens) - 5], 7]


def probe(engine: Any, job: Job, tokens: list[int]) -> Any:
    """vLLM never finds the last token of a prompt: one more than is asked for."""
    more = [*tokens, 0, 0]
    return make_request("probe", more, lora=job.lora, cache_salt=job.salt, ahead=hash_lookahead(engine))


@contextmanager
def publishing() -> Iterator[Any]:
    number = next(_names)
    yield KVEventsConfig(
        enable_kv_cache_events=True,
        publisher="zmq",
        endpoint=f"inproc://events-{number}",
        replay_endpoint=f"inproc://replay-{number}",
    )


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_the_view_is_the_pool(asynchronous: bool) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=25)
    @given(plays())
    @example(INTERLEAVED)
    def history(play: Play) -> None:
        with publishing() as config:
            listener: list[Listener] = []

            def compare(engine: Any, scheduled: Any) -> None:
                if not listener:
                    listener.append(Listener(play, config))
                listener[0](engine, scheduled)

            outcome = perform(
                play, None, asynchronous=asynchronous, stock=True, each_step=compare, events=config
            )
            outcome.scheduler.kv_event_publisher.shutdown()
            listener[0].events.close()
            assert (listener[0].events.lost, listener[0].events.reader.faults) == (0, 0)
            seen.update(listener[0].seen)

    history()
    assert seen["cached"] > 50
    assert seen["cold"] > 50


# -- a server --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, ports: tuple[int, int]) -> Iterator[Server]:
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{ports[0]}"}
    config["replay_endpoint"] = f"tcp://*:{ports[1]}"
    folder: Path = tmp_path_factory.mktemp("server")
    flags = ("--kv-events-config", json.dumps(config))
    with serving(folder, "", None, *flags, engine=SIZES, VLLM_SERVER_DEV_MODE="1") as server:
        yield server


SIZES = {"block_size": 32, "num_gpu_blocks_override": 40}


@pytest.mark.slow
@pytest.mark.skipif(
    VERSION not in ("0.32.0", "0.33.0"), reason="the scheduler of this version alone runs here"
)
def test_a_server_finds_what_the_view_foretold(server: Server, ports: tuple[int, int]) -> None:
    rnd = random.Random(3)
    block = SIZES["block_size"]
    heads = [[rnd.randrange(3, 1000) for _ in range(5 * block)] for _ in range(4)]
    server.complete(heads[0] + [5] * 9, 4)  # before anybody listens
    view = EventView(SIZES["num_gpu_blocks_override"] * block)
    address = "tcp://127.0.0.1"
    events = KvEvents(f"{address}:{ports[0]}", view, replay_endpoint=f"{address}:{ports[1]}")
    seen: Counter[bool] = Counter()
    for _ in range(40):
        head = rnd.choice(heads)
        tail = [rnd.randrange(3, 1000) for _ in range(rnd.randrange(1, 90))]
        prompt = head[: rnd.randrange(1, len(head))] + tail
        salt = rnd.choice([None, None, "salt"])
        listen_until_quiet(events)
        foretold = matched(view, prompt[:-1], namespace_of(None, salt)) // block * block
        answer = server.complete(prompt, rnd.randrange(1, 40), **({"cache_salt": salt} if salt else {}))
        found = (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        assert found == foretold
        seen[found > 0] += 1
    assert min(seen[True], seen[False]) > 5
    assert (events.lost, events.reader.faults) == (0, 0)
    server.post("/reset_prefix_cache")
    server.complete([9] * 5, 2)
    listen_until_quiet(events)
    assert len(view) == 0
    events.close()
