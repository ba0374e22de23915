"""Simulates the measured servers: their sizes and step times, and the same talks for `bench.fleet`."""

from __future__ import annotations

from typing import Final

from bench.routers.traffic import ANSWER, CELLS, LONG, talks
from bench.servers.shapes import Shape
from peek.simulation.workload import SimRequest, Workload, pack_tokens, unique_tokens, with_answers

SERVERS: Final = 4
STEP_S: Final = 0.040
TOKENS_PER_S: Final = 2_000.0
"""A step lasts `STEP_S`, and a second more for so many tokens that it computes."""

SHAPE: Final = Shape(128, 2, 2, 2, 256, 4_096, "cpu", 16_384, 16, 1_024, 8_192, 1_024)
"""A model that costs next to nothing; a server's cache holds three quarters of the twenty templates."""

SERVED_PER_S: Final = 9.34
"""Requests a second of a burst through Envoy's least request when this was set; 11.0 in the stored runs."""


class Paced:
    """Step times of the measured servers, as `peek.simulation.cost.StepTimes`."""

    def step_s(self, computed_tokens: int, attention_pairs: float, kv_tokens: int) -> float:
        return STEP_S + computed_tokens / TOKENS_PER_S


def workload(name: str, seed: int) -> Workload:
    """Return the talks of a cell of `bench.routers.traffic` as requests; `w7` is the token 7."""
    cell = next(each for each in (*CELLS, *LONG) if each.name == name)
    requests: list[SimRequest] = []
    for talk in talks(cell, seed, cell.load * SERVED_PER_S):
        prompt, before = tokens(talk.shared), None
        for number, turn in enumerate(talk.turns):
            key = prompt + tokens(turn)
            request = SimRequest(
                f"{talk.name}-{number}", talk.at_s, key, len(key) // 4, ANSWER, after=before,
                think_s=talk.pause_s if number else 0.0, session=talk.name if cell.named else "",
            )  # fmt: skip
            requests.append(request)
            before = request.request_id
            if talk.grows:
                prompt = key + unique_tokens(before, len(requests), ANSWER)
    requests.sort(key=lambda request: request.arrival_s)
    return Workload(
        name=name, load="routers", seed=seed, requests=with_answers(requests, 1), warmup=0,
        max_running=SHAPE.seats, arena_tokens=SHAPE.pool,
    )  # fmt: skip


def tokens(text: str) -> bytes:
    """Return the tokens of a text of `bench.routers.traffic.words`, packed."""
    return pack_tokens([int(word[1:]) for word in text.split()])
