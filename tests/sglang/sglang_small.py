"""`peek` on lab worlds, as the plug-in puts it there."""

from __future__ import annotations

from typing import Any

from sglang_lab import World
from sglang_stepper import Stepper

from peek.adapters.activation import Settings
from peek.adapters.sglang.plugin import after_prefill, around
from peek.adapters.sglang.plugin import attach as attach_to


def settings_of(label: str, **more: Any) -> Settings:
    return Settings.from_dict({"policy": label, "strict": True, **more})


def attach(world: World, label: str = "peek", scheduler: Any = None, **more: Any) -> Any:
    """Put `peek` around a world's `calc_priority`, as the plug-in does; returns its attachment."""
    policy = world.policy
    settings = settings_of(label, **more)
    hook = around(settings)
    stock = type(policy).calc_priority
    policy.calc_priority = lambda queue, *args, **kwargs: hook(stock, policy, queue, *args, **kwargs)
    policy.peek = attach_to(policy, settings, scheduler=scheduler)
    return policy.peek


class Told(Stepper):
    """A stepper that calls the hook behind SGLang's search for prefills."""

    def _prefill_batch(self) -> Any:
        batch = super()._prefill_batch()
        after_prefill(batch, self)
        return batch
