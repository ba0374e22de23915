"""SGLang's own publisher of KV events: what a view knows of it, against what SGLang finds in its cache."""

from __future__ import annotations

import atexit
import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from sglang.srt.disaggregation.kv_events import EventPublisherFactory, KVEventBatch
from sglang_lab import CORES, HAS_CORES, SALTED, make_request
from sglang_plays import INTERLEAVED, perform, plays
from sglang_server import serving
from sglang_tree import match_len
from support.listening import Listener, check_a_server, events_config
from support.plays import Play
from support.waiting import free_port


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("core", CORES)
def test_the_view_is_the_cache(core: str | None, overlap: bool) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=20)
    @given(plays())
    @example(INTERLEAVED)
    def history(play: Play) -> None:
        # An extra key is told nowhere, a salt by those versions that have a field for it.
        jobs = [replace(job, space=None, salt=job.salt if SALTED else None) for job in play.jobs]
        play = replace(play, jobs=jobs)
        listener = Listener(play)
        publisher = EventPublisherFactory.create(json.dumps(listener.config), 0)
        listener.listen()

        def publish(stepper: Any, batch: Any) -> None:
            """As SGLang's scheduler does."""
            told = stepper.world.tree.take_events()
            if told:
                publisher.publish(KVEventBatch(ts=time.time(), events=told))

            def cached(job: Any, tokens: list[int]) -> int:
                return match_len(stepper.world, make_request("probe", tokens, cache_salt=job.salt))

            listener.compare(publisher, cached)

        perform(play, core=core, overlap=overlap, events=True, each_step=publish)
        listener.close(publisher)
        atexit.unregister(publisher.shutdown)  # newer versions would wait for it once more
        seen.update(listener.seen)

    history()
    assert min(seen["cached"], seen["cold"]) > 50


PAGE, SLOTS = 4 if HAS_CORES else 1, 1000  # before 0.5.23 a kernel for GPUs finds room for larger pages


@pytest.mark.slow
def test_a_server_finds_what_the_view_foretold(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    flags = ["--kv-events-config", json.dumps(events_config(ports))]
    flags += [f"--page-size={PAGE}", f"--max-total-tokens={SLOTS}"]
    module = "peek.adapters.sglang.launch_server"
    with serving(tmp_path, *flags, module=module, PEEK_POLICY="peek") as server:

        def ask(prompt: list[int], most: int, salt: str | None) -> int:
            return int(server.generate(prompt, most)["meta_info"]["cached_tokens"])

        check_a_server(ports, SLOTS, PAGE, ask, server.flush)
