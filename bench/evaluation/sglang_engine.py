"""SGLang's real scheduling parts in virtual time, under the policies of the evaluation.

The engine itself is `VirtualSglang` of tests/sglang, which must be on Python's path.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.schedule_policy import CacheAgnosticPolicy, CacheAwarePolicy
from sglang_lab import make_world
from sglang_small import attach
from sglang_virtual import VirtualSglang

from bench.evaluation.policies import EngineMissing, base_of, planner_for
from bench.evaluation.streams import context_tokens
from peek.simulation.cost import CostModel
from peek.simulation.workload import Workload

KNOWN = {str(policy.value) for kind in (CacheAwarePolicy, CacheAgnosticPolicy) for policy in kind}
STOCK = {
    "fcfs+lru": "fcfs",
    "lpm+lru": "lpm",
    "lpm-nolimit+lru": "lpm",
    "dfs-weight+lru": "dfs-weight",
    "hrrn-limit+lru": "hrrn",
    "hrrn+lru": "hrrn",
    "spf+lru": "shortest-prefill-first",
}
"""SGLang's own policies, by its names."""
UNLIMITED = ("lpm-nolimit+lru", "hrrn+lru")
"""Without SGLang's limit of 128 waiting requests, above which it keeps arrival order."""


class RealEngine(VirtualSglang):
    """`VirtualSglang` for every label of the evaluation; `options`: more options of the adapter."""

    def __init__(self, workload: Workload, label: str, cost: CostModel, **options: Any) -> None:
        name, seats = STOCK.get(label, "fcfs"), workload.max_running
        if name not in KNOWN:
            raise EngineMissing(f"this SGLang has no policy {name}")
        context = context_tokens(workload)
        world = make_world(workload.arena_tokens, policy=name, max_running=seats, context=context)
        own = world.policy
        if label in UNLIMITED:  # SGLang has no option for it
            own._determine_active_policy = lambda _queue: own.policy
        if label not in STOCK:  # `peek` as its plug-in attaches it; a variant brings its planner
            beside = attach(world, base_of(label), **{"tenants": "named", **options})
            if base_of(label) != label:
                beside.adapter.planner = planner_for(label, blocks=False)
        self.decision = own, "calc_priority"
        super().__init__(workload, cost, world)
