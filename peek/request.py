"""A waiting request, translated once on arrival.

`PendingRequest` is the only form in which the core sees an engine's request.  The first block of
attributes is given by the caller and never changes; the second is written by the planner in every
cycle and is what policies read.
"""

from __future__ import annotations

from math import isfinite
from typing import Final, final

from mypy_extensions import i64

from peek.errors import InvalidKey

NO_LANE: Final = -1
"""`lane` of a request that no lane picked: there are none, or the stock order stood."""

SINGLETON: Final = 0
"""`cluster_id` of a request that shares no prefix with another waiting request."""


@final
class PendingRequest:
    """One waiting request and the signals a policy orders it by.

    Args:
        request_id: unique among the waiting requests.
        key: the prompt in symbols: `list[int]`, `bytes` (int32 little endian), `array`, or a numpy
            int32 / int64 vector.  The tree takes it over and drops the reference: no second copy.
        arrival_time: seconds on the caller's clock.
        namespace: what keeps equal token sequences from sharing KV (LoRA, cache salt).
        num_tokens: prompt length in tokens; 0 means `length * unit_tokens`.  Needed where the last
            tokens do not fill a page or block and so are not part of the key.
        tail: symbols of the prompt behind the key, left out because no waiting request can share them
            and the cache cannot hold them while the key stands (see `PendingTree.extend`).

    Signals, valid after `Planner.plan`:
        arrival_work: uncached tokens the engine had admitted when the request arrived (HRRN's clock).
        sequence: rank of arrival (unique, ascending).
        length: symbols in the key, without the tail.
        cached_len: tokens of the prompt already in the KV cache (the paper's h).
        coming_len: tokens of the prompt that a prefill now running will have cached when it ends;
            only on engines that show a prefix to others no sooner, else 0.
        score: sum of pending_count x edge length over the path (Eq. 1), in symbols.
        cluster_id, cluster_depth, cluster_size: the deepest tree node that at least two waiting
            requests share: its id (0 for a singleton), depth in symbols, pending count.
        head: id of the tree node that holds the first theta symbols, 0 if the key is shorter.
        section: WARM / PIONEER / SIBLING, where the policy uses sections.
        lane: the lane that picked it in the last order, `NO_LANE` where none did.
    """

    __slots__ = (
        "arrival_time",
        "arrival_work",
        "cached_len",
        "cluster_depth",
        "cluster_id",
        "cluster_size",
        "coming_len",
        "head",
        "key",
        "lane",
        "length",
        "namespace",
        "num_tokens",
        "rank",
        "request_id",
        "score",
        "section",
        "sequence",
        "tail",
    )

    def __init__(
        self,
        request_id: str,
        key: object,
        arrival_time: float,
        namespace: str = "",
        num_tokens: int = 0,
        tail: int = 0,
    ) -> None:
        if not isfinite(arrival_time):
            raise InvalidKey(f"arrival_time of {request_id!r} is {arrival_time!r}, not a finite number")
        if num_tokens < 0:
            raise InvalidKey(f"num_tokens of {request_id!r} is {num_tokens}, below 0")
        if tail < 0:
            raise InvalidKey(f"tail of {request_id!r} is {tail}, below 0")
        self.request_id = request_id
        self.key = key
        self.arrival_time: float = arrival_time
        self.namespace = namespace
        self.num_tokens: i64 = num_tokens
        self.tail: i64 = tail
        self.arrival_work: i64 = 0
        self.sequence: i64 = 0
        self.length: i64 = 0
        self.cached_len: i64 = 0
        self.coming_len: i64 = 0
        self.score: i64 = 0
        self.cluster_id: i64 = SINGLETON
        self.cluster_depth: i64 = 0
        self.cluster_size: i64 = 1
        self.head: i64 = 0
        self.section: i64 = 0
        self.lane: i64 = NO_LANE
        self.rank: i64 = 0  # scratch of policies: place in the order of arrival

    def __repr__(self) -> str:
        return f"PendingRequest({self.request_id!r}, {self.num_tokens} tokens, cached {self.cached_len})"
