"""SGLang's real scheduling parts in virtual time, with the CPU time of `calc_priority`.

The engine itself is `VirtualSglang` of tests/sglang, which must be on Python's path; here it has the
policies of the evaluation and is timed.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.schedule_policy import CacheAgnosticPolicy, CacheAwarePolicy
from sglang_lab import make_world
from sglang_small import attach
from sglang_virtual import VirtualSglang

from bench.evaluation.cpu_time import timed
from bench.evaluation.policies import VARIANTS, base_of, planner_for
from bench.evaluation.streams import longest
from peek.simulation.cost import CostModel
from peek.simulation.workload import Workload

CONTEXT_TOKENS = 16384
KNOWN = {str(policy.value) for kind in (CacheAwarePolicy, CacheAgnosticPolicy) for policy in kind}
STOCK = {
    "fcfs+lru": ("fcfs", True),
    "lpm+lru": ("lpm", True),
    "lpm-nolimit+lru": ("lpm", False),
    "dfs-weight+lru": ("dfs-weight", True),
    "hrrn-limit+lru": ("hrrn", True),
    "hrrn+lru": ("hrrn", False),
    "spf+lru": ("shortest-prefill-first", True),
}
"""SGLang's own policies: its name, and whether its limit of 128 waiting (beyond: arrival order) holds."""


class RealSglang(VirtualSglang):
    """`VirtualSglang` under a policy of the evaluation, measuring the CPU time of each `calc_priority`."""

    def __init__(self, workload: Workload, label: str, cost: CostModel, **options: Any) -> None:
        policy, limited = STOCK.get(label, ("fcfs", True))
        world = make_world(
            workload.arena_tokens,
            policy=policy,
            max_running=workload.max_running,
            context=max(CONTEXT_TOKENS, longest(workload.requests)),
        )
        own = world.policy
        if not limited:  # SGLang has no switch for it
            own._determine_active_policy = lambda _queue: own.policy
        if label not in STOCK:  # `peek` as its plug-in puts it there; a variant brings its planner
            beside = attach(world, base_of(label), **options)
            if label in VARIANTS:
                beside.adapter.planner = planner_for(label, blocks=False)
        self.schedule_s: list[float] = []
        own.calc_priority = timed(own.calc_priority, self.schedule_s)
        super().__init__(workload, cost, world)
