"""Small engines and queues for the tests that drive the scheduler by hand."""

from __future__ import annotations

from typing import Any

from support.broken import Broken
from vllm_lab import RequestStatus, cached_now, fake_output, make_request, make_scheduler

from peek import DualWalk, PendingTree
from peek.adapters.vllm import PeekScheduler

STRICT = {"policy": "peek", "strict": True}
A, B = [5] * 64, [9] * 64


def scheduler(cls: Any = PeekScheduler, options: Any = STRICT, **more: Any) -> Any:
    return make_scheduler(cls, options=options, **more)


def step(engine: Any) -> Any:
    scheduled = engine.schedule()
    engine.update_from_output(scheduled, fake_output(engine, scheduled))
    return scheduled


def run_out(engine: Any) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for _ in range(3000):
        if not engine.has_unfinished_requests():
            break
        scheduled = engine.schedule()
        for batch in engine.update_from_output(scheduled, fake_output(engine, scheduled)).values():
            for output in batch.outputs:
                tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
    assert not engine.has_unfinished_requests()
    return tokens


def interleaved(engine: Any, n: int = 6) -> None:
    """A1 B1 A2 B2 ...: a queue that any cluster order changes."""
    for i in range(n):
        engine.add_request(make_request(f"{'AB'[i % 2]}{i}", (A, B)[i % 2] + [20 + i] * 8, 3))


def matched(engine: Any) -> dict[str, int]:
    """Cached tokens of everybody the planner knows, by a new walk of a new tree over the mirror."""
    known = engine.peek.adapter.planner.tree
    tree = PendingTree()
    for request in known.requests():
        tree.insert(request.request_id, known.key_of(request.request_id))
    return DualWalk(tree).match(engine.peek.adapter.mirror)


def compared(engine: Any) -> dict[str, tuple[int, int, int]] | None:
    """Cached tokens of all that is planned: by a new walk, by the planner's own, and by vLLM's answer.

    The planner's own trusts `version`.  None while the pool is not watched.
    """
    adapter = engine.peek.adapter
    adapter.sync()  # a lone request is looked at again when its first block is cached
    if adapter._watch._table is None:
        return None
    anew = matched(engine)
    adapter.planner.plan(adapter.mirror, adapter.clock())
    return {
        name: (hit, int(adapter.planner.cached_len(name)), cached_now(engine, engine.requests[name]))
        for name, hit in anew.items()
        if name in engine.requests  # else aborted since the last call of schedule()
    }


def sabotage(engine: Any, method: str, after: int) -> None:
    adapter = engine.peek.adapter
    if hasattr(adapter.planner, method):
        adapter.planner = Broken(adapter.planner, method, after)
        return
    adapter.mirror = Broken(adapter.mirror, method, after)
    adapter._watch._mirror = adapter.mirror
    adapter._watch._table = None  # the pool's table knows the methods of the mirror it was made for


def assert_stock_objects(engine: Any) -> None:
    """Nothing of peek is left that could grow or cost."""
    engine.schedule()
    pool = engine.kv_cache_manager.block_pool
    objects = (engine.waiting, pool.cached_block_hash_to_block, pool.free_block_queue)
    assert [type(it).__module__.split(".")[0] for it in objects] == ["vllm"] * 3


def busy_run(engine: Any) -> list[str]:
    """Sharing, pressure, an abort, a reset: every call into peek happens.  The order of admission."""
    order = []
    for i in range(12):
        engine.add_request(make_request(f"r{i}", (A, B)[i % 2] + [20 + i] * 20, 40))
    engine.add_request(make_request("skips", [*A, 3], 3, skip_reading=True))
    for at in range(2000):
        if not engine.has_unfinished_requests():
            break
        if at == 3:
            engine.finish_requests("r11", RequestStatus.FINISHED_ABORTED)
        if at == 60:
            while engine.running:  # so that the reset succeeds
                scheduled = engine.schedule()
                order += [new.req_id for new in scheduled.scheduled_new_reqs]
                engine.update_from_output(scheduled, fake_output(engine, scheduled))
                if len(engine.requests) <= 2:
                    break
            engine.reset_prefix_cache()
        scheduled = engine.schedule()
        order += [new.req_id for new in scheduled.scheduled_new_reqs]
        engine.update_from_output(scheduled, fake_output(engine, scheduled))
    assert not engine.has_unfinished_requests()
    return order


def pressed(strict: bool) -> Any:
    """An engine with too few blocks for `busy_run`, and eviction by demand."""
    options = {"policy": "clpm+gm+dl+pe", "strict": strict}
    return make_scheduler(PeekScheduler, num_blocks=26, max_num_seqs=3, options=options)
