"""A minimal engine adapter, for tests of the attachment that both engines use."""

from __future__ import annotations

from typing import Any

from peek import PendingRequest
from peek.adapters.activation import Settings
from peek.adapters.containment import Shield
from peek.adapters.engine_adapter import EngineAdapter, EngineInfo
from peek.adapters.lifecycle import Attachment


class ToyCache:
    """A `CacheView` of a cache that keeps every prompt."""

    unit_tokens = 1

    def __init__(self) -> None:
        self.held: set[tuple[int, ...]] = set()

    def keep(self, prompt: list[int]) -> None:
        self.held |= {tuple(prompt[:length]) for length in range(1, len(prompt) + 1)}

    def root(self, namespace: str) -> object:
        return ()

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        assert isinstance(cursor, tuple)
        for matched, symbol in enumerate(segment):
            if (*cursor, symbol) not in self.held:
                return matched, cursor
            cursor = (*cursor, symbol)
        return len(segment), cursor

    def node_id(self, cursor: object) -> int:
        return -1


class EmptyCache:
    """A `CacheView` of a cache that holds nothing."""

    unit_tokens = 1

    def root(self, namespace: str) -> object:
        return namespace

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        return 0, cursor

    def node_id(self, cursor: object) -> int:
        return -1


class ToyEngine:
    """A list of ids that wait; admits the first in each step.  `arrive` gives everybody a prompt."""

    def __init__(self) -> None:
        self.queue: list[str] = []
        self.prompts: dict[str, list[int]] = {}
        self.admitted: list[str] = []
        self.owned_by: ToyAdapter | None = None
        self.made = 0
        self.aside: str | None = None
        self.fails_in: set[str] = set()
        """Names of calls into the adapter that raise: make, plan, detach."""

    def arrive(self, request_id: str, prompt: list[int]) -> None:
        self.queue.append(request_id)
        self.prompts[request_id] = prompt

    def step(self, attachment: Attachment[ToyAdapter]) -> None:
        adapter = attachment.working
        if adapter is not None:
            attachment.call(adapter.before)
        if self.queue:
            self.admitted.append(self.queue.pop(0))
        if adapter is not None:
            attachment.call(adapter.after)
            attachment.count()


class ToyAdapter(EngineAdapter):
    def __init__(self, engine: ToyEngine, settings: Settings, shield: Shield) -> None:
        if "make" in engine.fails_in:
            raise RuntimeError("injected into make")
        super().__init__(settings, shield, list)
        self.engine = engine
        self.now = 0.0
        self.view = ToyCache()
        self.seen: list[str] = []
        engine.made += 1
        assert engine.owned_by is None, "attached twice"
        engine.owned_by = self

    def before(self) -> None:
        self.now += 1.0
        for request_id in self.engine.queue:
            if request_id not in self.planner:
                key: Any = self.engine.prompts[request_id]
                self.planner.add(PendingRequest(request_id, key, self.now, num_tokens=len(key)))
        if "plan" in self.engine.fails_in:
            raise RuntimeError("injected into plan")
        plan = self.planner.plan(self.view, self.now)
        if list(plan) != self.engine.queue and not plan.stood_aside:
            self.engine.queue[:] = plan
            self.reordered += 1

    def after(self) -> None:
        for request_id in [r.request_id for r in self.planner.tree.requests()]:
            if request_id not in self.engine.queue:
                self.planner.remove(request_id, True, 1)
                self.view.keep(self.engine.prompts[request_id])

    def detach(self) -> None:
        self.engine.owned_by = None
        if "detach" in self.engine.fails_in:
            raise RuntimeError("injected into detach")


TOY = EngineInfo("toy", "1.0", "m", "none")


def toy(info: EngineInfo = TOY, **options: Any) -> tuple[ToyEngine, Attachment[ToyAdapter]]:
    """A new engine, and what is attached to it."""
    engine = ToyEngine()
    return engine, toy_attachment(engine, info, **options)


def toy_attachment(engine: ToyEngine, info: EngineInfo = TOY, **options: Any) -> Attachment[ToyAdapter]:
    settings = Settings.from_dict({"policy": "peek", **options})
    return Attachment(
        settings,
        lambda: engine.aside,
        lambda shield: ToyAdapter(engine, settings, shield),
        lambda: info,
    )
