"""The one place of `bench` that knows how a planner gets what only an engine or an experiment may choose."""

from __future__ import annotations

from collections.abc import Callable

from peek.config import PeekConfig
from peek.planner import Planner
from peek.policy.base import AdmissionPolicy


def make_planner(
    config: PeekConfig,
    policy: AdmissionPolicy | None = None,
    *,
    gated: bool = False,
    chained: bool = False,
    timer: Callable[[], float] | None = None,
) -> Planner:
    """A planner, with `policy` in place of the configured one.

    `gated`: its engine shows a prefix to others only when its prefill ends; `chained`: its keys are chained
    block hashes.
    """
    lanes = None if policy is None else config.build_lanes()
    return Planner(config, policy, chained, timer, lanes=lanes, in_flight_gate=gated)
