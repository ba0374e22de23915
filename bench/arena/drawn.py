"""Compares policies on mixes of traffic whose numbers are all drawn at random, not chosen by anybody.

    python -m bench.arena.drawn [--mixes 120] [--csv FILE]
    python -m bench.arena.drawn --store         the table and the leaderboard of the pages (10 minutes)

A mix has 1 to 120 prefixes of some popularity, prompts and answers of some lengths, arrivals that are even,
in bursts or in waves, perhaps sessions, and an engine with 8 to 128 seats and a cache of 15,000 to 300,000
tokens.  All are drawn independently, so some mixes are odd.  The load is relative to the capacity of the
vLLM-like engine; both simulated engines run each mix.  Columns are those of `bench.arena`.
"""

from __future__ import annotations

import argparse
from math import exp, log
from multiprocessing import Pool
from pathlib import Path
from typing import Final

from bench.arena.__main__ import PAGE, between, leaderboard
from bench.arena.cells import STOCK, Figures, figures_of, show, table
from bench.arena.kinds import Draw, at_load
from bench.builds import ROOT, require_compiled
from peek.simulation.cost import cost_model_for
from peek.simulation.simulate import CACHES, simulate
from peek.simulation.workload import Workload, with_answers
from peek.trie.keys import SYMBOL_BYTES

TABLE: Final = ROOT / "docs/data/policies_drawn.csv"
MARK: Final = "<!-- drawn mixes -->"

FIRST: Final = 1000
"""Number of the first mix; those below it were looked at."""
MIXES: Final = 120
REQUESTS: Final = 400
LONGEST: Final = 20_000
"""Tokens of a prompt; a session ends before it exceeds them."""
OURS: Final = ("peek:objective=tail", "peek", "peek:objective=mean", "peek:objective=target")
QUEUE_S: Final = 0.3
"""Mean TTFT of arrival order from which there is a queue to order."""
LITTLE: Final = 0.95
"""The best stock policy's mean TTFT over that of arrival order, from which there is little to gain."""


