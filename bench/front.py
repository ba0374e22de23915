"""Where a policy stands between short mean and short tail, against the best of the stock policies.

    python -m bench.front [--policies peek index] [--biases 0.3 1.0] [--seeds 31 53 97] [--data FOLDER]

Simulated engines, the step times of the evaluation.  For each cell the mean and p99 TTFT, averaged over the
seeds, as per cent of difference to the best stock mean and to the best stock p99, which mostly are two
different policies'.  `!` marks a policy that some stock policy beats on both by more than 2 %.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from bench.builds import require_compiled
from bench.evaluation.plans import FAMILY, SIMULATED
from bench.evaluation.record import cost_for
from bench.evaluation.streams import build
from bench.recorded import RecordingMissing
from peek.config import PeekConfig
from peek.planner import Planner
from peek.simulation.block_engine import BlockEngine
from peek.simulation.radix_engine import RadixEngine
from peek.simulation.simulate import TOUCHING, figures
from peek.simulation.workload import Workload

STOCK = ("fcfs+lru", "lpm-nolimit+lru", "hrrn+lru", "spf+lru")
STREAMS = (
    "w1a:heavy",
    "w1c:moderate",
    "w1c:heavy",
    "w1d:heavy",
    "w1a:heavy:window",
    "w1c:heavy:window",
    "w2b:heavy",
    "w3b:heavy",
    "w3c:heavy",
    "w4:heavy",
    "w4-shared:heavy",
    "w5-short:heavy",
    "w5-long:heavy",
    "azure-code:1.0",
    "agents-1:32k",
)
MARGIN = 0.02

Point = tuple[float, float]
"""Mean and p99 TTFT in seconds."""


def play(engine: str, workload: Workload, config: PeekConfig) -> Point:
    blocks = engine == "simulated-blocks"
    planner = None
    if not config.is_stock:
        gate = not blocks and config.waits_for_prefills
        planner = Planner(config, chained=blocks, in_flight_gate=gate, strict=True)
    cost = cost_for(workload, engine)
    if blocks:
        jobs = BlockEngine(workload, planner, cost).run()
    else:
        touch = TOUCHING.get(config.admission, 0)
        jobs = RadixEngine(workload, planner, cost, touch_limit=touch).run()
    ttft = figures(workload, jobs)["ttft_s"]
    return ttft["mean"], ttft["p99"]


def mean_point(engine: str, stream: str, seeds: list[int], config: PeekConfig, data: Path | None) -> Point:
    points = []
    for seed in seeds:
        (workload,) = build(stream, seed, FAMILY[engine], data)
        points.append(play(engine, workload, config))
    mean, p99 = np.mean(points, axis=0)
    return float(mean), float(p99)


def row(engine: str, stream: str, configs: dict[str, PeekConfig], arguments: argparse.Namespace) -> str:
    at = (engine, stream, arguments.seeds)
    stock = [mean_point(*at, PeekConfig.from_label(label), arguments.data) for label in STOCK]
    best_mean, best_p99 = (min(column) for column in zip(*stock, strict=True))
    cells = [f"{best_mean:.1f} / {best_p99:.0f}"]
    for config in configs.values():
        mean, p99 = mean_point(*at, config, arguments.data)
        beaten = any(m < mean * (1 - MARGIN) and p < p99 * (1 - MARGIN) for m, p in stock)
        mark = " !" if beaten else ""
        cells.append(f"{100 * (mean / best_mean - 1):+.0f} / {100 * (p99 / best_p99 - 1):+.0f}{mark}")
    name = f"{stream.replace(':', ' ')}, {engine.removeprefix('simulated-')}"
    return "| " + " | ".join([name, *cells]) + " |"


def main() -> None:
    require_compiled()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--policies", nargs="*", default=["peek", "index"], help="labels")
    parser.add_argument("--biases", nargs="*", type=float, default=[0.3, 1.0], help="`mean_bias` of `index`")
    parser.add_argument("--seeds", nargs="*", type=int, default=[31, 53, 97])
    parser.add_argument("--streams", nargs="*", default=list(STREAMS))
    parser.add_argument("--data", type=Path, default=None, help="folder with the recorded traffic")
    arguments = parser.parse_args()
    configs = {label: PeekConfig.from_label(label) for label in arguments.policies}
    for bias in arguments.biases:
        configs[f"index, bias {bias:g}"] = PeekConfig(admission="index", lanes="none", mean_bias=bias)
    print("| cell | best stock, s | " + " | ".join(configs) + " |")
    print("|---" * (len(configs) + 2) + "|")
    for stream in arguments.streams:
        for engine in SIMULATED:
            try:
                print(row(engine, stream, configs, arguments), flush=True)
            except RecordingMissing as error:
                print(f"left out: {stream}: {error}", flush=True)


if __name__ == "__main__":
    main()
