"""A waiting request, translated once on arrival.

`PendingRequest` is the only form in which the core sees an engine's request.  The caller gives its arguments;
the planner writes its signals in every cycle, and policies read them.
"""

from __future__ import annotations

import operator
from math import isfinite
from typing import Any, Final, SupportsFloat, SupportsIndex, final

from peek.errors import InvalidKey, a_kind
from peek.native import i64

NO_LANE: Final = -1
"""`lane` of a request that no lane picked: there are no lanes, or the stock order stood."""

SINGLETON: Final = 0
"""`cluster_id` of a request that shares no prefix with another waiting request."""

_SIGNALS: Final = (
    "arrival_work", "cached_len", "cluster_depth", "cluster_id", "cluster_size", "coming_len", "head", "lane",
    "length", "score", "section", "sequence",
)  # fmt: skip
"""Attributes that are written after the constructor."""

_GIVEN: Final = (
    "request_id", "key", "arrival_time", "namespace", "num_tokens", "tail", "tenant", "heads", "session",
    "ttft_target_s",
)  # fmt: skip
"""The arguments of the constructor, which are attributes, too."""

MAX_TOKENS: Final = 2**53
"""More tokens than any request computes or generates; lanes count in floats, which are exact up to here."""


@final
class PendingRequest:
    """One waiting request and the signals that a policy orders it by.

    Copies and pickles are complete on either build.  Numbers may be numpy's.  `InvalidKey` for an argument of
    a wrong type or out of range; an invalid key is refused later, by `PendingTree.add`.

    Args:
        request_id: a str, unique among the waiting requests.
        key: the prompt in symbols: `list[int]`, `bytes` (int32 little endian), `array`, or a numpy int32 /
            int64 vector.  The tree takes it over and drops the reference: no second copy.
        arrival_time: seconds on the caller's clock.
        namespace: a str, what keeps equal token sequences from sharing KV (LoRA, cache salt).
        num_tokens: prompt length in tokens; 0 means `length * unit_tokens`.  Needed if the last tokens do not
            fill a page or block, so that they are not part of the key.
        tail: number of symbols of the prompt after the key.  They are left out because no waiting request can
            share them and the cache cannot hold them while the key stands (see `PendingTree.extend`).
        tenant: a str, the name that the request is accounted to; "" if tenants are not told apart.
        heads: hashable names of the prompt's beginnings, shortest first, for learning answer lengths.  Needed
            if equal symbols may mean something else later.  Otherwise the planner makes them for a policy
            that reads them.
        session: a str, the conversation or job that the request is a turn of; "" if not known.  The planner
            then infers it for a policy that reads `heads` (`peek.trie.continuations`).
        ttft_target_s: seconds after its arrival within which its first token is wanted; None for no target of
            its own.

    Signals, valid after `Planner.plan`; `score`, `cluster_*` and `head` only if the policy reads the tree:
        arrival_work: uncached tokens that the engine had admitted when the request arrived (HRRN's clock).
        sequence: rank of arrival (unique, ascending).
        length: symbols in the key, without the tail.
        cached_len: tokens of the prompt already in the KV cache (the paper's h).
        coming_len: tokens of the prompt that a prefill under way will have cached when it ends; 0 on engines
            that show a prefix sooner.
        score: sum of pending_count x edge length over the path (Eq. 1), in symbols.
        cluster_id, cluster_depth, cluster_size: the deepest tree node that at least two waiting requests
            share: its id (0 for a singleton), depth in symbols, pending count.
        head: id of the tree node that holds the first theta symbols, 0 if the key is shorter.
        section: WARM / PIONEER / SIBLING, written by a policy that uses sections.
        lane: the lane that picked the request in the last order, `NO_LANE` if none did.
    """

    __slots__ = (
        "_arrival_time", "_namespace", "_request_id", "_tenant", "heads", "key", "num_tokens", "placed",
        "session", "tail", "ttft_target_s", *_SIGNALS,
    )  # fmt: skip

    # `object` for texts, because compiled code would check `str` itself and not name the argument.
    def __init__(
        self,
        request_id: object,
        key: object,
        arrival_time: SupportsFloat,
        namespace: object = "",
        num_tokens: SupportsIndex = 0,
        tail: SupportsIndex = 0,
        tenant: object = "",
        heads: object = (),
        session: object = "",
        ttft_target_s: SupportsFloat | None = None,
    ) -> None:
        name = request_id if isinstance(request_id, str) else _no_text("request_id", request_id)
        self._request_id: str = name
        self.key = key
        self._arrival_time: float = _seconds(name, "arrival_time", arrival_time)
        self._namespace: str = namespace if isinstance(namespace, str) else _no_text("namespace", namespace)
        self.num_tokens: i64 = count_of(name, "num_tokens", num_tokens)
        self.tail: i64 = count_of(name, "tail", tail)
        self._tenant: str = tenant if isinstance(tenant, str) else _no_text("tenant", tenant)
        self.heads: tuple[object, ...] = _names(name, heads)
        self.session: str = session if isinstance(session, str) else _no_text("session", session)
        self.ttft_target_s: float | None = None
        if ttft_target_s is not None:
            self.ttft_target_s = _target(name, ttft_target_s)
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
        self.placed: i64 = 0  # the planner's number of the last order that had it

    # Read-only, because tree and accounts file a request under these: a change would lose it.

    @property
    def request_id(self) -> str:
        """The id, unique among the waiting requests."""
        return self._request_id

    @property
    def arrival_time(self) -> float:
        """Seconds on the caller's clock."""
        return self._arrival_time

    @property
    def namespace(self) -> str:
        """What keeps equal token sequences from sharing KV."""
        return self._namespace

    @property
    def tenant(self) -> str:
        """The name that the request is accounted to."""
        return self._tenant

    def __reduce__(self) -> tuple[Any, ...]:
        given = tuple(getattr(self, name) for name in _GIVEN)
        signals = {name: getattr(self, name) for name in _SIGNALS}
        return PendingRequest, given, signals

    def __setstate__(self, signals: dict[str, Any]) -> None:
        for name, value in signals.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"PendingRequest({self.request_id!r}, {self.num_tokens} tokens, cached {self.cached_len})"


