"""The request streams of the evaluation, by name: `cell:load` or `cell:load:form`.

    w1c:heavy                the paper's cell, open loop
    w1c:heavy:window         the same, with the cell's cap on requests that the client has outstanding
    w1c:heavy:arena40        the same with a KV arena of 40,000 tokens
    w2b:heavy:rate80         the same with arrivals at 80 % of the cell's rate
    w3c:heavy:dp2            two replicas; the hash of the prompt's head picks one
    w4:heavy:sglang          the SGLang form of the client (rounds do not wait for answers); also `:vllm`
    mooncake-conversation:0.06    a recorded trace, so many times as fast as recorded
    mooncake-conversation:0.06:1000    its first 1,000 rows
    agents-1:32k             the first request (or first 4) of recorded coding-agent sessions
    azure-code:1.0           recorded arrivals and lengths, prompts that share nothing

Recorded data is not part of the project; `StreamMissing` says what to get where.
"""

from __future__ import annotations

import csv
import gzip
import json
import tarfile
import zlib
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from random import Random

import numpy as np

from peek.simulation.cells import cell
from peek.simulation.trace import read_mooncake
from peek.simulation.workload import (
    SYMBOL_BYTES,
    SimRequest,
    Workload,
    pack_tokens,
    unique_tokens,
)

FILES = {
    "mooncake-conversation": "mooncake/conversation_trace.jsonl.gz",
    "mooncake-synthetic": "mooncake/synthetic_trace.jsonl.gz",
    "agents-1": "coding_agents/sessions_train.tar.xz",
    "agents-4": "coding_agents/sessions_train.tar.xz",
    "azure-code": "azure/AzureLLMInferenceTrace_code.csv.gz",
}
TRACE_ROWS = 4000
"""Rows of a recorded trace that are played."""
AGENT_BLOCK = 64
AGENT_INPUT = 32_768
AGENT_GAP_S = 30.0
REPLICA_HEAD = 256
"""Bytes of a key that choose the replica."""


class StreamMissing(Exception):
    """The recorded data behind a stream is not here."""


def build(name: str, seed: int, engine: str, data: Path | None) -> list[Workload]:
    """The workloads of a stream, one for each replica.

    Args:
        name: as in the module's description.
        seed: of the draws; recorded traces draw nothing, except the session starts of `agents`.
        engine: whose column of rates and caps, "sglang" or "vllm".
        data: folder with the recorded data.
    """
    kind, load, form = [*name.split(":"), "", ""][:3]
    if kind in FILES:
        path = _recorded(data, FILES[kind])
        if kind.startswith("mooncake"):
            workload = read_mooncake(path, rate_scale=float(load), limit=int(form or TRACE_ROWS))
            return [replace(workload, name=kind, load=load)]
        if kind == "azure-code":
            return [_azure(path, kind, float(load))]
        return [_agents(path, kind, load, int(kind[-1]), seed)]
    trace = _recorded(data, FILES["mooncake-conversation"]) if kind.startswith("w4") else None
    client = form if kind.startswith("w4") else None
    workload = cell(kind, load, seed, engine, trace=trace, client=client or None)
    if form == "window":
        return [replace(workload, client_concurrency=workload.max_running)]
    if form.startswith("arena"):
        return [replace(workload, arena_tokens=1000 * int(form.removeprefix("arena")))]
    if form.startswith("rate"):
        return [_slower(workload, int(form.removeprefix("rate")) / 100)]
    return _replicas(workload) if form == "dp2" else [workload]


def as_tokens(workload: Workload) -> Workload:
    """The same requests with a token id for each token, as engines want them.

    A block's name fixes its ids; what is beyond the last whole block is the request's own.
    """
    if workload.unit_tokens == 1:
        return workload
    texts: dict[int, bytes] = {}

    def text_of(block: int) -> bytes:
        if block not in texts:
            texts[block] = unique_tokens(f"{workload.name}/{block}", block, workload.unit_tokens)
        return texts[block]

    requests = []
    blocks = 1 + max(int(np.frombuffer(r.key, dtype="<i4").max(initial=0)) for r in workload.requests)
    for position, request in enumerate(workload.requests):
        text = b"".join(text_of(int(block)) for block in np.frombuffer(request.key, dtype="<i4"))
        rest = request.num_tokens - len(text) // SYMBOL_BYTES
        text += unique_tokens(f"{workload.name}/rest/{position}", blocks + position, rest)
        requests.append(replace(request, key=text))
    return replace(workload, requests=tuple(requests), unit_tokens=1)


