"""Naive twins of replicas: compute from plain lists, slowly, what a fleet must know of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from peek.testing.twins import common_length as common

Prompt = tuple[str, list[int]]
"""Namespace and symbols."""


def tokens_of(prompts: Iterable[Prompt], unit: int) -> int:
    """Tokens of some prompts, what they share counted once."""
    return unit * len({(space, tuple(key[:end])) for space, key in prompts for end in range(1, len(key) + 1)})


class NaiveCacheOf:
    """A cache that holds some prompts; its cursor is the path."""

    block_symbols = 1

    def __init__(self, prompts: list[Prompt], unit_tokens: int) -> None:
        self.prompts = prompts
        self.unit_tokens = unit_tokens

    def root(self, namespace: str) -> object:
        return namespace, []

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> tuple[int, object]:
        namespace, path = cursor
        assert len(path) == offset
        whole = path + segment.tolist()
        held = max((common(key, whole) for space, key in self.prompts if space == namespace), default=0)
        count = max(0, held - offset)
        return count, (namespace, whole[: offset + count])

    def node_id(self, cursor: object) -> int:
        raise NotImplementedError


class ModelReplica:
    """What was sent to a replica and what it has computed, in lists."""

    def __init__(self, speed: float, capacity: int, view: NaiveCacheOf | None) -> None:
        self.speed = speed
        self.capacity = capacity
        self.view = view
        self.accepting = True
        self.leaving = False
        self.tells = False
        self.others = (0, 0)
        """Requests that others sent there, and their tokens."""
        self.under_way: list[str] = []
        self.coming: dict[str, Prompt] = {}
        self.computed: dict[str, Prompt] = {}
        self.full = False
        self.work: dict[str, int] = {}

    def cold_tokens(self, prompt: Prompt, beside: Iterable[Prompt], unit: int) -> int:
        namespace, key = prompt
        held = list(self.coming.values()) + list(beside)
        held += list(self.computed.values()) if self.view is None else self.view.prompts
        reach = max((common(other, key) for space, other in held if space == namespace), default=0)
        return max(1, unit * (len(key) - reach))

    def askers(self, prompt: Prompt) -> int:
        """Known prompts that share at least half of what any of them shares with this one."""
        namespace, key = prompt
        known = [*self.coming.values(), *self.computed.values()]
        shared = [common(other, key) for space, other in known if space == namespace]
        return sum(each > 0 and 2 * each >= max(shared) for each in shared)

    def begin(self, request: str, prompt: Prompt, unit: int) -> None:
        self.work[request] = self.cold_tokens(prompt, [], unit)
        self.under_way.append(request)
        self.coming[request] = prompt

    @property
    def unstarted_tokens(self) -> int:
        return sum(self.work[request] for request in self.coming)

    def start(self, request: str) -> None:
        """Computed: the newest of those it holds, the oldest go where there is no room."""
        if request not in self.coming:
            return
        self.hold(request, self.coming.pop(request))

    def hold(self, request: str, prompt: Prompt) -> None:
        """It has a prompt: the newest one."""
        for other, held in list(self.computed.items()):
            if held == prompt:
                del self.computed[other]
        self.computed[request] = prompt
        while tokens_of(self.computed.values(), 1) > self.capacity and len(self.computed) > 1:
            del self.computed[next(iter(self.computed))]
            self.full = True

    def give_up(self, request: str) -> None:
        self.coming.pop(request, None)
        if request in self.under_way:
            self.under_way.remove(request)
