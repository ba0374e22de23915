"""Small engines and queues for the tests that drive the scheduler by hand."""

from __future__ import annotations

import math
from collections import Counter
from itertools import count
from typing import Any

import pytest
from simulated_worker import RealScheduler
from support.followed import hit
from support.lab import Ask, Lab
from support.plays import Play
from vllm_lab import (
    BLOCK,
    Scheduler,
    cached_now,
    fake_output,
    make_request,
    make_scheduler,
    vllm,
    waiting_names,
)
from vllm_plays import Stepper, perform, plays

from peek import DualWalk, PendingTree
from peek.adapters.vllm import PeekScheduler
from peek.simulation.cost import CostModel

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
    tree = PendingTree()
    for name, key in engine.peek.adapter._keys.items():
        tree.insert(name, key)
    return DualWalk(tree).match(engine.peek.adapter.mirror)


def compared(engine: Any) -> dict[str, tuple[int, int, int]]:
    """Cached tokens of all that is planned: by a new walk, by the planner's own, and by vLLM's answer.

    The planner's own trusts `version`.
    """
    adapter = engine.peek.adapter
    adapter.sync()  # a lone request is looked at again when its first block is cached
    anew = matched(engine)
    adapter.planner.plan(adapter.mirror, adapter.clock())
    return {
        name: (hit, int(adapter.planner.cached_len(name)), cached_now(engine, engine.requests[name]))
        for name, hit in anew.items()
        if name in engine.requests  # else aborted since the last call of schedule()
    }


class Comparison:
    """A new walk, and the planner's own that trusts `version`, against vLLM's answer, in each step."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __call__(self, stepper: Any, scheduled: Any) -> None:
        adapter = stepper.beside.adapter
        assert len(adapter.mirror) == 0 or adapter._keys, "symbols that nothing waits for"
        for name, (anew, mine, truth) in compared(stepper.engine).items():
            assert anew == mine == truth, f"{name}: the version stood still, or the mirror is wrong"
            self.saw(adapter, name, truth)

    def saw(self, adapter: Any, name: str, truth: int) -> None:
        self.seen["cached" if truth else "cold"] += 1


class VllmLab(Lab):
    """On a scheduler with blocks of 16 tokens."""

    engine, version, view, low_first = "vllm", vllm.__version__.split("+")[0], "mirror", True
    caches_at_once = True
    pressed, answer = {"tokens": 256, "seats": 4}, 40

    def make(self, label: str | None, tokens: int, seats: int, priority: bool, options: Any) -> Stepper:
        given = None if label is None else {"policy": label, **options}
        cls = Scheduler if label is None else PeekScheduler
        blocks = tokens // BLOCK + 1
        return Stepper(make_scheduler(cls, blocks, max_num_seqs=seats, priority=priority, options=given))

    @property
    def scheduler(self) -> Any:
        return self.stepper.engine  # type: ignore[attr-defined]

    def request(self, ask: Ask) -> Any:
        made = make_request(
            ask.name,
            ask.tokens,
            ask.output,
            cache_salt=ask.salt,
            priority=ask.priority,
            arrival_time=self.stepper.now + 1e-6 * next(self._numbers),
        )
        tenant = {} if ask.tenant is None else {"peek_tenant": ask.tenant}
        made.sampling_params.extra_args = {**(ask.says or {}), **tenant} or None
        return made

    _numbers = count()

    def spoil(self, request: Any) -> str:
        request.arrival_time = math.nan
        return "nan"

    def in_order(self, stepper: Any) -> list[Any]:
        return list(stepper.engine.waiting)

    def plan(self) -> list[str]:
        engine = self.scheduler
        seats, engine.max_num_running_reqs = engine.max_num_running_reqs, 10**6
        self.beside.call(self.adapter.before_schedule)
        engine.max_num_running_reqs = seats
        return waiting_names(engine)

    def withdraw(self, request: Any) -> None:
        self.scheduler.waiting.remove_request(request)

    def come_back(self, request: Any) -> None:
        self.scheduler.waiting.add_request(request)

    def misread(self, patch: pytest.MonkeyPatch) -> None:
        from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager as Manager

        stock = Manager.find_longest_cache_hit.__func__

        def shorter(cls: Any, *args: Any, **more: Any) -> Any:
            answer = stock(cls, *args, **more)
            found = answer[0] if isinstance(answer[-1], int) else answer
            left = max(0, len(found[0]) - 4)
            for group in found:
                del group[left:]
            return (found, min(answer[1], left * BLOCK)) if isinstance(answer[-1], int) else answer

        patch.setattr(Manager, "find_longest_cache_hit", classmethod(shorter))

    def sabotage(self, method: str, after: int) -> None:
        super().sabotage(method, after)
        self.adapter._table = None  # the pool's table knows the methods of the mirror it was made for

    def check_stock_objects(self) -> None:
        self.scheduler.schedule()
        pool = self.scheduler.kv_cache_manager.block_pool
        objects = (self.scheduler.waiting, pool.cached_block_hash_to_block, pool.free_block_queue)
        assert [type(it).__module__.split(".")[0] for it in objects] == ["vllm"] * 3

    def plays(self, **kinds: Any) -> Any:
        return plays(**kinds)

    def perform(
        self, play: Play, label: str | None, overlap: bool = False, each_step: Any = None, **options: Any
    ) -> Stepper:
        given = None if label is None else {"policy": label, "strict": True, **options}
        return perform(play, given, overlap=overlap, stock=label is None, each_step=each_step)

    def account_at_the_end(self, stepper: Any) -> Any:
        stepper.engine.schedule()  # tells who has finished
        shadow = stepper.beside.foretold.shadow
        assert not shadow._here
        return shadow.account

    def simulate(self, workload: Any, mode: str) -> tuple[float, Any]:
        real = RealScheduler(workload, "peek", CostModel(), mode=mode)
        rate = hit(real.run())
        shadow = real.scheduler.peek.foretold.shadow
        return rate, None if shadow is None else shadow.account


@pytest.fixture
def lab() -> VllmLab:
    return VllmLab()
