"""What a workload is: requests with arrival times, and the hit ratio no policy can exceed.

Operations to support: hand a simulated engine its requests in arrival order, make token ids for
synthetic prompts, and state how much of the prompts an infinite cache would have served.

Plan: two records of pure data, and few functions.  The longest prefix that a key shares with *any*
earlier key is the longest it shares with its two neighbours among the earlier keys in
lexicographic order.  So a sorted list per namespace and one binary search per request are enough;
comparing `bytes` is one memcmp, which beats a trie over symbols and has no hash to collide.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

import numpy as np

from peek.request import PendingRequest
from peek.trie.keys import SYMBOL_BYTES as SYMBOL_BYTES
from peek.trie.keys import heads_of, match_span

VOCABULARY: Final = 150_000
"""Synthetic token ids are below this."""

NAMING_ID: Final = 1000
"""The token id that stands for the name 0 at the head of a synthetic text."""


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request of a workload.

    Attributes:
        request_id: unique in the workload.
        arrival_s: seconds since the start of the run; with `after` set, only the earliest time.
        key: the prompt as packed int32 little-endian symbols, each standing for
            `Workload.unit_tokens` tokens.
        num_tokens: prompt length in tokens, at least 1; more than the key covers where the last
            tokens do not fill a unit.
        output_tokens: tokens to decode, at least 1.
        namespace: what keeps equal keys from sharing cache (LoRA, cache salt).
        after: id of the request that must finish first, None where nothing is waited for.
        think_s: seconds between the end of `after` and the arrival of this request.
        tenant: whose request it is; "" for all: one tenant.
        session: the conversation or job that it is a turn of; "" for none.
        ttft_target_s: seconds within which its first token is wanted, None for no target.
        answer: the tokens of its answer as symbols behind `key`, as far as a later prompt has them; an engine
            caches them under these, the rest of an answer under names that no prompt has.
    """

    request_id: str
    arrival_s: float
    key: bytes
    num_tokens: int
    output_tokens: int
    namespace: str = ""
    after: str | None = None
    think_s: float = 0.0
    tenant: str = ""
    session: str = ""
    ttft_target_s: float | None = None
    answer: bytes = b""


def pending(request: SimRequest, key: object, arrival_s: float, unit_tokens: int) -> PendingRequest:
    """A request as a planner sees it, by a key of the engine's."""
    return PendingRequest(
        request.request_id,
        key,
        arrival_s,
        request.namespace,
        request.num_tokens,
        tenant=request.tenant,
        heads=heads_of(request.key, unit_tokens),
        session=request.session,
        ttft_target_s=request.ttft_target_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A run's worth of requests and the engine limits that belong to it.

    Attributes:
        name: cell or trace name.
        load: "moderate" or "heavy", "trace" for a recorded trace, "sessions" for recorded sessions.
        seed: what the draws were seeded with, 0 where nothing was drawn.
        requests: ascending by `arrival_s`.
        warmup: how many leading requests are left out of the metrics (they run all the same).
        max_running: the engine's cap on requests that run at once.
        arena_tokens: KV arena in tokens.
        unit_tokens: tokens per key symbol.
        client_concurrency: the client's cap on outstanding (waiting + running) requests; set only
            for closed loops, where every request is ready at t = 0.
        rate_scale: how many times faster than recorded the requests of a trace arrive.
        session_rate: recorded sessions that begin in a second, on average; None where this was not drawn.
    """

    name: str
    load: str
    seed: int
    requests: Sequence[SimRequest]
    warmup: int
    max_running: int
    arena_tokens: int
    unit_tokens: int = 1
    client_concurrency: int | None = None
    rate_scale: float = 1.0
    session_rate: float | None = None


def faster(workload: Workload, factor: float) -> Workload:
    """The same requests, arriving `factor` times as fast.  O(N)."""
    requests = [replace(each, arrival_s=each.arrival_s / factor) for each in workload.requests]
    return replace(workload, requests=requests)


def with_answers(requests: Sequence[SimRequest], unit_tokens: int) -> list[SimRequest]:
    """The same requests, each with the answer that a later turn found in its prompt.

    A turn whose prompt begins with the whole prompt of the one it comes `after` goes on with its answer, as
    chat templates write it.  O(symbols).
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
    """Token ids as a key.  `pack_tokens([1, 2])` is `b"\\x01\\0\\0\\0\\x02\\0\\0\\0"`."""
    return np.array(tokens, dtype="<i4").tobytes()


def unique_tokens(source: str, name: int, count: int) -> bytes:
    """`count` packed token ids below `VOCABULARY`, fixed by `source`; the first stands for `name`.

    So two texts of different names differ from their first token on, and never share more of a prefix
    than a workload says.  String seeds and `randbytes` give the same ids in every Python version.
    """
    raw = np.frombuffer(Random(source).randbytes(SYMBOL_BYTES * count), dtype="<u4")
    ids = (raw % VOCABULARY).astype("<i4")
    ids[:1] = NAMING_ID + name
    return ids.tobytes()


def ideal_hit(workload: Workload, *, include_warmup: bool = False) -> float:
    """Cached prompt tokens / prompt tokens of a cache that never evicts, in arrival order.

    A request hits the longest prefix it shares, in whole symbols, with any earlier request of its
    namespace, but at most `num_tokens - 1`: engines always compute the last token.  Of generated tokens
    only those of `SimRequest.answer` are part of the cache.

    Args:
        workload: its requests are taken in the order given.
        include_warmup: count the warm-up requests in the ratio too (they warm the cache in both
            cases).  The published ideal values do; the metrics of a run do not, so leave it off
            when the result stands beside a measured hit ratio.

    Returns:
        A ratio in 0..1; 0.0 if no request is counted.

    Cost: O(N log N) byte comparisons of one key length each, in memory for one reference per key.
    """
    seen: dict[str, list[bytes]] = {}
    hit_tokens = prompt_tokens = 0
    first_counted = 0 if include_warmup else workload.warmup
    for position, request in enumerate(workload.requests):
        symbols = _insert_and_match(seen.setdefault(request.namespace, []), request.key, request.answer)
        if position >= first_counted:
            hit_tokens += min(symbols * workload.unit_tokens, request.num_tokens - 1)
            prompt_tokens += request.num_tokens
    return hit_tokens / prompt_tokens if prompt_tokens else 0.0


def _insert_and_match(earlier: list[bytes], key: bytes, answer: bytes) -> int:
    """Put `key + answer` into the sorted `earlier`; return the symbols that `key` shares."""
    place = bisect_left(earlier, key)
    neighbours = earlier[max(0, place - 1) : place + 1]
    whole = key + answer
    if whole not in neighbours:  # a copy would add nothing
        earlier.insert(bisect_left(earlier, whole, place), whole)
    return max((shared_symbols(each, key) for each in neighbours), default=0)


def shared_symbols(left: bytes, right: bytes) -> int:
    """Leading symbols that two packed keys have in common.  O(shorter key)."""
    return match_span(left, 0, right, 0) // SYMBOL_BYTES
