"""Workloads as pure data: requests with arrival times, and the hit of a cache that never evicts.

`ideal_hit` needs no trie: in the sorted list of earlier keys, the one that shares the longest prefix with a
key is one of its two neighbours, and comparing `bytes` is one memcmp.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

import numpy as np

from peek.errors import WorkloadError
from peek.request import PendingRequest
from peek.trie.keys import SYMBOL_BYTES, heads_of, match_span

VOCABULARY: Final = 150_000  # upper bound of synthetic token ids, not included
NAMING_ID: Final = 1000  # the synthetic text with the name n begins with this id + n


Progress = Callable[[int], None] | None
"""Called with the number of finished requests whenever a request finishes."""


@dataclass(frozen=True, slots=True)
class SimRequest:
    request_id: str
    arrival_s: float  # arrival in seconds since the start of the run; with `after`, the earliest arrival
    key: bytes  # the prompt as packed int32 little-endian symbols of `Workload.unit_tokens` tokens each
    num_tokens: int  # prompt length, at least 1; the key covers fewer if the last do not fill a symbol
    output_tokens: int  # length of the answer in tokens, at least 1
    namespace: str = ""  # keeps equal keys from sharing KV (LoRA adapter, cache salt)
    after: str | None = None  # id of the request that must finish first
    think_s: float = 0.0  # time between the end of `after` and the arrival of this request, in seconds
    tenant: str = ""  # the name that the request is accounted to; "" if there is only one tenant
    session: str = ""  # the conversation or job that the request is a turn of; "" for none
    ttft_target_s: float | None = None
    # the first symbols of the answer: those that a later prompt contains after `key`.  An engine caches them
    # under these symbols, and the rest of the answer under symbols that no prompt contains.
    answer: bytes = b""


def pending(request: SimRequest, key: object, arrival_s: float, unit_tokens: int) -> PendingRequest:
    """Translate a request for a planner; `key` is its prompt in the symbols of the engine's cache."""
    return PendingRequest(
        request.request_id, key, arrival_s, request.namespace, request.num_tokens,
        tenant=request.tenant, session=request.session, ttft_target_s=request.ttft_target_s,
        heads=heads_of(request.key, unit_tokens),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The requests of one run, and the engine limits that belong to them."""

    name: str
    load: str  # "moderate" or "heavy", "trace" for a recorded trace, "sessions" for recorded sessions
    seed: int  # seed of the draws; 0 if nothing was drawn
    requests: Sequence[SimRequest]  # the requests, ascending by `arrival_s`
    warmup: int  # number of leading requests that run but are left out of the metrics
    max_running: int  # the engine's cap on requests that run at once, its seats
    arena_tokens: int  # room of the engine's prefix cache, in tokens
    unit_tokens: int = 1  # tokens per symbol
    # the client's cap on outstanding (waiting + running) requests; set only for closed loops, where every
    # request is ready at t = 0
    client_concurrency: int | None = None
    rate_scale: float = 1.0  # factor by which the requests of a trace arrive faster than recorded
    # mean number of recorded sessions that begin in a second; None if their starts were not drawn
    session_rate: float | None = None


CIRCLE: Final = "requests come after each other in a circle"


def followers(workload: Workload) -> dict[str, list[SimRequest]]:
    """Return the requests that come after another one, by the id of that one.  O(N).

    `WorkloadError` if two requests have one id, or one comes after a request that is not there.
    """
    names = {request.request_id for request in workload.requests}
    if len(names) < len(workload.requests):
        raise WorkloadError("two requests have one id")
    found: dict[str, list[SimRequest]] = {}
    for request in workload.requests:
        if request.after is not None:
            if request.after not in names:
                raise WorkloadError(f"request {request.request_id} comes after {request.after}, not there")
            found.setdefault(request.after, []).append(request)
    return found


def faster(workload: Workload, factor: float) -> Workload:
    """Return the same requests, arriving `factor` times as fast.  O(N)."""
    requests = [replace(each, arrival_s=each.arrival_s / factor) for each in workload.requests]
    return replace(workload, requests=requests)


def with_answers(requests: Sequence[SimRequest], unit_tokens: int) -> list[SimRequest]:
    """Return the same requests, with each answer that the prompt of a later turn contains.

    If a turn's prompt begins with the whole prompt of the request it comes `after`, the symbols after that
    are the answer, as chat templates write it.  O(symbols).
    """
    by_id = {request.request_id: request for request in requests}
    answers: dict[str, bytes] = {}
    for request in requests:
        before = by_id.get(request.after or "")
        if before is not None and request.key.startswith(before.key):
            end = SYMBOL_BYTES * ((before.num_tokens + before.output_tokens) // unit_tokens)
            answers.setdefault(before.request_id, request.key[len(before.key) : end])
    return [
        replace(each, answer=answers[each.request_id]) if each.request_id in answers else each
        for each in requests
    ]


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Pack token ids into a key.  `pack_tokens([1, 2])` is `b"\\x01\\0\\0\\0\\x02\\0\\0\\0"`."""
    return np.array(tokens, dtype="<i4").tobytes()


def unique_tokens(source: str, name: int, count: int) -> bytes:
    """Return `count` packed token ids below `VOCABULARY`, seeded with `source`; `name` decides the first.

    Texts of different names differ in their first token, so they never share more of a prefix than the
    workload says.  String seeds and `randbytes` give the same ids in every Python version.
    """
    raw = np.frombuffer(Random(source).randbytes(SYMBOL_BYTES * count), dtype="<u4")
    ids = (raw % VOCABULARY).astype("<i4")
    ids[:1] = NAMING_ID + name
    return ids.tobytes()


def ideal_hit(workload: Workload, *, include_warmup: bool = False) -> float:
    """Return cached tokens / prompt tokens of a cache that never evicts, in arrival order; 0.0 for none.

    A request hits the longest prefix, in whole symbols, that it shares with any earlier request of its
    namespace, but never its last token.  Of an answer the cache has only the tokens of `SimRequest.answer`.
    `include_warmup` counts the warm-up requests, as the paper's ideal values do; without it they only warm
    the cache, as in the metrics of a run.  O(N log N) comparisons of keys; memory for one reference per key.
    """
    seen: dict[str, list[bytes]] = {}
    hit_tokens = prompt_tokens = 0
    first_counted = 0 if include_warmup else workload.warmup
    for position, request in enumerate(workload.requests):
        earlier = seen.setdefault(request.namespace, [])
        key, whole = request.key, request.key + request.answer
        place = bisect_left(earlier, key)
        neighbours = earlier[max(0, place - 1) : place + 1]
        if whole not in neighbours:  # a copy would add nothing
            earlier.insert(bisect_left(earlier, whole, place), whole)
        if position >= first_counted:
            symbols = max((shared_symbols(each, key) for each in neighbours), default=0)
            hit_tokens += min(symbols * workload.unit_tokens, request.num_tokens - 1)
            prompt_tokens += request.num_tokens
    return hit_tokens / prompt_tokens if prompt_tokens else 0.0


def shared_symbols(left: bytes, right: bytes) -> int:
    """Return how many leading symbols two packed keys have in common.  O(shorter key)."""
    return match_span(left, 0, right, 0) // SYMBOL_BYTES
