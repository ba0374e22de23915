"""Estimates the hits that `peek`'s order would have brought, while the engine keeps its own order.

A virtual engine runs beside the real one in the same time (`peek.simulation.live`).  It gets the requests as
they arrive and orders its own queue with its own planner, against its own cache of the real one's size.
Its order saves work, so it may get well ahead of the real engine.  So it advances by time, not by steps: its
steps take as long as the real engine's steps with as much work.

The result is a pair for each request: the cached tokens that the real and the virtual engine found.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from peek.adapters.containment import log_or_raise
from peek.adapters.engine_adapter import NOTHING, Stated
from peek.simulation.cost import MeasuredSteps, chunk_pairs
from peek.simulation.live import Live
from peek.simulation.workload import SimRequest

logger = logging.getLogger("peek")

MOST_STEPS: Final = 32
"""Most virtual steps for one real step: more than a planner could gain."""

MOST_GHOSTS: Final = 2000
"""Most requests that only the virtual engine still has, beyond the number that the real one has."""

REPORT_EVERY: Final = 1000
"""Requests between two lines in the log."""

_FAILED: Final = "peek: the shadow failed, and foretells nothing more; nothing else is touched"


class AnswerLengths:
    """Lengths of an engine's `keep` latest answers, to guess that of the next one."""

    def __init__(self, keep: int = 256) -> None:
        self._last: deque[tuple[int, bool]] = deque(maxlen=keep)
        self._turn = 0

    def note(self, tokens: int, allowed: int) -> None:
        self._last.append((tokens, tokens >= allowed))

    def guess(self, allowed: int) -> int:
        """Return the length of a recent answer, each in turn; `allowed` if it was cut off or is unknown."""
        if not self._last:
            return allowed
        self._turn = (self._turn + 1) % len(self._last)
        tokens, cut_off = self._last[self._turn]
        return allowed if cut_off else min(tokens, allowed)


@dataclass(slots=True)
class _Pair:
    """One request in both engines: its cached tokens in each, -1 while unknown."""

    name: str
    prompt: int
    allowed: int
    real: int = -1
    virtual: int = -1
    ended: bool = False  # in the real engine