def longest(workload: Workload) -> int:
    """Tokens of the longest request, its answer included."""
    return max(request.num_tokens + request.output_tokens for request in workload.requests)


def _recorded(data: Path | None, relative: str) -> Path:
    path = None if data is None else data / relative
    if path is None or not path.exists():
        raise StreamMissing(f"needs {relative} below --data (recorded traffic, not part of the project)")
    return path


def _replicas(workload: Workload) -> list[Workload]:
    """Two replicas, each with the cell's arena and client cap; a group always goes to the same one."""
    parts: list[list[SimRequest]] = [[], []]
    for request in workload.requests:
        parts[zlib.crc32(request.key[:REPLICA_HEAD]) % 2].append(request)
    return [replace(workload, requests=tuple(part), warmup=workload.warmup // 2) for part in parts]


def _slower(workload: Workload, factor: float) -> Workload:
    requests = tuple(replace(request, arrival_s=request.arrival_s / factor) for request in workload.requests)
    return replace(workload, requests=requests)


def _azure(path: Path, name: str, scale: float) -> Workload:
    requests = []
    start: datetime | None = None
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for position, row in enumerate(csv.DictReader(stream)):
            if position == TRACE_ROWS:
                break
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            start = start or at
            length = max(1, int(row["ContextTokens"]))
            key = unique_tokens(f"azure/{position}", position, length)
            arrival_s = (at - start).total_seconds() / scale
            output = max(1, int(row["GeneratedTokens"]))
            requests.append(SimRequest(f"azure-{position}", arrival_s, key, length, output))
    requests.sort(key=lambda request: request.arrival_s)
    return Workload(
        name=name, load=str(scale), seed=0, requests=tuple(requests), warmup=len(requests) // 10,
        max_running=256, arena_tokens=50_000,
    )  # fmt: skip


def _agents(path: Path, name: str, load: str, first: int, seed: int) -> Workload:
    """Sessions start as a Poisson process of one a second, in an order drawn from the seed."""
    rng = Random(seed)
    sessions = _sessions(path)
    rng.shuffle(sessions)
    names: dict[tuple[object, ...], int] = {}
    requests = []
    start_s = 0.0
    for session in sessions:
        start_s += rng.expovariate(1.0)
        asked = [entry for entry in session["requests"] if entry["type"] != "subagent"][:first]
        if not asked or any(entry["in"] > AGENT_INPUT for entry in asked):
            continue
        at_s, before = start_s, asked[0]["t"]
        for number, entry in enumerate(asked):
            at_s += min(AGENT_GAP_S, max(0.0, entry["t"] - before))
            before = entry["t"]
            blocks = [_block(session, i, block) for i, block in enumerate(entry["hash_ids"])]
            full = blocks[: entry["in"] // AGENT_BLOCK]
            key = pack_tokens([names.setdefault(block, len(names)) for block in full])
            rid = f"{session['id']}-{number}"
            requests.append(SimRequest(rid, at_s, key, max(1, entry["in"]), max(1, entry["out"])))
    requests.sort(key=lambda request: request.arrival_s)
    workload = Workload(
        name=name, load=load, seed=seed, requests=tuple(requests), warmup=len(requests) // 10,
        max_running=256, arena_tokens=0, unit_tokens=AGENT_BLOCK,
    )  # fmt: skip
    return replace(workload, arena_tokens=-(-4 * longest(workload) // AGENT_BLOCK) * AGENT_BLOCK)


def _sessions(path: Path) -> list[dict]:
    with tarfile.open(path) as archive:
        members = sorted((m for m in archive.getmembers() if m.isfile()), key=lambda member: member.name)
        return [json.load(archive.extractfile(member)) for member in members]


def _block(session: dict, index: int, hash_id: int) -> tuple[object, ...]:
    """Equal tool and system lengths stand for equal tools and system prompts."""
    tools, system = session["tool_tokens"], session["system_tokens"]
    if index < tools // AGENT_BLOCK:
        return (tools, index)
    if index < (tools + system) // AGENT_BLOCK:
        return (tools, system, index)
    return (session["id"], hash_id)
