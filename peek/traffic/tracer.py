"""Events as rows of a trace: prompts become chained, salted block hashes as they come, and are forgotten.

The hash of a block is a keyed BLAKE2b of the hash before it and the block's tokens, so equal hashes mean
equal prompts up to there, in one namespace, and without the salt nobody can try out what a block holds.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from peek.errors import WorkloadError
from peek.offline.formats.requests import SYMBOL_BYTES, key_of, kind_of
from peek.traffic.events import Arrival, Ending, Event
from peek.traffic.times import UNITS, bare_unit, doubt

_ID_BITS: Final = 53
"""Of a block's id: what JSON readers keep; equal by accident once in 2**53 pairs."""

_LARGEST_SALT: Final = 64
"""Bytes of a key of BLAKE2b."""


@dataclass(slots=True)
class _Traced:
    """A request, without its prompt."""

    at_s: float | None
    tokens: int
    hash_ids: array[int]
    tenant: str
    most_tokens: int
    output_tokens: int = 0


@dataclass
class Counts:
    """What went into a trace.

    Attributes:
        requests, prompt_tokens: all there are; tokens as `Tracer` counts them.
        texts: requests whose prompt is text.
        answered: requests whose output length the log tells.
        allowed: others, of which it tells at least what they were allowed.
        engine_prompt_tokens, engine_cached_tokens: as the engine counts them, where it tells both.
        started_before: endings of requests that had come before the log began.
        bare_times: requests whose time is a number of a unit that nobody tells.
        span_s: from the first to the last, once there are rows; then also
        doubt: what to say of the unit in which their times were read.
    """

    requests: int = 0
    prompt_tokens: int = 0
    texts: int = 0
    answered: int = 0
    allowed: int = 0
    engine_prompt_tokens: int = 0
    engine_cached_tokens: int = 0
    started_before: int = 0
    bare_times: int = 0
    span_s: float = 0.0
    doubt: str = ""


class Tracer:
    """Collects requests and gives them back as rows.

    Args:
        salt: secret bytes; traces made with one salt have equal ids for equal prompts.
        block_tokens: tokens of a block.
        encode: text to token ids; None: four bytes count as a token.

    Attributes:
        counts: of all so far.

    Memory: 8 bytes per block of each request, and about 300 per request.
    """

    def __init__(self, salt: bytes, block_tokens: int, encode: Callable[[str], list[int]] | None) -> None:
        self.counts = Counts()
        self._salt = salt if len(salt) <= _LARGEST_SALT else blake2b(salt).digest()
        self._block_tokens = block_tokens
        self._encode = encode
        self._traced: list[_Traced] = []
        self._by_name: dict[str, _Traced] = {}

    def take(self, event: Event) -> None:
        """Note one event.  About a microsecond per block.

        `InvalidKey` for token ids outside int32, `WorkloadError` for an empty prompt: nothing is noted.
        """
        if isinstance(event, Arrival):
            self._arrive(event)
        else:
            self._end(event)

    def _arrive(self, event: Arrival) -> None:
        if not event.prompt:
            raise WorkloadError("the prompt is empty")
        key = key_of(event.prompt, self._encode)
        ids = self._hash_ids(key, f"{event.namespace}/{kind_of(event.prompt)}")
        tenant = ""
        if event.tenant:
            tenant = self._digest(b"tenant", event.tenant.encode("utf-8", "surrogatepass")).hex()[:12]
        traced = _Traced(event.at_s, len(key) // SYMBOL_BYTES, ids, tenant, event.most_tokens)
        self._traced.append(traced)
        self._by_name[event.name] = traced
        self.counts.requests += 1
        self.counts.prompt_tokens += traced.tokens
        self.counts.texts += isinstance(event.prompt, str)
        self.counts.allowed += event.most_tokens > 0
        self.counts.bare_times += event.is_bare

    def _hash_ids(self, key: bytes, namespace: str) -> array[int]:
        chain = self._digest(b"namespace", namespace.encode("utf-8", "surrogatepass"))
        block_bytes = SYMBOL_BYTES * self._block_tokens
        ids = array("Q")
        for start in range(0, len(key), block_bytes):
            chain = self._digest(chain, key[start : start + block_bytes])
            ids.append(int.from_bytes(chain[:8], "little") >> (64 - _ID_BITS))
        return ids

    def _digest(self, before: bytes, content: bytes) -> bytes:
        hashed = blake2b(before, digest_size=16, key=self._salt)
        hashed.update(content)
        return hashed.digest()

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
        """The rows, ascending in time, the first at 0.

        Bare numbers get their unit here, all of them the same (`bare_unit`); among dates they are seconds.
        Times that are whole seconds throughout are those of a log that knows no more: the requests of one
        second are spread evenly over it.

        Args:
            unknown_tokens: output length of a request of which nobody tells it.
            rate: requests a second, evenly apart, in place of the log's times.

        Raises:
            WorkloadError: a request has no time, and there is no `rate`.
        """
        times = self._times(rate)
        start = min(times, default=0.0)
        self.counts.span_s = max(times, default=0.0) - start
        for place in sorted(range(len(times)), key=times.__getitem__):
            traced = self._traced[place]
            row = {
                "timestamp": round(1000.0 * (times[place] - start), 3),
                "input_length": traced.tokens,
                "output_length": traced.output_tokens or traced.most_tokens or unknown_tokens,
                "hash_ids": traced.hash_ids.tolist(),
                "block_tokens": self._block_tokens,
            }
            yield {**row, "tenant": traced.tenant} if traced.tenant else row

    def _times(self, rate: float | None) -> list[float]:
        if rate is not None:
            return [place / rate for place in range(len(self._traced))]
        times = [traced.at_s for traced in self._traced if traced.at_s is not None]
        if len(times) < len(self._traced):
            missing = len(self._traced) - len(times)
            raise WorkloadError(f"{missing} of {len(self._traced)} requests have no time")
        if self.counts.bare_times == len(times):
            unit = bare_unit(times)
            times = [number / UNITS[unit] for number in times]
            self.counts.doubt = doubt(times, unit)
        return _spread(times) if all(at_s.is_integer() for at_s in times) else times


def _spread(times: list[float]) -> list[float]:
    """Whole seconds, with those that are equal evenly apart inside their second, in the order they came."""
    of_second: dict[float, int] = {}
    for at_s in times:
        of_second[at_s] = of_second.get(at_s, 0) + 1
    seen: dict[float, int] = {}
    spread = []
    for at_s in times:
        spread.append(at_s + seen.get(at_s, 0) / of_second[at_s])
        seen[at_s] = seen.get(at_s, 0) + 1
    return spread
