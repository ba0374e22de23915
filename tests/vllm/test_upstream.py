# ruff: noqa: T201
"""The patch for vLLM in docs/upstream, on vLLM's real scheduler: nothing changes until a queue is named, and
with `peek` as that queue all is found that it foretells.

A patched copy of the installed vLLM lies in a folder, and this file, run as a program by a Python that finds
the copy first, plays random requests and prints what came of it.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from support.whole import lay_over, run_with

from peek.trie.keys import SYMBOL_BYTES

ROOT = Path(__file__).parents[2]
UPSTREAM = ROOT / "docs" / "upstream"
PATCH = UPSTREAM / "vllm-0.33.0-request-queue.patch"
QUEUE = "vllm_queue.PeekRequestQueue"
SEEDS = range(40)
KINDS = ("sync", "async", "priority")


# -- in a process of its own ---------------------------------------------------------------------------


def play_of(seed: int) -> Any:
    """The same requests for the same seed, everywhere."""
    from support.plays import Job, Play

    rnd = random.Random(seed)

    def pick(*choices: Any) -> Any:
        return rnd.choice(choices)

    jobs = [
        Job(
            arrival=rnd.randint(0, 25),
            prefix=rnd.randint(0, 3),
            prefix_tokens=pick(0, 16, 48, 64, 96, 128),
            tail=rnd.randint(1, 40),
            max_tokens=rnd.randint(1, 30),
            salt=pick(None, None, "s"),
            space=pick(None, None, "en", "de"),
            skip=pick(False, False, True),
            abort=pick(None, None, rnd.randint(0, 20)),
        )
        for _ in range(rnd.randint(2, 24))
    ]
    seats, budget, slack = pick(1, 2, 4, 8), pick(24, 64, 256), pick(0, 1, 8, 20)
    resets = [rnd.randint(0, 40) for _ in range(rnd.randint(0, 2))]
    return Play(jobs, slack, seats, budget, 16, max_loras=pick(None, 1), resets=resets)


def played(play: Any, kind: str, queue: str | None = None, watch: Any = None) -> Any:
    """What a play leads to on the vLLM that is found."""
    from vllm_lab import make_vllm_config
    from vllm_plays import perform

    config = make_vllm_config(
        max_num_seqs=play.seats,
        max_num_batched_tokens=play.budget,
        asynchronous=kind == "async",
        priority=kind == "priority",
        options={"policy": "peek", "strict": True} if queue else None,
    )
    if queue is not None:
        config.scheduler_config.request_queue_cls = queue
    return perform(play, None, stock=True, overlap=kind == "async", config=config, each_step=watch)


def trace() -> dict[str, Any]:
    """All that workers are told in all plays, and who was passed over."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        for seed in SEEDS:
            deferred: list[list[str]] = []

            def watch(stepper: Any, scheduled: Any, deferred: list[list[str]] = deferred) -> None:
                if scheduled is not None:
                    deferred.append(sorted(each.request_id for each in stepper.engine.deferred_waiting))

            outcome = played(play_of(seed), kind, watch=watch)
            found[f"{kind} {seed}"] = {"outputs": outcome.decisions, "deferred": deferred}
    return found


def queue() -> dict[str, int]:
    """`peek` as the queue: sums over all plays of what it did; asserts what must hold in each."""
    sums = dict.fromkeys(("admitted", "cached", "wrong", "deferred", "overtaken", "preempted"), 0)
    for kind in ("sync", "async"):
        for seed in SEEDS:
            play = play_of(seed)
            outcome = played(play, kind, QUEUE, Watch(sums))
            own = outcome.engine.waiting
            assert type(own).__name__ == "PeekRequestQueue"
            assert (own.shield.fallbacks, own.quarantine.total) == (0, 0)
            own.end_scan()
            own._begin_scan()
            assert (len(own._keys), len(own.mirror), len(own.planner)) == (0, 0, 0), (
                "what is gone is remembered"
            )
            sums["overtaken"] += sum(not admission.oldest for admission in outcome.admissions)
            sums["preempted"] += outcome.preemptions
    return sums


