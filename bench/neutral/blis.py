"""Checks orders on BLIS, an independent simulator with own engine, own cache and fitted step times.

    python -m bench.neutral.blis --blis CHECKOUT/blis [--csv FILE]

BLIS is `inference-sim/inference-sim` on GitHub, here at commit f90a1e3a6787.  Its program must lie at the
top of its checkout, whose tables it reads.  It serves requests that arrive at the same time in the order of
its input.  So, like `aisimulate`, it gets them all at once in the order of our admissions.

A trace of BLIS names one shared prefix for each request.  So in the load that both engines serve, prompts
share nothing beyond the common prefix of their group.  BLIS counts hits among all blocks, including those of
answers; its share is scaled to prompts.  Qwen2.5-32B on one H100, the load's arena and seats, blocks of 16
tokens.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.builds import require_compiled
from bench.neutral.loads import SEED, Served, at_once, load, ours
from peek.simulation.engines import MAX_BATCHED_TOKENS
from peek.simulation.workload import Workload, unique_tokens
from peek.trie.keys import SYMBOL_BYTES, match_span

BLOCK_TOKENS: Final = 16
CELLS: Final = ("w1a", "w1c", "w1d")
POLICIES: Final = ("fcfs+lru", "lpm-nolimit+lru", "hrrn+lru", "spf+lru", "peek")

MODEL: Final = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16",
    "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40,
    "num_key_value_heads": 8, "max_position_embeddings": 32768, "vocab_size": 152064, "hidden_act": "silu",
    "tie_word_embeddings": False,
}  # fmt: skip
"""The published `config.json` of Qwen2.5-32B, as far as BLIS reads it."""

HORIZON_US: Final = 10**12
HEADER: Final = "trace_version: 2\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"
COLUMNS: Final = (
    "request_id", "client_id", "tenant_id", "slo_class", "session_id", "round_index", "prefix_group",
    "prefix_length", "streaming", "input_tokens", "output_tokens", "text_tokens", "image_tokens",
    "audio_tokens", "video_tokens", "reason_ratio", "model", "deadline_us", "server_input_tokens",
    "arrival_time_us", "send_time_us", "first_chunk_time_us", "last_chunk_time_us", "num_chunks", "status",
    "error_message", "finish_reason",
)  # fmt: skip
TEXTS: Final = dict.fromkeys(
    ("client_id", "tenant_id", "slo_class", "session_id", "model", "error_message", "finish_reason"), ""
)


class Shared(NamedTuple):
    """The prefix that a request shares: number of the group, and length in tokens."""

    group: int
    tokens: int


def one_level(workload: Workload) -> tuple[Workload, dict[str, Shared]]:
    """Make everything different that is shared beyond the common prefix of a group.

    Requests with an equal first block are a group.  Returns the workload, and what each request shares by id.
    """
    groups: dict[bytes, set[bytes]] = defaultdict(set)
    for each in workload.requests:
        groups[each.key[: BLOCK_TOKENS * SYMBOL_BYTES]].add(each.key)
    prefixes = {
        first: Shared(number, match_span(min(keys), 0, max(keys), 0) // SYMBOL_BYTES)
        for number, (first, keys) in enumerate(groups.items())
    }
    requests, shared = [], {}
    for number, each in enumerate(workload.requests):
        tokens = len(each.key) // SYMBOL_BYTES
        group, common = prefixes[each.key[: BLOCK_TOKENS * SYMBOL_BYTES]]
        common = min(common, tokens - 1)
        tail = unique_tokens(f"tail/{number}", number, tokens - common)
        requests.append(replace(each, key=each.key[: common * SYMBOL_BYTES] + tail))
        shared[each.request_id] = Shared(group, common)
    return replace(workload, requests=requests), shared


def rows(workload: Workload, shared: Mapping[str, Shared], order: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield requests as rows of a trace, in this order."""
    requests = {each.request_id: each for each in workload.requests}
    for number, request_id in enumerate(order):
        group, common = shared[request_id]
        yield {
            **TEXTS,
            "request_id": number,
            "prefix_group": group,
            "prefix_length": common,
            "input_tokens": len(requests[request_id].key) // SYMBOL_BYTES - common,
            "output_tokens": requests[request_id].output_tokens,
            "streaming": "true",
            "status": "ok",
        }


def theirs(program: Path, workload: Workload, shared: Mapping[str, Shared], order: Sequence[str]) -> Served:
    """Serve the requests in this order on BLIS; return its figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        header, trace, figures = (folder / each for each in ("trace.yaml", "trace.csv", "figures.json"))
        header.write_text(HEADER)
        (folder / "config.json").write_text(json.dumps(MODEL))
        with trace.open("w") as file:
            out = csv.DictWriter(file, COLUMNS, restval=0, lineterminator="\n")
            out.writeheader()
            out.writerows(rows(workload, shared, order))
        options = {
            "trace-header": header, "trace-data": trace, "metrics-path": figures,
            "model": "qwen/qwen2.5-32b", "model-config-folder": folder, "hardware": "H100", "tp": 1,
            "max-num-seqs": workload.max_running, "max-num-batched-tokens": MAX_BATCHED_TOKENS,
            "block-size-in-tokens": BLOCK_TOKENS, "total-kv-blocks": workload.arena_tokens // BLOCK_TOKENS,
            "horizon": HORIZON_US,
        }  # fmt: skip
        command = [
            str(program.resolve()),
            "replay",
            *(f"--{name}={value}" for name, value in options.items()),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=program.parent)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        told = json.loads(figures.read_text())
    if told["completed_requests"] != len(order):
        raise SystemExit(f"{told['completed_requests']} of {len(order)} requests were served")
    hit = told["cache_hit_rate"] * (1 + told["total_output_tokens"] / told["total_input_tokens"])
    return Served(
        hit, told["ttft_mean_ms"] / 1e3, told["ttft_p99_ms"] / 1e3, told["vllm_estimated_duration_s"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--blis", type=Path, required=True)
    parser.add_argument("--cells", nargs="*", default=CELLS)
    parser.add_argument("--policies", nargs="*", default=POLICIES)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--csv", type=Path, default=Path("/dev/stdout"))
    arguments = parser.parse_args()
    require_compiled()
    with arguments.csv.open("w", buffering=1) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["cell", "policy", *Served._fields, *(f"blis_{name}" for name in Served._fields)])
        for name in arguments.cells:
            workload, shared = one_level(at_once(load(name, arguments.seed)))
            for policy in arguments.policies:
                here, order = ours(workload, policy)
                there = theirs(arguments.blis, workload, shared, order)
                writer.writerow([name, policy, *(f"{value:.4g}" for value in (*here, *there))])


if __name__ == "__main__":
    main()