class Shadow:
    """The virtual engine and the account; `VllmShadow` or `SglangShadow` reports to it what an engine does.

    O(log n) per arrival.  Memory: for the requests that either engine has, at most `MOST_GHOSTS` plus twice
    the real engine's, and for the cache's symbols.

    Args:
        make: returns a new virtual engine with these step times.

    Attributes:
        steps: durations of the real engine's steps.
        requests, prompt_tokens: requests that both engines have admitted, and the tokens of their prompts.
        hit_tokens, stock_hit_tokens: those of the tokens that the virtual and the real engine had cached.
    """

    def __init__(self, make: Callable[[MeasuredSteps], Live]) -> None:
        self._make = make
        self.steps = MeasuredSteps()
        self.lengths = AnswerLengths()
        self.requests = 0
        self.prompt_tokens = 0
        self.hit_tokens = 0
        self.stock_hit_tokens = 0
        self._engine = self._made()
        self._pairs: dict[str, _Pair] = {}
        self._by_name: dict[str, str] = {}
        self._count = 0
        self._ghosts = 0

    # -- what the real engine does -----------------------------------------------------------------

    def arrived(
        self,
        request_id: str,
        key: bytes,
        prompt: int,
        allowed: int,
        at_s: float,
        namespace: str = "",
        stated: Stated = NOTHING,
    ) -> None:
        """Note a request that has waited since `at_s` on the clock of `step`.

        `key` has its whole units as packed symbols, see `peek.simulation.live`.  `prompt` and `allowed`:
        tokens of its prompt, and most tokens of its answer.
        """
        if request_id in self._pairs:
            self._forget(request_id)  # the id is used again
        self._count += 1
        pair = self._pairs[request_id] = _Pair(f"{self._count}", prompt, allowed)
        self._by_name[pair.name] = request_id
        request = SimRequest(pair.name, at_s, key, prompt, max(1, allowed), namespace, **stated._asdict())
        self._engine.offer(request)

    def admitted(self, request_id: str, cached: int) -> None:
        """Note that the real engine admitted it with `cached` cached prompt tokens; ignored a second time."""
        pair = self._pairs.get(request_id)
        if pair is not None and pair.real < 0:
            pair.real = cached
            self._settle(pair)

    def ended(self, request_id: str, output_tokens: int, answer: bytes = b"") -> None:
        """Note that a request left the real engine; one that was not admitted was withdrawn.

        `answer`: the symbols after those of its key, as far as they are known.
        """
        pair = self._pairs.get(request_id)
        if pair is None or pair.ended:
            return
        if pair.real < 0:
            self._forget(request_id)
            return
        pair.ended = True
        self.lengths.note(output_tokens, pair.allowed)
        self._engine.correct(pair.name, output_tokens, answer)
        if pair.virtual >= 0:
            self._drop(request_id)
        else:
            self._ghosts += 1

    def took_step(
        self, at_s: float, went_on: bool, chunks: list[tuple[int, int]], decoded: list[int]
    ) -> None:
        """Note a step of the real engine; see `MeasuredSteps.note`.

        `chunks`: start and length of each computed part of a prompt.  `decoded`: tokens before each new one.
        """
        tokens = sum([length for _, length in chunks]) + len(decoded)
        if tokens:
            pairs = sum([chunk_pairs(start, length) for start, length in chunks])
            self.steps.note(at_s, went_on, tokens, pairs, sum(decoded))

    def step(self, now: float) -> None:
        """Advance the virtual engine to `now`, if enough is known of the real engine's steps."""
        if not self.steps.known:
            return
        self._engine.advance(now, MOST_STEPS)
        for job in self._engine.entered:
            request_id = self._by_name.get(job.request_id)
            if request_id is not None:
                pair = self._pairs[request_id]
                pair.virtual = job.cached_at_admission
                self._settle(pair)
                if pair.ended:
                    self._ghosts -= 1
                    self._drop(request_id)
        self._engine.entered.clear()
        if self._ghosts > MOST_GHOSTS + len(self._pairs) - self._ghosts:
            logger.warning("peek: the shadow fell behind and starts anew")
            self._engine = self._made()
            self._pairs.clear()
            self._by_name.clear()
            self._ghosts = 0

    # -- the account -------------------------------------------------------------------------------

    def _settle(self, pair: _Pair) -> None:
        if pair.real < 0 or pair.virtual < 0:
            return
        self.requests += 1
        self.prompt_tokens += pair.prompt
        self.hit_tokens += pair.virtual
        self.stock_hit_tokens += pair.real
        if self.requests % REPORT_EVERY == 0:
            logger.info("peek: %s", self)

    def _made(self) -> Live:
        engine = self._make(self.steps)
        engine.length_of = self._length_of
        return engine

    def _length_of(self, request: SimRequest) -> int:
        """Guess the length of a request's answer, tokens; 1 if it was withdrawn."""
        request_id = self._by_name.get(request.request_id)
        return 1 if request_id is None else self.lengths.guess(self._pairs[request_id].allowed)

    def _drop(self, request_id: str) -> None:
        del self._by_name[self._pairs.pop(request_id).name]

    def _forget(self, request_id: str) -> None:
        pair = self._pairs[request_id]
        self._ghosts -= pair.ended
        self._engine.give_up(pair.name)
        self._drop(request_id)

    def counters(self) -> dict[str, float]:
        """Return the counters to export."""
        return {
            "peek_shadow_prompt_tokens": self.prompt_tokens,
            "peek_shadow_hit_tokens": self.hit_tokens,
            "peek_shadow_stock_hit_tokens": self.stock_hit_tokens,
        }

    def __str__(self) -> str:
        if not self.prompt_tokens:
            return "the shadow has seen no request through yet"
        ours, theirs = (100 * hit / self.prompt_tokens for hit in (self.hit_tokens, self.stock_hit_tokens))
        return (
            f"of {self.prompt_tokens} prompt tokens of {self.requests} requests {theirs:.1f} % were cached;"
            f" in the order of peek it would have been {ours:.1f} % ({ours - theirs:+.1f} points)"
        )


class ShadowLifecycle:
    """The shadows of one attachment, one at a time while the mode is "shadow".

    `make` makes a shadow beside an adapter, or returns why it cannot; None makes none.  A shadow's `account`
    is a `Shadow`, None before it has seen the engine at work.  `tell` calls a shadow's method by its name.
    After an error there is no shadow until the mode changes again.

    Attributes:
        shadow: the current one, None if there is none.
        why_not: why none is made beside the followed adapter; "" if there is one, or no adapter is followed.
    """

    def __init__(self, strict: bool, make: Callable[[Any], Any] | None) -> None:
        self.shadow: Any = None
        self.why_not = ""
        self._strict = strict
        self._make = make
        self._before: dict[str, float] = {}
        """Sums of the counters of earlier shadows."""

    def follow(self, adapter: Any) -> None:
        """From now on follow the engine of this adapter; None for none."""
        if self.shadow is not None:
            logger.info("peek: the shadow ends: %s", self.shadow.account or "the engine has not run")
            self._drop()
        self.why_not = ""
        if adapter is None or self._make is None:
            return
        try:
            made = self._make(adapter)
        except Exception:
            log_or_raise(self._strict, _FAILED)
            return
        if isinstance(made, str):
            self.why_not = made
            logger.warning("peek: the shadow plans, and does not foretell the hits: %s", made)
        else:
            self.shadow = made

    def tell(self, event: str, *args: Any) -> None:
        if self.shadow is None:
            return
        try:
            getattr(self.shadow, event)(*args)
        except Exception:
            self._drop()
            log_or_raise(self._strict, _FAILED)

    def _drop(self) -> None:
        self._before = self.counters()
        self.shadow = None

    def counters(self) -> dict[str, float]:
        """Return the counters to export, summed over all shadows; empty before the first one."""
        account: Shadow | None = None if self.shadow is None else self.shadow.account
        if account is None:
            return self._before
        return {name: value + self._before.get(name, 0) for name, value in account.counters().items()}