def _no_text(name: str, value: object) -> str:
    raise InvalidKey(f"{name} is {value!r}, {a_kind(value)}; need a str")


def _names(request_id: str, value: object) -> tuple[object, ...]:
    if isinstance(value, (tuple, list)):
        names = tuple(value)
        try:
            hash(names)
            return names
        except TypeError:
            pass
    raise InvalidKey(f"heads of {request_id!r} is {value!r}; need a tuple of what can be hashed")


def count_of(request_id: str, name: str, value: object) -> i64:
    """Return a count of tokens or symbols; `InvalidKey` unless it is a whole number from 0 to 2**53."""
    if isinstance(value, int) and 0 <= value <= MAX_TOKENS:
        return i64(value)
    try:
        number: int = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        said = f"{name} of {request_id!r} is {value!r}, {a_kind(value)}"
        raise InvalidKey(f"{said}; need a whole number") from None
    if 0 <= number <= MAX_TOKENS:
        return i64(number)
    where = "below 0" if number < 0 else "beyond 2**53"
    raise InvalidKey(f"{name} of {request_id!r} is {number}, {where}")


def _target(request_id: str, value: object) -> float:
    seconds = _seconds(request_id, "ttft_target_s", value)
    if seconds <= 0.0:
        raise InvalidKey(f"ttft_target_s of {request_id!r} is {value!r}; need more than 0")
    return seconds


def _seconds(request_id: str, name: str, value: object) -> float:
    if isinstance(value, float) and isfinite(value):
        return value
    if not isinstance(value, (str, bytes, bytearray)):  # `float` would parse these
        try:
            seconds = float(value)  # type: ignore[arg-type]
            if isfinite(seconds):
                return seconds
        except (TypeError, ValueError, OverflowError):
            pass
    raise InvalidKey(f"{name} of {request_id!r} is {value!r}, not a finite number")


def require_tokens(name: str, tokens: object) -> int:
    """Return a number of tokens as an int; `InvalidKey` unless it is a whole number within 0 .. 2**53."""
    try:
        number: int = operator.index(tokens)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number <= MAX_TOKENS:
        raise InvalidKey(f"{name} is {tokens!r}; need 0 .. 2**53, a whole number")
    return number
