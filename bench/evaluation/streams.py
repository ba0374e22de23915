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
import zlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from bench.recorded import SESSION_BLOCK, asked, block_name, sessions
from peek.simulation.cells import cell
from peek.simulation.trace import read_mooncake
from peek.simulation.workload import SYMBOL_BYTES, SimRequest, Workload, pack_tokens, unique_tokens

FILES = {
    "mooncake-conversation": "mooncake/conversation_trace.jsonl.gz",
    "mooncake-synthetic": "mooncake/synthetic_trace.jsonl.gz",
    "agents-1": "coding_agents/sessions_train.tar.xz",
    "agents-4": "coding_agents/sessions_train.tar.xz",
    "azure-code": "azure/AzureLLMInferenceTrace_code.csv.gz",
}
TRACE_ROWS = 4000
"""Rows of a recorded trace that are played."""
LONGEST_GAP_S = 30.0
"""Between two requests of a session; recorded ones may be hours."""
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
        return [_azure(path, kind, load) if kind == "azure-code" else _agents(path, kind, load, seed)]
    trace = _recorded(data, FILES["mooncake-conversation"]) if kind.startswith("w4") else None
    client = form if kind.startswith("w4") else None
    workload = cell(kind, load, seed, engine, trace=trace, client=client or None)
    if form == "window":
        return [replace(workload, client_concurrency=workload.max_running)]
    if form.startswith("arena"):
        return [replace(workload, arena_tokens=1000 * int(form.removeprefix("arena")))]
    if form.startswith("rate"):
        factor = int(form.removeprefix("rate")) / 100
        slower = tuple(replace(one, arrival_s=one.arrival_s / factor) for one in workload.requests)
        return [replace(workload, requests=slower)]
    return _replicas(workload) if form == "dp2" else [workload]


def as_tokens(workload: Workload) -> Workload:
    """The same requests with a token id for each token, as engines want them.

    A block's name fixes its ids; what is beyond the last whole block is the request's own.
    """
    if workload.unit_tokens == 1:
        return workload
    text_of = cache(lambda block: unique_tokens(f"{workload.name}/{block}", block, workload.unit_tokens))
    requests = []
    blocks = 1 + max(int(np.frombuffer(r.key, dtype="<i4").max(initial=0)) for r in workload.requests)
    for position, request in enumerate(workload.requests):
        text = b"".join(text_of(int(block)) for block in np.frombuffer(request.key, dtype="<i4"))
        rest = request.num_tokens - len(text) // SYMBOL_BYTES
        text += unique_tokens(f"{workload.name}/rest/{position}", blocks + position, rest)
        requests.append(replace(request, key=text))
    return replace(workload, requests=tuple(requests), unit_tokens=1)


def longest(requests: Iterable[SimRequest]) -> int:
    """Tokens of the longest request, its answer included."""
    return max(request.num_tokens + request.output_tokens for request in requests)


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


def _played(requests: list[SimRequest], arena_tokens: int, **more: Any) -> Workload:
    """Recorded requests on an engine of 256 seats; the first tenth is warm-up."""
    ordered = tuple(sorted(requests, key=lambda request: request.arrival_s))
    warmup = len(ordered) // 10
    return Workload(requests=ordered, warmup=warmup, max_running=256, arena_tokens=arena_tokens, **more)


def _azure(path: Path, name: str, load: str) -> Workload:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = list(islice(csv.DictReader(stream), TRACE_ROWS))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    scale = float(load)
    requests = []
    for position, (row, at) in enumerate(zip(rows, times, strict=True)):
        length = max(1, int(row["ContextTokens"]))
        key = unique_tokens(f"azure/{position}", position, length)
        arrival_s = (at - times[0]).total_seconds() / scale
        output = max(1, int(row["GeneratedTokens"]))
        requests.append(SimRequest(f"azure-{position}", arrival_s, key, length, output))
    return _played(requests, 50_000, name=name, load=str(scale), seed=0)


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
