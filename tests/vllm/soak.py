"""A long run of vLLM's real scheduler with `peek` on it, two steps deep: is anything lost or kept?

    make soak-vllm                                        (100,000 requests)
    PYTHONPATH=tests OMP_NUM_THREADS=1 python tests/vllm/soak.py [--requests 5000] [--sync]

A cache of 400 blocks for 16 seats and about 200 waiting, so blocks are evicted and requests preempted all
the time; one arrival in thirty is aborted.  Every twentieth step vLLM is asked what it would find in its
cache for everybody that waits, which must be what the plan counts on.  Every answer is foretold.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections import deque
from typing import Any

from support.traffic import Log, Traffic
from vllm_lab import (
    RequestStatus,
    expected_tokens,
    fake_output,
    free_blocks,
    hash_lookahead,
    make_request,
    make_scheduler,
    vllm,
)
from vllm_small import compared

BLOCKS = 400
WAITING = 200
CHECK_EVERY = 20
STEP_S = 0.05


class Soak:
    """One engine, its traffic, and what has become of it."""

    def __init__(self, requests: int, asynchronous: bool, policy: str) -> None:
        from peek.adapters.vllm import PeekAsyncScheduler, PeekScheduler

        self.engine = make_scheduler(
            PeekAsyncScheduler if asynchronous else PeekScheduler,
            BLOCKS,
            max_num_seqs=16,
            max_num_batched_tokens=512,
            asynchronous=asynchronous,
            options={"policy": policy},
        )
        self.depth = 2 if asynchronous else 1
        self.log = Log(requests)
        self.traffic = Traffic()
        self.rnd = random.Random(7)
        self.at = 0
        self.ended = 0
        self._in_flight: deque[tuple[Any, Any]] = deque()
        self._answers: dict[str, list[int]] = {}
        """What each request that has not ended has received."""
        self._prompts: dict[str, tuple[int, int]] = {}
        self._adapter = self.engine.peek.adapter
        self._adapter.clock = lambda: self.at * STEP_S

    def run(self) -> None:
        while self.traffic.made < self.log.requests or self.engine.has_unfinished_requests():
            self._arrive()
            if self._answers and self.rnd.random() < 0.05:
                self._abort(self.rnd.choice(list(self._answers)))
            if self.at % CHECK_EVERY == 0:
                self._compare()
            self._step()
            self.at += 1
            self.log.made(self.traffic.made)
        while self._in_flight:
            self._deliver()

    def _arrive(self) -> None:
        for _ in range(self.rnd.choice([0, 1, 2, 4])):
            if self.traffic.made == self.log.requests or len(self.engine.waiting) >= WAITING:
                return
            new = self.traffic.arrival()
            request = make_request(
                new.name,
                new.tokens,
                new.max_tokens,
                lora=new.lora,
                cache_salt=new.salt,
                arrival_time=self.at * STEP_S,
                ahead=hash_lookahead(self.engine),
            )
            self.engine.add_request(request)
            self._answers[new.name] = []
            self._prompts[new.name] = len(new.tokens), new.max_tokens

    def _abort(self, name: str) -> None:
        self.engine.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self._end(name, "aborted")

    def _end(self, name: str, how: str) -> None:
        received = self._answers.pop(name)
        prompt, most = self._prompts.pop(name)
        wanted = expected_tokens(name, prompt, most if how == "finished" else len(received))
        self.log.counts["wrong answers"] += received != wanted
        self.log.counts[how] += 1
        self.ended += 1

    def _step(self) -> None:
        scheduled = self.engine.schedule()
        self.log.counts["preemptions"] += len(scheduled.preempted_req_ids or ())
        self._in_flight.append((scheduled, fake_output(self.engine, scheduled)))
        if len(self._in_flight) >= self.depth:
            self._deliver()

    def _deliver(self) -> None:
        for batch in self.engine.update_from_output(*self._in_flight.popleft()).values():
            for output in batch.outputs:
                if output.request_id in self._answers:  # else aborted meanwhile
                    self._answers[output.request_id].extend(output.new_token_ids)
                    if output.finish_reason is not None:
                        self._end(output.request_id, "finished")

    def _compare(self) -> None:
        for anew, mine, truth in (compared(self.engine) or {}).values():
            self.log.counts["matches compared"] += 1
            self.log.counts["of these cached"] += truth > 0
            self.log.counts["wrong matches"] += not anew == mine == truth

    def left_over(self) -> dict[str, int]:
        """All that must be 0 at the end."""
        adapter, counts = self._adapter, self.log.counts
        return {
            "fallbacks": self.engine.peek.shield.fallbacks,
            "in quarantine": adapter.quarantine.total,
            "wrong matches": counts.pop("wrong matches"),
            "wrong answers": counts.pop("wrong answers"),
            "blocks leaked": BLOCKS - 1 - free_blocks(self.engine),
            "still known": len(self.engine.requests) + len(adapter.planner) + len(adapter._keys),
            "symbols kept": len(adapter.mirror),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--sync", action="store_true", help="the synchronous scheduler, one step deep")
    parser.add_argument("--policy", default="peek")
    asked = parser.parse_args()
    logging.disable(logging.INFO)
    soak = Soak(asked.requests, not asked.sync, asked.policy)
    soak.run()
    soak.engine.schedule()  # the adapter learns that the last one has left
    soak.log.counts["steps that changed the order"] = soak._adapter.reordered
    title = f"vLLM {vllm.__version__}, {'sync' if asked.sync else 'async'}, {asked.policy}"
    sys.exit(soak.log.verdict(title, soak.left_over(), lambda: soak.ended))


if __name__ == "__main__":
    main()
