"""Checks orders on an independent simulator: NVIDIA's `aisimulate`, with own engine, cache and step times.

    python3 -m venv build/aisimulate
    build/aisimulate/bin/pip install aisimulate==0.13.0.dev202610270000000085
    python -m bench.neutral.aisimulate [--aisimulate build/aisimulate/bin/aisimulate] [--csv FILE]

`aisimulate` serves requests in arrival order, and requests that arrive at the same time in the order of its
input.  So all requests of a load arrive at once, our simulated engine serves them under a policy, and
`aisimulate` gets them in the order of our admissions.  A further row has them arrive at the load's own
times.  `aisimulate` is not fitted to our engine: Qwen3-32B on one H100 by its own tables, the load's arena
and seats, blocks of 16 tokens.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.builds import require_compiled
from bench.neutral.loads import SEED, Served, at_once, load, ours
from peek.simulation.workload import Workload
from peek.trie.keys import SYMBOL_BYTES

BLOCK_TOKENS: Final = 16
MODEL, CARD = "Qwen/Qwen3-32B", "h100_sxm"
CELLS: Final = ("w1a", "w1c", "w1d", "kind:rag", "kind:templates", "kind:documents")
POLICIES: Final = ("fcfs+lru", "lpm-nolimit+lru", "hrrn+lru", "spf+lru", "peek")

CONFIG: Final = """\
traffic:
  source: {{type: trace, format: mooncake, paths: [{trace}], block_size: {block}}}
  load: {{type: trace_timestamps}}
engine:
  mode: aggregated
  model: {model}
  hardware: {card}
  backend: vllm
  workers:
    aggregated:
      parallelism: {{tensor: 1}}
      scheduler: {{max_sequences: {seats}}}
      kv_cache: {{block_size: {block}, capacity: {{type: fixed, blocks: {blocks}}}}}
"""


def rows(workload: Workload, order: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield requests as rows of Mooncake's traces, with a hash per block, also a partial one.  O(tokens)."""
    requests = {each.request_id: each for each in workload.requests}
    known: dict[tuple[object, bytes], int] = {}
    width = BLOCK_TOKENS * SYMBOL_BYTES
    for request_id in order:
        request = requests[request_id]
        before: object = request.namespace
        hashes = []
        for start in range(0, len(request.key), width):
            before = known.setdefault((before, request.key[start : start + width]), len(known))
            hashes.append(before)
        yield {
            "timestamp": round(1e3 * request.arrival_s, 3),
            "input_length": len(request.key) // SYMBOL_BYTES,
            "output_length": request.output_tokens,
            "hash_ids": hashes,
        }


def theirs(program: Path, workload: Workload, order: Sequence[str]) -> Served:
    """Serve the requests in this order on `aisimulate`; return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        trace, config, out = (Path(folder) / name for name in ("trace.jsonl", "config.yaml", "out"))
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows(workload, order)))
        config.write_text(
            CONFIG.format(
                trace=trace, block=BLOCK_TOKENS, model=MODEL, card=CARD,
                seats=workload.max_running, blocks=workload.arena_tokens // BLOCK_TOKENS,
            )
        )  # fmt: skip
        command = [str(program), "predict", "-c", str(config), "--output-dir", str(out), "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        told = json.loads((out / "prediction.json").read_text())
    if told["completed_requests"] != len(order):
        raise SystemExit(f"{told['completed_requests']} of {len(order)} requests were served")
    reused = told["first_admission_prefix_cache_reused_ratio"]
    mean_s, p99_s = told["mean_ttft_ms"] / 1e3, told["p99_ttft_ms"] / 1e3
    return Served(reused, mean_s, p99_s, told["duration_ms"] / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--aisimulate", type=Path, default=Path("build/aisimulate/bin/aisimulate"))
    parser.add_argument("--cells", nargs="*", default=CELLS)
    parser.add_argument("--policies", nargs="*", default=POLICIES)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--csv", type=argparse.FileType("w"), default=sys.stdout)
    arguments = parser.parse_args()
    require_compiled()
    writer = csv.writer(arguments.csv, lineterminator="\n")
    columns = [*Served._fields, *(f"aisimulate_{name}" for name in Served._fields)]
    writer.writerow(["cell", "arrive", "policy", *columns])
    for name in arguments.cells:
        timed = load(name, arguments.seed)
        for arrive, workload in (("over time", timed), ("at once", at_once(timed))):
            for policy in arguments.policies[: 1 if workload is timed else None]:
                here, order = ours(workload, policy)
                there = theirs(arguments.aisimulate, workload, order)
                figures = [f"{value:.4g}" for value in (*here, *there)]
                writer.writerow([name, arrive, policy, *figures])
                arguments.csv.flush()


if __name__ == "__main__":
    main()
