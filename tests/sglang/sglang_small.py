"""`peek` on lab worlds, as the plug-in puts it there."""

from __future__ import annotations

from typing import Any

from sglang_lab import World

from peek import PeekConfig
from peek.adapters.sglang.plugin import Seat, around


def config_of(label: str, **more: Any) -> PeekConfig:
    return PeekConfig.from_dict({"policy": label, "strict": True, **more})


def attach(world: World, label: str = "peek", **more: Any) -> Any:
    """Put `peek` around a world's `calc_priority`, as the plug-in does; returns its seat."""
    policy = world.policy
    hook = around(config_of(label, **more))
    stock = type(policy).calc_priority
    policy.calc_priority = lambda queue, *args, **kwargs: hook(stock, policy, queue, *args, **kwargs)
    policy.peek = Seat(policy, config_of(label, **more))
    return policy.peek
