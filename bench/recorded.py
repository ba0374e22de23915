"""Recorded traffic, which is not part of the project: where it is expected, and workloads from it.

The coding agents' archive is a tar file with one JSON object a session: its tools, its system prompt and its
requests, each with its time, its lengths and the numbers of its blocks.
"""

from __future__ import annotations

import csv
import gzip
import json
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from peek.simulation.trace import at_rate, read_mooncake
from peek.simulation.workload import SimRequest, Workload, pack_tokens, unique_tokens

RECORDED = {
    "mooncake-conversation": "mooncake/conversation_trace.jsonl.gz",
    "mooncake-synthetic": "mooncake/synthetic_trace.jsonl.gz",
    "agents-1": "coding_agents/sessions_train.tar.xz",
    "agents-4": "coding_agents/sessions_train.tar.xz",
    "azure-code": "azure/AzureLLMInferenceTrace_code.csv.gz",
}
"""Where each is in the folder of all of them; `agents-4` are the first four requests of each session."""
TRACE_ROWS = 4000
"""Rows of a trace that are played unless told otherwise."""
LONGEST_GAP_S = 30.0
"""Between two requests of a session; recorded ones may be hours."""

SESSION_BLOCK = 64
"""Tokens of a block of a session."""
LONGEST_INPUT = 32_768
"""Tokens; sessions that ask for more are left out."""


Session = dict[str, Any]


def sessions(archive: Path) -> Iterator[Session]:
    """All of them, in the archive's order."""
    with tarfile.open(archive) as packed:
        for member in packed:
            stored = packed.extractfile(member) if member.name.endswith(".json") else None
            if stored is not None:
                yield json.load(stored)


def asked(session: Session, first: int) -> list[dict[str, Any]]:
    """Its first requests, subagents' left out; none if one of them is longer than `LONGEST_INPUT`."""
    own = [request for request in session["requests"] if request.get("type") != "subagent"][:first]
    return own if all(request["in"] <= LONGEST_INPUT for request in own) else []


def block_name(session: Session, index: int, own: object) -> tuple[object, ...]:
    """Equal names stand for equal text, up to the end of the block.

    Sessions share the blocks of equally long tools, then those of an equally long system prompt too; the
    others are the session's own, named by `own`.
    """
    tools, system = session["tool_tokens"], session["system_tokens"]
    if index < tools // SESSION_BLOCK:
        return (tools, index)
    if index < (tools + system) // SESSION_BLOCK:
        return (tools, system, index)
    return (session["id"], own)


class RecordingMissing(Exception):
    """The recorded data behind a stream is not here."""


def file_of(kind: str, data: Path | None) -> Path:
    """The file of one of `RECORDED` in the folder `data`."""
    path = None if data is None else data / RECORDED[kind]
    if path is None or not path.exists():
        raise RecordingMissing(
            f"needs {RECORDED[kind]} below --data (recorded traffic, not part of the project)"
        )
    return path


def recorded(kind: str, load: str, rows: int, seed: int, data: Path | None) -> Workload:
    """One of `RECORDED` as a workload; `load` is how many times as fast as recorded a trace is played.

    `rows`: so many rows of a trace, 0 for `TRACE_ROWS`.  Only the sessions' starts are drawn from the seed.
    """
    path = file_of(kind, data)
    if kind == "azure-code":
        return _azure(path, kind, load)
    if kind.startswith("agents"):
        return _agents(path, kind, load, seed)
    workload = at_rate(read_mooncake(path, limit=rows or TRACE_ROWS), float(load))
    return replace(workload, name=kind, load=load)


def longest(requests: Iterable[SimRequest]) -> int:
    """Tokens of the longest request, its answer included."""
    return max(request.num_tokens + request.output_tokens for request in requests)


def _played(requests: list[SimRequest], arena_tokens: int, **more: Any) -> Workload:
    """Recorded requests on an engine of 256 seats; the first tenth is warm-up."""
    ordered = tuple(sorted(requests, key=lambda request: request.arrival_s))
    warmup = len(ordered) // 10
    return Workload(requests=ordered, warmup=warmup, max_running=256, arena_tokens=arena_tokens, **more)


def _azure(path: Path, name: str, load: str) -> Workload:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = list(islice(csv.DictReader(stream), TRACE_ROWS))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    requests = []
    for position, (row, at) in enumerate(zip(rows, times, strict=True)):
        prompt, output = (max(1, int(row[tokens])) for tokens in ("ContextTokens", "GeneratedTokens"))
        key = unique_tokens(f"azure/{position}", position, prompt)
        arrival_s = (at - times[0]).total_seconds() / float(load)
        requests.append(SimRequest(f"azure-{position}", arrival_s, key, prompt, output))
    return _played(requests, 50_000, name=name, load=load, seed=0)


def _agents(path: Path, name: str, load: str, seed: int) -> Workload:
    """Sessions start as a Poisson process of one a second, in an order drawn from the seed."""
    rng = Random(seed)
    drawn = list(sessions(path))
    rng.shuffle(drawn)
    names: dict[tuple[object, ...], int] = {}
    requests = []
    start_s = 0.0
    for session in drawn:
        start_s += rng.expovariate(1.0)
        own = asked(session, first=int(name[-1]))
        at_s, before = start_s, own[0]["t"] if own else 0.0
        for number, entry in enumerate(own):
            at_s += min(LONGEST_GAP_S, max(0.0, entry["t"] - before))
            before = entry["t"]
            full = entry["hash_ids"][: entry["in"] // SESSION_BLOCK]
            blocks = [block_name(session, i, block) for i, block in enumerate(full)]
            key = pack_tokens([names.setdefault(block, len(names)) for block in blocks])
            rid = f"{session['id']}-{number}"
            requests.append(SimRequest(rid, at_s, key, max(1, entry["in"]), max(1, entry["out"])))
    arena_tokens = -(-4 * longest(requests) // SESSION_BLOCK) * SESSION_BLOCK
    return _played(requests, arena_tokens, name=name, load=load, seed=seed, unit_tokens=SESSION_BLOCK)
