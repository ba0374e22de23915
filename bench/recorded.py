"""Reads workloads from recorded traffic, which is not part of the project, and names where it is expected.

The coding agents' archive is a tar file with one JSON object per session: the lengths of its tools and system
prompt, and its requests, each with its time, its lengths and the ids of its blocks.
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
"""Path of each recording in their folder; `agents-1` and `-4` are the first 1 and 4 requests of a session."""
TRACE_ROWS = 4000
"""Default number of rows that are played of a trace."""
LONGEST_GAP_S = 30.0
"""Longest gap between two requests of a session, in seconds; recorded gaps may last hours and are cut."""

SESSION_BLOCK = 64
"""Tokens per block of a session."""
LONGEST_INPUT = 32_768
"""Most tokens of a prompt; sessions with a longer one are left out."""


Session = dict[str, Any]


def sessions(archive: Path) -> Iterator[Session]:
    """Yield all sessions, in the archive's order."""
    with tarfile.open(archive) as packed:
        for member in packed:
            stored = packed.extractfile(member) if member.name.endswith(".json") else None
            if stored is not None:
                yield json.load(stored)


def asked(session: Session, first: int) -> list[dict[str, Any]]:
    """Return a session's first requests without subagents'; none if one has more than `LONGEST_INPUT`."""
    own = [request for request in session["requests"] if request.get("type") != "subagent"][:first]
    return own if all(request["in"] <= LONGEST_INPUT for request in own) else []


def block_name(session: Session, index: int, own: object) -> tuple[object, ...]:
    """Return a block's name; equal names stand for equal text up to the end of the block.

    Sessions with equally long tools share the blocks of these and, if their system prompts are equally long,
    the blocks of those.  All other blocks belong to the session and are named by `own`.
    """
    tools, system = session["tool_tokens"], session["system_tokens"]
    if index < tools // SESSION_BLOCK:
        return (tools, index)
    if index < (tools + system) // SESSION_BLOCK:
        return (tools, system, index)
    return (session["id"], own)


class RecordingMissing(Exception):
    """The recorded data that a stream needs is missing."""


def file_of(kind: str, data: Path | None) -> Path:
    """Return the file of a recording in the folder `data`; `RecordingMissing` if it is not there."""
    path = None if data is None else data / RECORDED[kind]
    if path is None or not path.exists():
        raise RecordingMissing(
            f"needs {RECORDED[kind]} below --data (recorded traffic, not part of the project)"
        )
    return path


def recorded(kind: str, load: str, rows: int, seed: int, data: Path | None) -> Workload:
    """Make a workload from a recording; a trace is played `load` times as fast as recorded.

    `rows` is the number of rows of a Mooncake trace, 0 for `TRACE_ROWS`.  The seed decides only on order and
    starts of sessions.
    """
    path = file_of(kind, data)
    if kind == "azure-code":
        return _azure(path, kind, load)
    if kind.startswith("agents"):
        return _agents(path, kind, load, seed)
    workload = at_rate(read_mooncake(path, limit=rows or TRACE_ROWS), float(load))
    return replace(workload, name=kind, load=load)


def longest(requests: Iterable[SimRequest]) -> int:
    """Return the tokens of the longest request, with its answer."""
    return max(request.num_tokens + request.output_tokens for request in requests)


def _played(requests: list[SimRequest], arena_tokens: int, **more: Any) -> Workload:
    """Make a workload of recorded requests for an engine of 256 seats; the first tenth is warm-up."""
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
    """Read sessions; their starts are a Poisson process of one per second, in an order from the seed."""
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
