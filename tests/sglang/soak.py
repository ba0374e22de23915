"""A long run of SGLang's real cache, policy and `PrefillAdder` with `peek` on them: is anything lost or kept?

    make soak-sglang                                      (100,000 requests)
    PYTHONPATH=tests OMP_NUM_THREADS=1 python tests/sglang/soak.py [--requests 5000] [--core rust]

A pool of 6,400 tokens for 40 seats and about 200 waiting, chunked prefill, results one batch late, so that
requests are evicted and retracted all the time; one arrival in thirty is aborted.  At every twentieth plan
SGLang's `match_prefix` is asked about everybody that waits, which must be what the plan counted on.  Every
answer is foretold.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from typing import Any

from sglang_lab import CORES, VERSION, expected_tokens, leaked, make_request, make_world, stock_match
from sglang_small import attach
from sglang_stepper import Stepper
from sglang_tree import locked
from support.traffic import Arrival, Log, Traffic

SLOTS = 6400
SEATS = 40
WAITING = 200
RESERVED = 0.05
"""The share of the tokens still to be generated that an admission reserves, at the least."""
CHECK_EVERY = 20


class Soak:
    """One world, its traffic, and what has become of it."""

    def __init__(self, requests: int, core: str | None, policy: str) -> None:
        self.world = make_world(SLOTS, core=core, max_running=SEATS)
        self.beside = attach(self.world, policy, strict=False)
        self.stepper = Stepper(
            self.world, overlap=True, chunk=256, max_running=SEATS, max_prefill_tokens=1024, ratio=RESERVED
        )
        self.log = Log(requests)
        self.traffic = Traffic(vocabulary=30000)
        self.rnd = random.Random(7)
        self.ended = 0
        self._live: dict[str, Arrival] = {}
        self._plans = 0
        self._planned = self.world.policy.calc_priority
        self.world.policy.calc_priority = self._calc_priority

    def run(self) -> None:
        stepper = self.stepper
        while self.traffic.made < self.log.requests or not stepper.idle:
            self._arrive()
            if self._live and self.rnd.random() < 0.05:
                stepper.abort(self.rnd.choice(list(self._live)))
            stepper.step()
            stepper.ratio = max(RESERVED, 0.99 * stepper.ratio)  # a retraction raises it, SGLang lets it fall
            self._settle()
            self.log.made(self.traffic.made)
        self.beside.adapter.order([])

    def _arrive(self) -> None:
        stepper = self.stepper
        for _ in range(self.rnd.choice([0, 1, 2, 4])):
            if self.traffic.made == self.log.requests or len(stepper.waiting_queue) >= WAITING:
                return
            new = self.traffic.arrival()
            request = make_request(
                new.name,
                new.tokens,
                new.max_tokens,
                extra_key=new.lora,
                cache_salt=new.salt,
                arrival=stepper.now + 1e-6 * self.traffic.made,
            )
            stepper.add(request)
            self._live[new.name] = new

    def _settle(self) -> None:
        """Look at whoever has ended, and forget it."""
        records, counts = self.stepper.records, self.log.counts
        for name in [name for name in self._live if records[name].finished or records[name].aborted]:
            record, asked = records.pop(name), self._live.pop(name)
            wanted = expected_tokens(name, len(asked.tokens), asked.max_tokens)
            whole = wanted if record.finished else wanted[: len(record.tokens)]
            counts["wrong answers"] += record.tokens != whole
            counts["finished" if record.finished else "aborted"] += 1
            counts["retractions"] += record.retractions
            self.ended += 1
        self.stepper.admissions.clear()

    def _calc_priority(self, queue: list[Any], *args: Any, **kwargs: Any) -> Any:
        answer = self._planned(queue, *args, **kwargs)
        self._plans += 1
        if self._plans % CHECK_EVERY == 0 and len(queue) >= 2:
            self._compare(queue)
        return answer

    def _compare(self, queue: list[Any]) -> None:
        # All answers first: asking SGLang splits nodes, and it is asked about the tree that was planned on.
        planner, counts = self.beside.adapter.planner, self.log.counts
        expected = {request.rid: int(planner.cached_len(request.rid)) for request in queue}
        for request in queue:
            most = len(request.origin_input_ids) + len(request.output_ids) - 1
            truth = min(stock_match(self.world, request), most)
            counts["matches compared"] += 1
            counts["of these cached"] += truth > 0
            counts["wrong matches"] += expected[request.rid] != truth

    def left_over(self) -> dict[str, int]:
        """All that must be 0 at the end."""
        adapter, counts = self.beside.adapter, self.log.counts
        return {
            "fallbacks": self.beside.shield.fallbacks,
            "in quarantine": adapter.quarantine.total,
            "wrong matches": counts.pop("wrong matches"),
            "wrong answers": counts.pop("wrong answers"),
            "slots leaked": leaked(self.world),
            "slots locked": locked(self.world),
            "still known": len(self.stepper.records)
            + len(adapter.planner)
            + len(adapter._waiting)
            + len(adapter._in_flight),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--core", choices=[core for core in CORES if core], default=None)
    parser.add_argument("--policy", default="peek")
    asked = parser.parse_args()
    logging.disable(logging.INFO)
    soak = Soak(asked.requests, asked.core, asked.policy)
    soak.run()
    soak.log.counts["plans that changed the order"] = soak.beside.adapter.reordered
    title = f"SGLang {VERSION}, {soak.world.core or 'radix cache'}, {asked.policy}"
    sys.exit(soak.log.verdict(title, soak.left_over(), lambda: soak.ended))


if __name__ == "__main__":
    main()
