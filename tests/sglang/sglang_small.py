"""`peek` on lab worlds, as the plug-in puts it there."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from sglang_lab import World

from peek.adapters.activation import Settings
from peek.adapters.sglang.plugin import INSERTS, around_insert, around_order, stand
from peek.adapters.sglang.plugin import attach as attach_to

for target in INSERTS:
    if find_spec(target.rsplit(".", 2)[0]) is not None:
        stand(target, "around", around_insert)


def settings_of(label: str, **more: Any) -> Settings:
    return Settings.from_dict({"policy": label, "strict": True, **more})


def limits(**more: Any) -> Any:
    """A scheduler that does nothing, of SGLang's own limits, with these facts."""
    usual = {"max_running_requests": 4096, "max_prefill_tokens": 16384, "chunked_prefill_size": 0}
    return SimpleNamespace(**(usual | more), running_batch=SimpleNamespace(reqs=[]), waiting_queue=[])


def attach(world: World, label: str = "peek", scheduler: Any = None, **more: Any) -> Any:
    """Put `peek` around a world's `calc_priority`, as the plug-in does; returns its attachment."""
    policy, scheduler = world.policy, scheduler or limits()
    policy.calc_priority = partial(around_order, type(policy).calc_priority, policy)
    policy.peek = attach_to(policy, settings_of(label, **more), scheduler=scheduler)
    return policy.peek
