"""Turns events into the rows of a trace; prompts become chained, salted block hashes and are not kept.

The hash of a block is a keyed BLAKE2b of the hash before it and the block's tokens.  So within a namespace
equal hashes mean equal prompts up to there.  A guess of a block's tokens cannot be tested without the salt.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import count, islice
from typing import Any, Final

from peek.errors import WorkloadError
from peek.offline.formats import SYMBOL_BYTES, Encode, key_of, kind_of
from peek.traffic.events import Arrival, Ending, Event, Measured
from peek.traffic.times import UNITS, bare_unit, doubt

BLOCK_TOKENS: Final = 16  # the default, vLLM's; hits with SGLang's page of 1 token differ little
_ID_BITS: Final = 53  # as many as JSON readers keep; two blocks' ids are equal by chance in 1 of 2**53
_LONGEST_S: Final = 2**53 / 1000  # readers of traces accept no later time
_LARGEST_SALT: Final = 64  # most bytes of a BLAKE2b key; a longer salt is hashed first


@dataclass(slots=True)
class _Traced:
    """What is kept of a request; not its prompt."""

    at_s: float | None
    tokens: int
    hash_ids: array[int]
    tenant: str
    most_tokens: int
    output_tokens: int = 0


@dataclass
class Counts:
    """Counts of what went into a trace."""

    requests: int = 0
    prompt_tokens: int = 0  # as `Tracer` counts them
    texts: int = 0  # requests whose prompt is text
    alone: int = 0  # requests of whose prompt only the length is known; they count as sharing nothing
    answered: int = 0  # requests whose output length is in the log
    allowed: int = 0  # requests with only an upper limit of their output length in the log
    ranked: int = 0  # requests that ask for a priority
    # engine_prompt_tokens, engine_cached_tokens: sums of the engine's own counts, if it logs both
    engine_prompt_tokens: int = 0
    engine_cached_tokens: int = 0
    untimed: int = 0  # requests left out because they have no time and others do; set by `rows`
    started_before: int = 0  # endings of requests that arrived before the log began
    bare_times: int = 0  # requests whose time is a number of an unknown unit
    span_s: float = 0.0  # seconds from the first to the last arrival; set by `rows`
    # sessions, turns: sessions of two turns or more, and all their turns; set by `rows`.  A prompt is the
    # next turn of an earlier prompt that it continues and that no other prompt has continued.
    sessions: int = 0
    turns: int = 0
    doubt: str = ""  # message on the unit in which the times were read; set by `rows`

    @property
    def unknown(self) -> int:
        """Number of requests without output length and limit in the log."""
        return self.requests - self.answered - self.allowed

    @property
    def cached(self) -> float | None:
        """Part of the prompt tokens that were cached, as the engine counts; None if it does not say."""
        return self.engine_cached_tokens / self.engine_prompt_tokens if self.engine_prompt_tokens else None

    @property
    def doubts(self) -> list[str]:
        """Messages on doubtful points: the unit of times, and requests or answers that are left out."""
        untimed = f"requests without a time, left out: {self.untimed:,}" * bool(self.untimed)
        foreign = f"answers to requests that are not in the log: {self.started_before:,}"
        return list(filter(None, (self.doubt, untimed, foreign * bool(self.started_before))))


class Hashing:
    """Makes ids of blocks and names of tenants that reveal nothing without the salt, secret bytes."""

    def __init__(self, salt: bytes, block_tokens: int) -> None:
        self._salt = salt if len(salt) <= _LARGEST_SALT else blake2b(salt).digest()
        self._block_bytes = SYMBOL_BYTES * block_tokens

    def ids(self, key: bytes, namespace: str) -> array[int]:
        """Return a chained id per block of a packed prompt, also for a partial one.  About 1 us per block."""
        chain = self._digest(b"namespace", namespace.encode("utf-8", "surrogatepass"))
        ids = array("Q")
        for start in range(0, len(key), self._block_bytes):
            chain = self._digest(chain, key[start : start + self._block_bytes])
            ids.append(_bits(chain))
        return ids

    def id(self, name: bytes) -> int:
        """Return an id for a block that is known only by a name."""
        return _bits(self._digest(b"block", name))

    def name(self, kind: str, name: str) -> str:
        """Return twelve hexadecimal digits for a name of this kind; "" for an empty name."""
        return self._digest(kind.encode(), name.encode("utf-8", "surrogatepass")).hex()[:12] if name else ""

    def _digest(self, before: bytes, content: bytes) -> bytes:
        hashed = blake2b(before, digest_size=16, key=self._salt)
        hashed.update(content)
        return hashed.digest()


def _bits(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little") >> (64 - _ID_BITS)


class Tracer:
    """Collects requests from events, with `counts` of them, and yields them as the rows of a trace.

    Args:
        salt: secret bytes; traces made with one salt have equal ids for equal prompts.
        block_tokens: tokens per block; None takes those of the first row with hashes, or 16 for prompts.
        encode: function from text to token ids; None to count four bytes as a token.

    Memory: 8 bytes per block of each request, and about 300 per request.
    """

    def __init__(self, salt: bytes, block_tokens: int | None, encode: Encode | None) -> None:
        self.counts = Counts()
        self._salt = salt
        self._block_tokens = block_tokens
        self._encode = encode
        self._traced: list[_Traced] = []
        self._by_name: dict[str, _Traced] = {}

    def take(self, event: Event) -> None:
        """Take one event.  About 1 us per block.

        Raises `InvalidKey` for token ids outside int32, `WorkloadError` for an empty prompt or blocks that
        the trace's block size does not divide; the event is then left out.
        """
        if isinstance(event, Arrival):
            self._arrive(event)
        elif isinstance(event, Measured):
            self._measure(event)
        else:
            self._end(event)

    @property
    def block_tokens(self) -> int:
        return self._block_tokens or BLOCK_TOKENS

    @cached_property
    def _hashing(self) -> Hashing:
        """The maker of ids; its first use fixes the block size."""
        self._block_tokens = self.block_tokens
        return Hashing(self._salt, self._block_tokens)

    def _arrive(self, event: Arrival) -> None:
        if not event.prompt:
            raise WorkloadError("the prompt is empty")
        key = key_of(event.prompt, self._encode)
        ids = self._hashing.ids(key, f"{event.namespace}/{kind_of(event.prompt)}")
        self._note(event, len(key) // SYMBOL_BYTES, ids, event.most_tokens)
        self.counts.texts += isinstance(event.prompt, str)
        self.counts.allowed += event.most_tokens > 0
        self.counts.ranked += event.priority != 0

    def _measure(self, event: Measured) -> None:
        tokens, size = event.prompt_tokens, event.block_tokens
        if event.hash_ids is None:
            named: Iterable[bytes] = (b"%d/%d" % (len(self._traced), place) for place in count())
            self.counts.alone += 1
        else:
            self._block_tokens = self._block_tokens or (BLOCK_TOKENS if self._traced else size)
            parts, odd = divmod(size, self._block_tokens)
            if odd:
                raise WorkloadError(f"has blocks of {size} tokens, and the others of {self._block_tokens}")
            named = (b"%d/%d/%d" % (size, each, part) for each in event.hash_ids for part in range(parts))
        ids = array("Q", map(self._hashing.id, islice(named, -(-tokens // self.block_tokens))))
        self._note(event, tokens, ids, 0, event.output_tokens)
        self.counts.answered += event.output_tokens > 0

    def _note(
        self, event: Arrival | Measured, tokens: int, ids: array[int], most: int, told: int = 0
    ) -> None:
        tenant = self._hashing.name("tenant", event.tenant)
        self._by_name[event.name] = _Traced(event.at_s, tokens, ids, tenant, most, told)
        self._traced.append(self._by_name[event.name])
        self.counts.requests += 1
        self.counts.prompt_tokens += tokens
        self.counts.bare_times += event.is_bare

    def _end(self, event: Ending) -> None:
        traced = self._by_name.get(event.name)
        if traced is None:
            self.counts.started_before += 1
            return
        if event.output_tokens > 0:
            if not traced.output_tokens:
                self.counts.answered += 1
                self.counts.allowed -= traced.most_tokens > 0
            traced.output_tokens += event.output_tokens
        if event.cached_tokens >= 0:
            self.counts.engine_prompt_tokens += event.prompt_tokens
            self.counts.engine_cached_tokens += event.cached_tokens

    def rows(self, unknown_tokens: int, rate: float | None = None) -> Iterator[dict[str, Any]]:
        """Yield the rows in ascending order of time; the first is at 0.

        If all times are bare numbers, they get one unit here (`bare_unit`); among dates they are seconds.  If
        all are whole seconds, the requests of each second are spread evenly over it.  A `rate`, in requests
        per second, replaces the log's times.  Without it, requests that have no time are left out;
        `WorkloadError` if none has any.  An answer without length and limit gets `unknown_tokens`.
        """
        times = self._times(rate)
        start = min(times, default=0.0)
        self.counts.span_s = max(times, default=0.0) - start
        order = sorted(range(len(times)), key=times.__getitem__)
        self._count_sessions(order)
        for place in order:
            traced = self._traced[place]
            row = {
                "timestamp": round(1000.0 * (times[place] - start), 3),
                "input_length": traced.tokens,
                "output_length": traced.output_tokens or traced.most_tokens or unknown_tokens,
                "hash_ids": traced.hash_ids.tolist(),
                "block_tokens": self.block_tokens,
            }
            yield {**row, "tenant": traced.tenant} if traced.tenant else row

    def _count_sessions(self, order: Iterable[int]) -> None:
        """Count sessions and turns.  O(blocks)."""
        # Prompts that no other has continued, by their last whole block: whether each is a later turn.
        last: dict[int, bool] = {}
        self.counts.sessions = self.counts.turns = 0
        for place in order:
            traced = self._traced[place]
            whole = traced.hash_ids[: traced.tokens // self.block_tokens]
            before = next((name for name in reversed(whole[:-1]) if name in last), None)
            if before is not None:
                was_later = last.pop(before)
                self.counts.sessions += not was_later
                self.counts.turns += 1 if was_later else 2
            if whole and whole[-1] not in last:
                last[whole[-1]] = before is not None

    def _times(self, rate: float | None) -> list[float]:
        if rate is not None:
            times = [place / rate for place in range(len(self._traced))]
            if times and times[-1] > _LONGEST_S:
                raise WorkloadError(f"rate is {rate!r}: times grow beyond 2**53 ms")
            return times
        times = [traced.at_s for traced in self._traced if traced.at_s is not None]
        if self._traced and not times:
            raise WorkloadError("no request has a time: name their place with --time-field, or give --rate")
        self._leave_out_untimed()
        if self.counts.bare_times == len(times):
            unit = bare_unit(times)
            times = [number / UNITS[unit] for number in times]
            self.counts.doubt = doubt(times, unit)
        return _spread(times) if all(at_s.is_integer() for at_s in times) else times

    def _leave_out_untimed(self) -> None:
        counts = self.counts
        untimed = [traced for traced in self._traced if traced.at_s is None]
        self._traced = [traced for traced in self._traced if traced.at_s is not None]
        for traced in untimed:
            counts.prompt_tokens -= traced.tokens
            counts.answered -= traced.output_tokens > 0
            counts.allowed -= traced.output_tokens == 0 and traced.most_tokens > 0
        counts.requests -= len(untimed)
        counts.untimed += len(untimed)


def _spread(times: list[float]) -> list[float]:
    """Spread equal whole seconds evenly over their second, in the order of the log."""
    of_second, seen = Counter(times), Counter[float]()
    spread = []
    for at_s in times:
        spread.append(at_s + seen[at_s] / of_second[at_s])
        seen[at_s] += 1
    return spread
