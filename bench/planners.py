"""The one place of `bench` that knows how a planner gets what only an engine or an experiment may choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

from peek.config import PeekConfig
from peek.planner import Planner
from peek.policy.base import AdmissionPolicy
from peek.policy.lanes import Lanes


def make_planner(
    config: PeekConfig,
    policy: AdmissionPolicy | None = None,
    *,
    lanes: Lanes | None = None,
    gated: bool = False,
    chained: bool = False,
    timer: Callable[[], float] | None = None,
) -> Planner:
    """A planner, with `policy` and `lanes` in place of the configured ones.

    `gated`: its engine shows a prefix to others only when its prefill ends; `chained`: its keys are chained
    block hashes.
    """
    settings = config if lanes is None else _with_lanes(config, lanes)
    return Planner(replace(settings, in_flight_gate=gated), policy, chained=chained, timer=timer)


def _with_lanes(config: PeekConfig, lanes: Lanes) -> PeekConfig:
    class WithLanes(PeekConfig):
        def build_lanes(self) -> Lanes:
            return lanes

    return WithLanes(**{field.name: getattr(config, field.name) for field in fields(config)})
