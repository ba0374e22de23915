"""The traffic for real routers and, in `bench.fleet`, for simulated ones: talks of one or several turns."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

ANSWER: Final = 8
"""Tokens of each answer."""

OWN: Final = 64
"""Tokens that are a request's own, behind what it shares."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of traffic.

    Attributes:
        kind: "templates", "agents" or "one", a function's name below.
        load: the rate as a share of what the default serves of a burst; 0: closed loops.
        named: requests name their session in a header.
        prefixes, seconds: number of templates, and how long requests for them come.
    """

    name: str
    kind: str
    load: float = 0.0
    named: bool = False
    prefixes: int = 20
    seconds: float = 15.0


CELLS: Final = (
    Cell("templates, below", "templates", load=0.7),
    Cell("templates, above", "templates", load=1.4),
    Cell("agents, named", "agents", named=True),
    Cell("agents, unnamed", "agents"),
    Cell("one prompt", "one"),
)

LONG: Final = (
    Cell("sixty templates, below", "templates", load=0.7, prefixes=60, seconds=200.0),
    Cell("sixty templates, above", "templates", load=1.4, prefixes=60, seconds=200.0),
)
"""For simulated servers only: four full caches, which hold each template once but not twice."""

BURST: Final = Cell("burst", "templates")
"""All at once: warms up, and what the default serves of it gives the rates."""


class Talk(NamedTuple):
    """A client that sends one request after another.

    Attributes:
        name: of its session.
        at_s: when it begins.
        shared: the beginning of all of its prompts.
        turns: what each turn adds.
        grows: a turn's prompt has all before it, answers too; else only what is shared.
        pause_s: between an answer and the next turn.
    """

    name: str
    at_s: float
    shared: str
    turns: list[str]
    grows: bool = False
    pause_s: float = 0.0


def words(drawn: Random, count: int) -> str:
    """So many tokens of the model's tokenizer."""
    return " ".join(f"w{drawn.randrange(4_000)}" for _ in range(count))


def templates(drawn: Random, cell: Cell, rate: float) -> list[Talk]:
    """Prefixes of 1,024 tokens, popular as 1 / place; requests for some seconds, or 120 at once."""
    prefixes = [words(drawn, 1_024) for _ in range(cell.prefixes)]
    count = round(cell.seconds * rate) if rate else 120
    chosen = drawn.choices(prefixes, [1.0 / place for place in range(1, cell.prefixes + 1)], k=count)
    times, at_s = list[float](), 0.0
    for _ in range(count):
        at_s += drawn.expovariate(rate) if rate else 0.0
        times.append(at_s)
    return [
        Talk(f"t{number}", at, prefix, [words(drawn, OWN)])
        for number, (at, prefix) in enumerate(zip(times, chosen, strict=True))
    ]


def agents(drawn: Random, _: Cell, __: float) -> list[Talk]:
    """Twenty-four sessions of four kinds, 512 tokens of tools each; six turns add 256 tokens each."""
    tools = [words(drawn, 512) for _ in range(4)]
    return [
        Talk(
            f"a{drawn.getrandbits(48):x}",
            drawn.uniform(0.0, 2.0),
            tools[number % 4],
            [words(drawn, 256) for _ in range(6)],
            grows=True,
            pause_s=drawn.uniform(0.1, 0.5),
        )
        for number in range(24)
    ]


def one(drawn: Random, _: Cell, __: float) -> list[Talk]:
    """Forty-eight users of one prompt of 4,096 tokens, six questions each, all from the beginning on."""
    prompt = words(drawn, 4_096)
    return [
        Talk(f"u{drawn.getrandbits(48):x}", 0.0, prompt, [words(drawn, OWN // 2) for _ in range(6)])
        for _ in range(48)
    ]


KINDS: Final = {"templates": templates, "agents": agents, "one": one}


def talks(cell: Cell, seed: int, rate: float) -> list[Talk]:
    """The traffic of a cell; every seed has prompts of its own."""
    return KINDS[cell.kind](Random(f"{cell.name} {seed}"), cell, rate)
