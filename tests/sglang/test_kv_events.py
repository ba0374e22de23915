"""SGLang's own publisher of KV events: what a view knows of it, against what SGLang finds in its cache."""

from __future__ import annotations

import atexit
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from sglang.srt.disaggregation.kv_events import EventPublisherFactory, KVEventBatch
from sglang_lab import CORES, SALTED, expected_tokens, make_request
from sglang_plays import INTERLEAVED, Job, Play, perform, plays
from sglang_server import Server, serving
from sglang_tree import match_len
from support.listening import listen_until_quiet, matched, settle
from support.waiting import free_port

from peek.adapters.kv_events import KvEvents, namespace_of
from peek.fleet import EventView

_names = count()


class Listener:
    """Publishes what a cache tells, as SGLang's scheduler does, and compares after each step."""

    def __init__(self, play: Play) -> None:
        self.seen: Counter[str] = Counter()
        number = next(_names)
        config = {"publisher": "zmq", "endpoint": f"inproc://events-{number}"}
        config["replay_endpoint"] = f"inproc://replay-{number}"
        self.publisher = EventPublisherFactory.create(json.dumps(config), 0)
        self.view = EventView(play.slots)
        self.events = KvEvents(config["endpoint"], self.view, replay_endpoint=config["replay_endpoint"])
        self._play = play

    def __call__(self, stepper: Any, batch: Any) -> None:
        told = stepper.world.tree.take_events()
        if told:
            self.publisher.publish(KVEventBatch(ts=time.time(), events=told))
        publisher = self.publisher
        publisher._event_queue.join()
        settle(self.events, lambda: publisher._buffer[-1][0] if publisher._buffer else -1)
        page = self._play.page_size
        for number, job in enumerate(self._play.jobs):
            for tokens in prompts_of(job, number):
                truth = match_len(stepper.world, make_request("probe", tokens, cache_salt=job.salt))
                held = matched(self.view, tokens, namespace_of(None, job.salt))
                assert held // page * page == truth, (number, len(tokens), held, truth)
                self.seen["cached" if truth else "cold"] += 1
        self.view.check()

    def close(self) -> None:
        self.events.close()
        self.publisher.shutdown()
        atexit.unregister(self.publisher.shutdown)  # newer versions would wait for it once more


def prompts_of(job: Job, number: int) -> Iterator[list[int]]:
    """A job's prompt, that with its answer, and one that parts from it."""
    tokens = job.tokens(number)
    yield tokens
    yield tokens + expected_tokens(f"r{number}", len(tokens), job.max_tokens)
    yield [*tokens[: len(tokens) - 5], 7]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("core", CORES)
def test_the_view_is_the_cache(core: str | None, overlap: bool) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=20)
    @given(plays())
    @example(INTERLEAVED)
    def history(play: Play) -> None:
        # An extra key is told nowhere, a salt by those versions that have a field for it.
        jobs = [replace(job, namespace=None, salt=job.salt if SALTED else None) for job in play.jobs]
        play = replace(play, jobs=jobs)
        listener = Listener(play)
        try:
            perform(play, core=core, overlap=overlap, events=True, each_step=listener)
            assert (listener.events.lost, listener.events.reader.faults) == (0, 0)
        finally:
            listener.close()
        seen.update(listener.seen)

    history()
    assert seen["cached"] > 50
    assert seen["cold"] > 50


# -- a server --------------------------------------------------------------------------------------------

PAGE = 4
SLOTS = 1000


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, ports: tuple[int, int]) -> Iterator[Server]:
    config = {"publisher": "zmq", "endpoint": f"tcp://*:{ports[0]}", "replay_endpoint": f"tcp://*:{ports[1]}"}
    folder: Path = tmp_path_factory.mktemp("server")
    flags = ["--kv-events-config", json.dumps(config), f"--page-size={PAGE}", f"--max-total-tokens={SLOTS}"]
    module = "peek.adapters.sglang.launch_server"
    with serving(folder, *flags, module=module, PEEK_POLICY="peek") as server:
        yield server


@pytest.mark.slow
def test_a_server_finds_what_the_view_foretold(server: Server, ports: tuple[int, int]) -> None:
    rnd = random.Random(3)
    heads = [[rnd.randrange(20, 1000) for _ in range(160)] for _ in range(4)]
    server.generate(heads[0] + [5] * 9)  # before anybody listens
    view = EventView(SLOTS)
    address = "tcp://127.0.0.1"
    events = KvEvents(f"{address}:{ports[0]}", view, replay_endpoint=f"{address}:{ports[1]}")
    seen: Counter[bool] = Counter()
    for _ in range(40):
        head = rnd.choice(heads)
        tail = [rnd.randrange(20, 1000) for _ in range(rnd.randrange(1, 90))]
        prompt = head[: rnd.randrange(1, len(head))] + tail
        listen_until_quiet(events)
        foretold = matched(view, prompt[:-1]) // PAGE * PAGE
        answer = server.generate(prompt, rnd.randrange(1, 40))
        assert answer["meta_info"]["cached_tokens"] == foretold
        seen[foretold > 0] += 1
    assert min(seen[True], seen[False]) > 5
    assert (events.lost, events.reader.faults) == (0, 0)
    server.flush()
    server.generate([9] * 5)
    listen_until_quiet(events)
    assert len(view) < 5
    events.close()
