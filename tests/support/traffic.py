# ruff: noqa: T201
"""Long runs on an engine's real scheduler: endless requests, and checks of what must not grow."""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.stepping import expected_tokens

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 2**20
MAX_GROWTH_MIB = 4.0
"""Resident memory may grow by so much once what is remembered of past requests is full."""

REMEMBERED = 50_000
"""Requests after which it is full: the ends of 16,384 prompts and as many sessions, one of two requests."""


@dataclass(frozen=True)
class Arrival:
    """One request."""

    name: str
    tokens: list[int]
    max_tokens: int
    salt: str | None
    lora: str | None


class Traffic:
    """Conversations that grow round by round, prompts behind a shared head, prompts of nobody else.

    About 45 % are the next round of one of up to 20 conversations, 40 % begin one behind one of 12 heads of
    64 to 400 tokens, 15 % share nothing; prompts of 20 to 960 tokens, answers of 1 to 120.
    """

    def __init__(self, seed: int = 1, vocabulary: int = 1000) -> None:
        self.rnd = random.Random(seed)
        self.vocabulary = vocabulary
        self.made = 0
        self._heads = [self._some(self.rnd.choice([64, 200, 400])) for _ in range(12)]
        self._conversations: list[list[int]] = []

    def arrival(self) -> Arrival:
        """The next request."""
        self.made += 1
        rnd = self.rnd
        return Arrival(
            name=f"r{self.made}",
            tokens=self._prompt(),
            max_tokens=rnd.choice([1, 2, 4, 8, 40, 120]),
            salt="t1" if rnd.random() < 0.05 else None,
            lora="en" if rnd.random() < 0.1 else None,
        )

    def _prompt(self) -> list[int]:
        kind = self.rnd.random()
        if kind < 0.15:
            return self._some(self.rnd.randrange(20, 500))
        if kind < 0.6 and self._conversations:
            told = self.rnd.choice(self._conversations)
            told.extend(self._some(self.rnd.randrange(5, 60)))
            if len(told) > 900:
                self._conversations.remove(told)
            return list(told)
        opened = self.rnd.choice(self._heads) + self._some(self.rnd.randrange(5, 80))
        if len(self._conversations) < 20:
            self._conversations.append(list(opened))
        return opened

    def _some(self, count: int) -> list[int]:
        return [self.rnd.randrange(10, self.vocabulary) for _ in range(count)]


class Log:
    """Counts of a run, and its resident memory at every tenth of `requests`."""

    def __init__(self, requests: int) -> None:
        self.requests = requests
        self.counts: Counter[str] = Counter()
        self.samples: list[float] = []

    def made(self, number: int) -> None:
        """To be called when so many requests have been made; more than one sample at once are one."""
        if number * 10 // self.requests > len(self.samples):
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            self.samples.append(pages * PAGE / MIB)

    @property
    def growth(self) -> float:
        """MiB after `REMEMBERED` requests; after the first tenth of a run that is shorter."""
        full = [
            sample for tenth, sample in enumerate(self.samples, 1) if tenth * self.requests >= 10 * REMEMBERED
        ]
        settled = full or self.samples
        return max(settled) - settled[0]

    def verdict(self, title: str, must_be_none: dict[str, int], ended: Callable[[], int]) -> int:
        """Prints what was seen; exit status 1 if anything that must not be is there."""
        print(f"{title}: {self.requests} requests, {ended()} ended")
        print("  " + ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items())))
        print("  must be none: " + ", ".join(f"{count} {name}" for name, count in must_be_none.items()))
        print("  MiB at every tenth: " + " ".join(f"{sample:.1f}" for sample in self.samples), flush=True)
        bad = any(must_be_none.values()) or self.growth > MAX_GROWTH_MIB or ended() != self.requests
        print("  " + ("NOT as it should be" if bad else "as it should be"))
        return int(bad)


class Soak:
    """Traffic for a stepper; up to 200 wait, one arrival in thirty is aborted, every answer is foretold.

    Args:
        make: the engine's request for an arrival.
        waiting: how many wait.
        each_step: called before each step.
    """

    def __init__(
        self,
        requests: int,
        stepper: Any,
        make: Callable[[Arrival], Any],
        waiting: Callable[[], int],
        each_step: Callable[[], None] = lambda: None,
        vocabulary: int = 1000,
    ) -> None:
        self.log = Log(requests)
        self.traffic = Traffic(vocabulary=vocabulary)
        self.stepper = stepper
        self.ended = 0
        self._make, self._waiting, self._each_step = make, waiting, each_step
        self._rnd = random.Random(7)
        self._live: dict[str, Arrival] = {}

    def run(self) -> None:
        stepper, rnd = self.stepper, self._rnd
        while self.traffic.made < self.log.requests or not stepper.idle:
            for _ in range(rnd.choice([0, 1, 2, 4])):
                if self.traffic.made < self.log.requests and self._waiting() < 200:
                    new = self.traffic.arrival()
                    self._live[new.name] = new
                    stepper.add(self._make(new))
            if self._live and rnd.random() < 0.05:
                stepper.abort(rnd.choice(list(self._live)))
            self._each_step()
            stepper.step()
            self._settle()
            self.log.made(self.traffic.made)

    def _settle(self) -> None:
        """Look at whoever has ended, and forget it."""
        records, counts = self.stepper.records, self.log.counts
        for name in [name for name in self._live if records[name].finished or records[name].aborted]:
            record, asked = records.pop(name), self._live.pop(name)
            wanted = expected_tokens(name, len(asked.tokens), asked.max_tokens)
            counts["wrong answers"] += record.tokens != (
                wanted if record.finished else wanted[: len(record.tokens)]
            )
            counts["finished" if record.finished else "aborted"] += 1
            counts["preemptions"] += record.preemptions
            self.ended += 1
        self.stepper.admissions.clear()

    def compare(self, expected: int, truth: int) -> None:
        """What is cached of a request that waits, as planned and as the engine says."""
        self.log.counts["matches compared"] += 1
        self.log.counts["of these cached"] += truth > 0
        self.log.counts["wrong matches"] += expected != truth

    def verdict(self, title: str, beside: Any, must_be_none: dict[str, int]) -> int:
        """See `Log.verdict`; the last step has told the adapter who has left."""
        counts, adapter = self.log.counts, beside.adapter
        counts["cycles that changed the order"] = adapter.reordered
        known = len(self.stepper.records) + len(adapter.planner)
        none = {"fallbacks": beside.shield.fallbacks, "in quarantine": adapter.quarantine.total}
        none |= {name: counts.pop(name) for name in ("wrong matches", "wrong answers")}
        none |= {"still known": known, **must_be_none}
        return self.log.verdict(title, none, lambda: self.ended)