class Watch:
    """Compares what the mirror says of a request, when vLLM is shown it, with what vLLM then finds."""

    def __init__(self, sums: dict[str, int]) -> None:
        self.sums, self.step = sums, 0
        self.foretold: dict[str, int] = {}
        self.waiting: Any = None

    def __call__(self, stepper: Any, scheduled: Any) -> None:
        scheduler = stepper.engine
        if self.waiting is None:
            self.waiting = waiting = scheduler.waiting
            waiting.clock = lambda: self.step * 0.05
            self.peek, self.on_admit = waiting.peek_request, waiting.on_admit
            waiting.peek_request, waiting.on_admit = self.shown, self.admitted
        if scheduled is not None:
            self.step += 1
            self.sums["deferred"] += len(scheduler.deferred_waiting)

    def shown(self) -> Any:
        again = self.waiting._next is not None  # as it is taken out, its blocks allocated
        request = self.peek()
        key = self.waiting._keys.get(request.request_id)
        if key is not None and not again:
            mirror = self.waiting.mirror
            matched, _ = mirror.advance(mirror.root(""), memoryview(key), 0)
            # A request that shares nothing is known by its first block, until the next scan sees it cached.
            self.foretold.pop(request.request_id, None)
            if matched * SYMBOL_BYTES < len(key) or not self.waiting.planner.request(request.request_id).tail:
                self.foretold[request.request_id] = matched * mirror.unit_tokens
        return request

    def admitted(self, request: Any, cached: int) -> None:
        foretold = self.foretold.pop(request.request_id, None)
        if foretold is not None:
            self.sums["admitted"] += 1
            self.sums["cached"] += cached
            self.sums["wrong"] += foretold != cached
        self.on_admit(request, cached)


def hits() -> dict[str, int]:
    """Two prompts that take turns, one seat: tokens found in the cache, by order."""
    from vllm_plays import INTERLEAVED, perform

    def found(outcome: Any) -> int:
        return sum(admission.cached for admission in outcome.admissions)

    return {
        "stock": found(played(INTERLEAVED, "sync")),
        "queue": found(played(INTERLEAVED, "sync", QUEUE)),
        "adapter": found(perform(INTERLEAVED, {"policy": "peek", "strict": True})),
    }


# -- the tests -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed vLLM, patched."""
    folder: Path = tmp_path_factory.mktemp("patched")
    if lay_over("vllm", [PATCH], folder):
        import vllm

        pytest.skip(f"{PATCH.name} is for vLLM 0.33.0 and fits 0.32.0, this is {vllm.__version__}")
    return folder


def run(what: str, *first: Path) -> Any:
    """What this file prints when a Python that looks into `first` before all else runs it."""
    path = [*first, ROOT, UPSTREAM, Path(__file__).parent, ROOT / "tests"]
    return run_with(path, Path.cwd(), __file__, what)


def test_without_a_queue_class_nothing_changes(patched: Path) -> None:
    before, after = run("trace"), run("trace", patched)
    assert before == after
    rows = after.values()
    assert len(rows) == len(KINDS) * len(SEEDS)
    for name in ("new", "preempted"):
        assert any(output[name] for row in rows for output in row["outputs"]), name
    assert any(names for row in rows for names in row["deferred"]), "nobody was ever passed over"


def test_as_a_queue_everybody_is_served_and_finds_what_was_foretold(patched: Path) -> None:
    sums = run("queue", patched)
    assert sums.pop("wrong") == 0
    for name, count in sums.items():
        assert count > 0, name


def test_the_queue_finds_what_the_adapter_finds(patched: Path) -> None:
    found = run("hits", patched)
    assert found["stock"] < found["queue"]
    assert found["queue"] == found["adapter"] == 6 * 96


def test_the_queue_refuses_what_it_does_not_do(patched: Path) -> None:
    assert run("refuses", patched) == ("PeekRequestQueue is for --scheduling-policy fcfs: leave out priority")


def refuses() -> str:
    """What it says of priorities."""
    from peek.errors import InvalidConfig

    try:
        played(play_of(0), "priority", QUEUE)
    except InvalidConfig as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    print(json.dumps({"trace": trace, "queue": queue, "hits": hits, "refuses": refuses}[sys.argv[1]]()))