class Mix:
    """The numbers of one mix; lengths are in tokens, each with the sigma of a log-normal draw."""

    def __init__(self, number: int, requests: int = REQUESTS) -> None:
        self.draw = Draw("mix", number, requests)
        self.rng = self.draw.rng
        pick = self.rng.choice
        self.popularity = pick((0.0, 0.7, 1.0, 1.4))
        self.prefix, self.prefix_sigma = self._between(64, 8000), pick((0.0, 0.6, 1.2))
        self.own, self.own_sigma = self._between(16, 3000), pick((0.0, 0.5, 1.2))
        self.answer, self.answer_sigma = self._between(8, 700), pick((0.0, 0.5, 1.0))
        self.shared = pick((1.0, 1.0, 0.8, 0.5))  # part of the requests that have a prefix
        self.branch = pick((0, 0, 256, 1024))  # tokens of a second level, four branches below each prefix
        self.turns = pick((1, 1, 1, 3, 6))
        self.think_s = self._between(0.2, 20)
        self.arrivals = pick(("even", "even", "bursts", "waves"))
        self.seats = pick((8, 16, 32, 64, 128))
        self.arena = round(self._between(15_000, 300_000))
        self.load = pick((0.8, 1.0, 1.2, 1.6))
        self.prefixes = [
            self.draw.text(self._length(self.prefix, self.prefix_sigma, 12_000))
            for _ in range(round(self._between(1, 120)))
        ]
        self.branches: dict[tuple[int, int], bytes] = {}
        self._chosen = self.draw.zipf(len(self.prefixes), self.popularity)

    def _between(self, least: float, most: float) -> float:
        return exp(self.rng.uniform(log(least), log(most)))

    def _length(self, median: float, sigma: float, most: int) -> int:
        return min(max(round(median * exp(self.rng.gauss(0.0, sigma))), 1), most)

    def _gap(self, place: int) -> float:
        """Time to the next arrival; its unit is the mean of even ones."""
        if self.arrivals == "bursts":
            return self.rng.expovariate(1.0) * (0.05 if self.rng.random() < 0.85 else 6.4)
        if self.arrivals == "waves":
            return 40.0 if place % 50 == 0 else 0.2 * self.rng.expovariate(1.0)
        return self.rng.expovariate(1.0)

    def _beginning(self) -> bytes:
        if self.rng.random() >= self.shared:
            return b""
        chosen = self._chosen()
        if not self.branch:
            return self.prefixes[chosen]
        name = chosen, self.rng.randrange(4)
        if name not in self.branches:
            self.branches[name] = self.draw.text(self.branch)
        return self.prefixes[chosen] + self.branches[name]

    def _session(self, begins_s: float) -> None:
        """Draw the turns of a session, or the only request of a client."""
        draw = self.draw
        turns = 1 if self.turns == 1 else self.rng.randint(1, 2 * self.turns - 1)
        session = f"session {len(draw.requests)}" if turns > 1 else ""
        prompt, before = self._beginning(), None
        for turn in range(turns):
            prompt += draw.text(self._length(self.own, self.own_sigma, 6000))
            answer = self._length(self.answer, self.answer_sigma, 2000)
            if len(prompt) // SYMBOL_BYTES > LONGEST:
                return
            think_s = self.rng.expovariate(1.0 / self.think_s) if turn else 0.0
            before = draw.ask(prompt, answer, begins_s, session=session, after=before, think_s=think_s)
            prompt += draw.text(answer)

    def workload(self) -> Workload:
        """Return the mix at its load."""
        found = self.draw.requests
        clock = 0.0
        while len(found) < self.draw.wanted:
            clock += self._gap(len(found))
            self._session(clock)
        largest = max(each.num_tokens + each.output_tokens for each in found)
        workload = Workload(
            name="mix", load="1", seed=self.draw.seed, requests=with_answers(found, 1), warmup=0,
            max_running=self.seats, arena_tokens=max(self.arena, 2 * largest),
        )  # fmt: skip
        return at_load(workload, self.load, "blocks")


def run_mix(number: int) -> list[dict[str, Figures]]:
    """Return the figures of each policy on each engine where there is a queue."""
    workload, cost = Mix(number).workload(), cost_model_for("w1c")
    cells = [
        {policy: figures_of(simulate(workload, policy, cache, cost=cost)) for policy in (*STOCK, *OURS)}
        for cache in CACHES
    ]
    return [each for each in cells if each["fcfs+lru"]["ttft"] >= QUEUE_S]


def gains(found: dict[str, Figures]) -> bool:
    """Whether a stock policy's mean is much shorter than that of arrival order."""
    return min(found[stock]["ttft"] for stock in STOCK) < LITTLE * found["fcfs+lru"]["ttft"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mixes", type=int, default=MIXES)
    parser.add_argument("--csv", type=Path, help="write the table")
    parser.add_argument("--store", action="store_true", help=f"write {TABLE.name} and {PAGE.name}")
    options = parser.parse_args()
    if options.store and options.mixes != MIXES:
        parser.error("--store takes no other number of mixes")
    require_compiled()
    with Pool() as pool:
        runs = pool.map(run_mix, range(FIRST, FIRST + options.mixes), chunksize=1)
    cells = [found for run in runs for found in run]
    groups = [
        ("all", cells),
        ("sessions", [each for each in cells if "jct" in each["peek"]]),
        ("single requests", [each for each in cells if "jct" not in each["peek"]]),
        ("little to gain", [each for each in cells if not gains(each)]),
    ]
    lines = table([group for group in groups if group[1]], (*STOCK, *OURS))
    show(lines, TABLE if options.store else options.csv)
    if options.store:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(between(page, leaderboard(lines), MARK), encoding="utf-8")


if __name__ == "__main__":
    main()
