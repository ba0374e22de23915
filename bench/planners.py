"""Makes planners for benchmarks, with settings that otherwise only an engine or an experiment chooses."""

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
    """Make a planner, with `policy`, if given, in place of the configured one.

    `gated`: the engine shows a prefix to other requests only when its prefill ends.  `chained`: keys are
    chained block hashes.
    """
    lanes = None if policy is None else config.build_lanes()
    return Planner(config, policy, chained, timer, lanes=lanes, in_flight_gate=gated)
