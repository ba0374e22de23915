"""One simulated run of a fleet, from names to the figures of the contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from peek.config import PeekConfig
from peek.errors import InvalidConfig
from peek.settings import require_one_of, require_within
from peek.simulation.block_cache import SymbolTable
from peek.simulation.block_engine import BlockEngine
from peek.simulation.cost import CostModel, Faster, StepTimes, cost_model_for
from peek.simulation.engine import SimEngine
from peek.simulation.fleet import SimFleet
from peek.simulation.fleet_router import PeekRouter
from peek.simulation.radix_engine import RadixEngine
from peek.simulation.routers import (
    CentralFifo,
    LeastOutstanding,
    LMetric,
    PrefixHash,
    RayPrefix,
    RoundRobin,
    Router,
    TokenBalance,
)
from peek.simulation.simulate import TOUCHING, PlanMeter, figures, make_planner
from peek.simulation.workload import Workload

ROUTERS: Final[dict[str, Callable[[], Router]]] = {
    "round-robin": RoundRobin,
    "least-outstanding": LeastOutstanding,
    "prefix-hash": PrefixHash,
    "token-balance": TokenBalance,
    "lmetric": LMetric,
    "ray-prefix": RayPrefix,
    "central-fifo": CentralFifo,
    "peek": PeekRouter,
    "peek-early": partial(PeekRouter, early=True),
}
"""Routers by name: what `--router` takes."""

MOST_REPLICAS: Final = 256


@dataclass(frozen=True)
class FleetShape:
    """What a fleet is and what happens to it.

    Attributes:
        router: one of `ROUTERS`.
        speeds: one replica for each, times the speed of the cost model.
        stale_s: seconds until the router hears of anything.
        losses: `(second, replica)`: that one dies then; replicas are numbered from 0 as they join.
        joins: `(second, speed)`: a replica of that speed joins then.
    """

    router: str
    speeds: Sequence[float]
    stale_s: float = 0.0
    losses: Sequence[tuple[float, int]] = ()
    joins: Sequence[tuple[float, float]] = ()

    def __post_init__(self) -> None:
        require_one_of("router", self.router, ROUTERS)
        require_within("replicas", len(self.speeds), 1, MOST_REPLICAS)
        require_within("stale_s", self.stale_s, 0.0, 3600.0)
        for speed in self.speeds:
            require_within("speed", speed, 0.01, 100.0)
        for second, name in self.losses:
            if not 0 <= name < len(self.speeds) + len(self.joins):
                raise InvalidConfig(f"there is no replica {name} to lose at {second} s")


def simulate_fleet(
    workload: Workload,
    label: str,
    shape: FleetShape,
    cache: str = "blocks",
    timer: Callable[[], float] | None = None,
    cost: CostModel | None = None,
    progress: Callable[[int], None] | None = None,
    router: Router | None = None,
) -> dict[str, Any]:
    """Run `workload` on a fleet whose engines have the policy `label`; figures as in `peek simulate --json`.

    Arguments as of `simulate`, and:

    Args:
        shape: of the fleet.
        router: one of your own in place of `shape.router`.

    Returns:
        Those of `simulate`, with `replicas`, `router`, `stale_s`, `imbalance` (the most prompt tokens that a
        replica computed, over the mean) and `decision_us` (of the router, for each event).
    """
    if shape.stale_s > 0.0 and cache != "blocks":
        raise InvalidConfig(f"stale_s is {shape.stale_s}; late news needs engines of kind 'blocks'")
    meter, decisions = PlanMeter(timer), PlanMeter(timer)
    model = cost_model_for(workload.name) if cost is None else cost
    engines = EngineKind(label, cache, model, meter)
    chosen = ROUTERS[shape.router]() if router is None else router
    fleet = SimFleet(workload, engines, chosen, list(shape.speeds), shape.stale_s, decisions, progress)
    for second, name in shape.losses:
        fleet.at(second, partial(fleet.lose, name))
    for second, speed in shape.joins:
        fleet.at(second, partial(fleet.join, speed))
    jobs = fleet.run()
    computed = [sum(j.prefill_tokens for j in m.engine.jobs.values()) for m in fleet.members]
    return {
        "workload": workload.name,
        "load": workload.load,
        "policy": label,
        "seed": workload.seed,
        "replicas": len(shape.speeds),
        "router": shape.router,
        "stale_s": shape.stale_s,
        **figures(workload, jobs),
        "imbalance": max(computed) * len(computed) / sum(computed),
        "plan_us": meter.figures(),
        "decision_us": decisions.figures(),
    }


class EngineKind:
    """Makes the engines of one fleet: calling it with limits and a speed gives one."""

    def __init__(self, label: str, cache: str, cost: StepTimes, timer: Callable[[], float]) -> None:
        self._config = PeekConfig.from_label(label)
        self._cache = cache
        self._cost = cost
        self._timer = timer
        self._symbols = SymbolTable()

    def __call__(self, limits: Workload, speed: float) -> SimEngine:
        config = self._config
        planner = None if config.is_stock else make_planner(config, self._cache, self._timer)
        cost = self._cost if speed == 1.0 else Faster(self._cost, speed)
        if self._cache == "blocks":
            return BlockEngine(limits, planner, cost, symbols=self._symbols)
        return RadixEngine(limits, planner, cost, touch_limit=TOUCHING.get(config.policy, 0))
