"""What an adapter could break on the real Scheduler, one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm_lab import (
    BLOCK,
    AsyncScheduler,
    RequestStatus,
    Scheduler,
    cached_now,
    expected_tokens,
    fake_output,
    free_blocks,
    make_request,
    queued,
    token_at,
    waiting_names,
)
from vllm_plays import essence
from vllm_small import STRICT, A, B, interleaved, matched, run_out, scheduler, step

from peek.adapters.vllm import PeekAsyncScheduler, PeekScheduler


def test_preempted_requests_keep_their_precedence() -> None:
    engine = scheduler(num_blocks=26, max_num_seqs=4)
    for i in range(4):
        engine.add_request(make_request(f"long{i}", [30 + i] * 64, 100))
    step(engine)
    interleaved(engine)
    met = 0
    for _ in range(600):
        preempted = [r.request_id for r in engine.waiting if r.status == RequestStatus.PREEMPTED]
        if preempted:
            met += 1
            assert waiting_names(engine)[: len(preempted)] == preempted
            engine.peek.adapter.before_schedule()
            assert waiting_names(engine)[: len(preempted)] == preempted
            assert not set(preempted) & set(engine.peek.adapter._keys)
        if not engine.has_unfinished_requests():
            break
        step(engine)
    assert met > 5
    assert not engine.has_unfinished_requests()
    assert free_blocks(engine) == 25


def test_blocked_requests_keep_their_place() -> None:
    engine = scheduler(num_blocks=200, max_num_seqs=1)
    engine.add_request(make_request("running", [3] * 32, 40))
    step(engine)
    blocked = make_request("blocked", [*A, 1], 3)
    blocked.status = RequestStatus.WAITING_FOR_REMOTE_KVS
    interleaved(engine, 3)
    engine.waiting.add_request(blocked)
    engine.requests["blocked"] = blocked
    for i in range(3):
        engine.add_request(make_request(f"C{i}", (B, A)[i % 2] + [40 + i] * 8, 3))
    stock = waiting_names(engine)
    assert stock[3] == "blocked"
    engine.max_num_running_reqs = 2  # a free slot, or nothing is planned
    engine.peek.adapter.before_schedule()
    assert waiting_names(engine) != stock
    assert waiting_names(engine)[3] == "blocked"
    assert "blocked" not in engine.peek.adapter.planner
    for _ in range(10):
        step(engine)
        assert blocked in queued(engine)
    blocked.status = RequestStatus.WAITING
    assert run_out(engine)["blocked"] == expected_tokens("blocked", 65, 3)


def test_requests_that_hold_kv_keep_their_place() -> None:
    engine = scheduler(num_blocks=200, max_num_seqs=8)
    interleaved(engine)
    loaded = engine.requests["B1"]
    loaded.num_computed_tokens = 32  # as after a load from remote
    stock = waiting_names(engine)
    engine.peek.adapter.before_schedule()
    assert waiting_names(engine) != stock
    assert waiting_names(engine)[1] == "B1"
    assert "B1" not in engine.peek.adapter.planner


def test_output_tokens_grow_the_hash_list() -> None:
    engine = scheduler(num_blocks=200, max_num_seqs=2)
    first = make_request("first", A, 64)
    engine.add_request(first)
    engine.add_request(make_request("other", B, 200))
    for _ in range(50):
        step(engine)
    assert len(first.block_hashes) > 64 // BLOCK
    follow_up = A + [token_at("first", 64 + i) for i in range(40)]
    engine.add_request(make_request("next", follow_up, 2))
    engine.add_request(make_request("more", [*follow_up, 1], 2))
    engine.max_num_running_reqs = 3
    engine.peek.adapter.before_schedule()
    cached = matched(engine)
    assert cached["next"] == cached_now(engine, engine.requests["next"]) == 96
    run_out(engine)
    assert len(engine.peek.adapter.mirror) == 0


@pytest.mark.parametrize("others", [0, 6])
def test_resumable_sessions(others: int) -> None:
    engine = scheduler(num_blocks=200, max_num_seqs=4)
    engine.add_request(make_request("session", A + [1] * 9, 3, resumable=True))
    interleaved(engine, others)
    stats = engine.peek.adapter.planner.stats
    engine.peek.adapter.before_schedule()
    assert "session" in engine.peek.adapter.planner, "a session begins like any request"
    for _ in range(20):
        step(engine)
    assert engine.requests["session"].status == RequestStatus.WAITING_FOR_STREAMING_REQ
    assert (stats.admitted, stats.withdrawn) == (1 + others, 0)
    assert stats.prompt_tokens - engine.peek.adapter.cached_real == stats.uncached_admitted
    engine.add_request(make_request("session", [7] * 40, 3, resumable=True))
    interleaved(engine, others)
    engine.peek.adapter.before_schedule()
    assert "session" not in engine.peek.adapter.planner, "it goes on with what it holds"
    for _ in range(20):
        step(engine)
    assert (stats.admitted, stats.withdrawn) == (1 + 2 * others, 0)
    assert engine.requests["session"].num_prompt_tokens > 64 + 9 + 40
    engine.add_request(make_request("session", [], 3))  # the end of the session
    run_out(engine)
    assert not engine.requests
    assert len(engine.peek.adapter.mirror) == 0
    assert free_blocks(engine) == 199


def test_the_end_of_a_session_is_no_request_of_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    engine = scheduler(options={**STRICT, "trace_file": str(path)}, num_blocks=200)
    for tokens in (A, [*A, 1]):  # the second time its id comes back
        engine.add_request(make_request("session", tokens, 3, resumable=True))
        for _ in range(6):
            step(engine)
        engine.add_request(make_request("session", [7], 3))
        run_out(engine)
    assert [json.loads(row)["input_length"] for row in path.read_text().splitlines()] == [64, 65]


def test_who_gives_up_in_the_queue_is_no_request_of_the_trace(tmp_path: Path) -> None:
    """It would pass for one that was served, with an answer of unknown length."""
    path = tmp_path / "trace"
    options = {**STRICT, "trace_file": str(path)}
    engine = scheduler(options=options, num_blocks=200, max_num_seqs=1)
    for i in range(3):
        engine.add_request(make_request(f"r{i}", [*A, *[i] * i], 5))
    for _ in range(2):
        step(engine)
    (served,) = engine.running
    gives_up, last = (request.request_id for request in engine.waiting)
    for name in (served.request_id, gives_up):  # one has begun to answer
        engine.finish_requests(name, RequestStatus.FINISHED_ABORTED)
    run_out(engine)
    lengths = {f"r{i}": 64 + i for i in range(3)}
    rows = [json.loads(row) for row in path.read_text().splitlines()]
    assert [row["input_length"] for row in rows] == [lengths[served.request_id], lengths[last]]
    assert 0 < rows[0]["output_length"] < rows[1]["output_length"] == 5


def test_the_trace_tells_images_apart(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    engine = scheduler(options={**STRICT, "trace_file": str(path)}, num_blocks=200)
    for name, image in (("cat", "cat"), ("dog", "dog"), ("again", "cat")):
        shown = MultiModalFeatureSpec(None, "image", image, PlaceholderRange(offset=20, length=28))
        engine.add_request(make_request(name, [*A[:20], *[9] * 28, *B], mm_features=[shown]))
        step(engine)
        engine.finish_requests(name, RequestStatus.FINISHED_ABORTED)
    cat, dog, again = (json.loads(row)["hash_ids"] for row in path.read_text().splitlines())
    assert (cat, cat[0]) == (again, dog[0])
    assert not set(cat[1:]) & set(dog[1:])


def test_a_session_that_is_aborted_before_it_begins() -> None:
    engine = scheduler(num_blocks=200, max_num_seqs=1)
    engine.add_request(make_request("running", [3] * 32, 40))
    step(engine)
    for i in range(2):
        engine.add_request(make_request(f"session{i}", [*A, i], 3, resumable=True))
    engine.add_request(make_request("session1", [7] * 40, 3, resumable=True))  # its next chunk
    engine.peek.adapter.sync()
    assert len(engine.peek.adapter.planner) == 2
    engine.finish_requests("session1", RequestStatus.FINISHED_ABORTED)
    engine.peek.adapter.sync()
    assert engine.peek.adapter.planner.stats.withdrawn == 1
    engine.add_request(make_request("session0", [], 3))
    run_out(engine)
    assert len(engine.peek.adapter.mirror) == 0


def test_ranks_share_nothing() -> None:
    def play(engines: list[Any]) -> list[list[Any]]:
        outputs: list[list[Any]] = [[] for _ in engines]
        for rank, engine in enumerate(engines):
            interleaved(engine, 6 + 2 * rank)  # the same ids on both ranks
        for _ in range(30):
            for rank, engine in enumerate(engines):
                outputs[rank].append(essence(step(engine)))
        return outputs

    def make() -> Any:
        return scheduler(num_blocks=30, max_num_seqs=2)

    together = [make(), make()]
    assert together[0].peek.adapter.planner is not together[1].peek.adapter.planner
    interwoven = play(together)
    small, large = make(), make()
    assert interwoven[0] == play([small])[0]
    interleaved(large, 8)
    assert interwoven[1] == [essence(step(large)) for _ in range(30)]
    assert [engine.peek.adapter.planner.stats.admitted for engine in together] == [6, 8]


@pytest.mark.parametrize("classes", [(Scheduler, PeekScheduler), (AsyncScheduler, PeekAsyncScheduler)])
def test_speculative_tokens_are_untouched(classes: tuple[Any, Any]) -> None:
    rows = []
    for cls in classes:
        engine = scheduler(cls, num_blocks=200, max_num_seqs=3, asynchronous=classes[0] is AsyncScheduler)
        for i in range(3):
            engine.add_request(make_request(f"r{i}", [30 + i] * 20, 50))
        step(engine)
        interleaved(engine)
        for i in range(3):
            engine.requests[f"r{i}"].spec_token_ids = [50 + i, 60 + i]
        scheduled = engine.schedule()
        rows.append(essence(scheduled))
        assert all(request.num_computed_tokens == 0 for request in engine.waiting)
    assert rows[0] == rows[1]
    assert rows[0]["spec"] == {f"r{i}": [50 + i, 60 + i] for i in range(3)}


@pytest.mark.parametrize("priority", [False, True], ids=["fcfs", "priority"])
def test_one_that_enters_twice_kills_nobody(priority: bool) -> None:
    """A resumable request is preempted while its last token is in flight: vLLM (0.32) adds it once more."""
    worlds = []
    for cls in (AsyncScheduler, PeekAsyncScheduler):
        options = STRICT if cls is PeekAsyncScheduler else None
        engine = scheduler(cls, options, num_blocks=9, max_num_seqs=4, asynchronous=True, priority=priority)
        flight: list[tuple[Any, Any]] = []
        seen: list[tuple[list[str], list[str]]] = []
        for at in range(20):
            for due, name, tokens, count in ((0, "a", 61, 12), (1, "b", 60, 3), (6, "c", 20, 3)):
                if due == at:
                    engine.add_request(make_request(name, [ord(name)] * tokens, count, resumable=name == "b"))
            scheduled = engine.schedule()
            flight.append((scheduled, fake_output(engine, scheduled)))
            if len(flight) > 1:
                engine.update_from_output(*flight.pop(0))
            seen.append(([request.request_id for request in engine.running], waiting_names(engine)))
        worlds.append(seen)
    stock, ours = worlds
    assert [running for running, _ in ours] == [running for running, _ in stock]
    assert all(len(set(names)) == len(names) for _, names in ours)
