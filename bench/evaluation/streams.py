"""The request streams of the evaluation, by name: `cell:load` or `cell:load:form`.

    w1c:heavy                the paper's cell, open loop; W1 and W2 with the arena that was fitted
    w1c:heavy:window         the same, with the cell's cap on requests that the client has outstanding
    w1c:heavy:window400      the same, with a cap of 400
    w1c:heavy:arena50        the same with a KV arena of 50,000 tokens
    w2b:heavy:rate80         the same with arrivals at 80 % of the cell's rate
    w3c:heavy:clients90      a closed loop of 90 requests
    w3c:heavy:dp2            two replicas; the hash of the prompt's head picks one
    w4:heavy:sglang          the SGLang form of the client (rounds do not wait for answers); also `:vllm`
    mooncake-conversation:0.06    a recorded trace at 0.06 times its recorded rate
    mooncake-conversation:0.06:1000    its first 1,000 rows
    agents-1:32k             the first request (or first 4) of recorded coding-agent sessions
    azure-code:1.0           recorded arrivals and lengths, prompts that share nothing
    map:80:arena200, ...     the streams of traffic.py

Recorded data is not part of the project; `RecordingMissing` says what to get, and where.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from bench.evaluation.plans import FAMILY, parts_of
from bench.evaluation.results import fitted_arena
from bench.evaluation.traffic import TRAFFIC
from bench.evaluation.traffic import workload as traffic
from bench.recorded import RECORDED, RecordingMissing, file_of, longest, recorded
from peek.offline import reorder
from peek.simulation.cells import cell
from peek.simulation.workload import SimRequest, Workload, unique_tokens

REPLICA_HEAD = 256
"""Bytes of a key that choose the replica."""


def build(name: str, seed: int, engine: str, data: Path | None) -> list[Workload]:
    """Return the workloads of a stream, one for each replica.

    Args:
        name: as in the module's description.
        seed: seed of the draws; recorded traces draw nothing but the session starts of `agents`.
        engine: family whose rates and caps count, "sglang" or "vllm".
        data: folder with the recorded data.
    """
    kind, load, form, number = parts_of(name)
    if kind in TRAFFIC:
        return [traffic(kind, load, form, number, seed)]
    if kind in RECORDED:
        return [recorded(kind, load, number, seed, data)]
    if kind.startswith("w4"):
        trace = file_of("mooncake-conversation", data)
        return [cell(kind, load, seed, engine, trace=trace, client=form or None)]
    workload = cell(kind, load, seed, engine)
    if kind.startswith(("w1", "w2")):
        workload = replace(workload, arena_tokens=fitted_arena(engine))
    if form == "window":
        workload = replace(workload, client_concurrency=number or workload.max_running)
    elif form == "arena":
        workload = replace(workload, arena_tokens=1000 * number)
    elif form == "clients":
        workload = replace(workload, client_concurrency=number)
    elif form == "rate":
        slower = [replace(one, arrival_s=one.arrival_s / (number / 100)) for one in workload.requests]
        workload = replace(workload, requests=tuple(slower))
    return _replicas(workload) if form == "dp" else [workload]


def recordings(names: Iterable[str], data: Path | None) -> list[str]:
    """Return the recorded data that these streams need and `data` lacks."""
    kinds = {parts_of(name)[0] for name in names}
    needed = {"mooncake-conversation" if kind.startswith("w4") else kind for kind in kinds}
    absent = []
    for kind in sorted(needed & RECORDED.keys()):
        try:
            file_of(kind, data)
        except RecordingMissing:
            absent.append(RECORDED[kind])
    return absent


def reordered(workload: Workload, engine: str) -> Workload:
    """Return the same batch in the order of `peek.offline.reorder`, for an engine of this family."""
    keys = [request.key for request in workload.requests]
    order = reorder(keys, cache_tokens=workload.arena_tokens, engine=FAMILY[engine]).order
    return replace(workload, requests=tuple(workload.requests[place] for place in order))


def as_tokens(workload: Workload) -> Workload:
    """Return the same requests with a token id for each token, as engines need them.

    A block's name fixes its ids; tokens beyond the last whole block are the request's own.
    """
    if workload.unit_tokens == 1:
        return workload
    text_of = cache(lambda block: unique_tokens(f"{workload.name}/{block}", block, workload.unit_tokens))
    prompts = [np.frombuffer(request.key, dtype="<i4").tolist() for request in workload.requests]
    names = 1 + max(max(blocks, default=0) for blocks in prompts)
    requests = []
    for position, (request, blocks) in enumerate(zip(workload.requests, prompts, strict=True)):
        rest = request.num_tokens - len(blocks) * workload.unit_tokens
        own = unique_tokens(f"{workload.name}/rest/{position}", names + position, rest)
        requests.append(replace(request, key=b"".join([*map(text_of, blocks), own])))
    return replace(workload, requests=tuple(requests), unit_tokens=1)


def context_tokens(workload: Workload) -> int:
    """Return the tokens that a real engine must allow a request, at least 16,384."""
    return max(16384, longest(workload.requests))


def _replicas(workload: Workload) -> list[Workload]:
    """Return two replicas, each with the cell's arena and client cap; a group always goes to the same one."""
    parts: list[list[SimRequest]] = [[], []]
    for request in workload.requests:
        parts[zlib.crc32(request.key[:REPLICA_HEAD]) % 2].append(request)
    return [replace(workload, requests=tuple(part), warmup=workload.warmup // 2) for part in parts]
