"""What is sent: talks of one turn or of several, the same for every router, and one client for all."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

import aiohttp
import numpy as np

from bench.servers.engines import MODEL

ANSWER: Final = 8
"""Tokens of each answer."""

OWN: Final = 64
"""Tokens that are a request's own, behind what it shares."""

LIMIT_S: Final = 120.0
"""Of one request."""

SESSION_HEADERS: Final = ("x-session-id", "x-smg-routing-key")
"""Where a session is named: for vllm-router and peek-epp, and for sglang-router."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of traffic.

    Attributes:
        kind: "templates", "agents" or "one", a function's name below.
        load: the rate as a share of what the default serves of a burst; 0: closed loops.
        named: requests name their session in a header.
    """

    name: str
    kind: str
    load: float = 0.0
    named: bool = False


CELLS: Final = (
    Cell("templates, below", "templates", load=0.7),
    Cell("templates, above", "templates", load=1.4),
    Cell("agents, named", "agents", named=True),
    Cell("agents, unnamed", "agents"),
    Cell("one prompt", "one"),
)

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


class Answer(NamedTuple):
    """What came of a request: seconds to its first token and to its end; not `ok` without an answer."""

    ok: bool
    ttft_s: float
    e2e_s: float
    text: str = ""


def words(drawn: Random, count: int) -> str:
    """So many tokens of the model's tokenizer."""
    return " ".join(f"w{drawn.randrange(4_000)}" for _ in range(count))


def templates(drawn: Random, rate: float) -> list[Talk]:
    """Twenty prefixes of 1,024 tokens, popular as 1 / place; fifteen seconds of requests, or 120 at once."""
    prefixes = [words(drawn, 1_024) for _ in range(20)]
    count = round(15.0 * rate) if rate else 120
    chosen = drawn.choices(prefixes, [1.0 / place for place in range(1, 21)], k=count)
    times, at_s = list[float](), 0.0
    for _ in range(count):
        at_s += drawn.expovariate(rate) if rate else 0.0
        times.append(at_s)
    return [
        Talk(f"t{number}", at, prefix, [words(drawn, OWN)])
        for number, (at, prefix) in enumerate(zip(times, chosen, strict=True))
    ]


def agents(drawn: Random, _: float) -> list[Talk]:
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


def one(drawn: Random, _: float) -> list[Talk]:
    """Forty-eight users of one prompt of 4,096 tokens, six questions each, all from the beginning on."""
    prompt = words(drawn, 4_096)
    return [
        Talk(f"u{drawn.getrandbits(48):x}", 0.0, prompt, [words(drawn, OWN // 2) for _ in range(6)])
        for _ in range(48)
    ]


KINDS: Final = {"templates": templates, "agents": agents, "one": one}


def talks(cell: Cell, seed: int, rate: float) -> list[Talk]:
    """The traffic of a cell; every seed has prompts of its own."""
    return KINDS[cell.kind](Random(f"{cell.name} {seed}"), rate)


async def ask(client: aiohttp.ClientSession, url: str, prompt: str, session: str) -> Answer:
    """Send one request and read its answer as it comes."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": ANSWER, "temperature": 0.0}
    body |= {"ignore_eos": True, "stream": True}
    headers = dict.fromkeys(SESSION_HEADERS, session) if session else {}
    begin, first, text = time.monotonic(), 0.0, []
    try:
        async with client.post(f"{url}/v1/completions", json=body, headers=headers) as response:
            if response.status != 200:
                return Answer(False, 0.0, 0.0, (await response.text())[:500])
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                choices = json.loads(line[6:]).get("choices")
                if choices:
                    first = first or time.monotonic()
                    text.append(choices[0].get("text") or "")
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return Answer(False, 0.0, 0.0, f"{type(error).__name__}: {error}")
    end = time.monotonic()
    return Answer(bool(first), (first or end) - begin, end - begin, "".join(text))


async def have(client: aiohttp.ClientSession, url: str, talk: Talk, named: bool) -> list[Answer]:
    """Have a talk; it goes on after a failure."""
    await asyncio.sleep(talk.at_s)
    answers, prompt = list[Answer](), talk.shared
    for number, turn in enumerate(talk.turns):
        if number and talk.pause_s:
            await asyncio.sleep(talk.pause_s)
        asked = f"{prompt} {turn}"
        answers.append(await ask(client, url, asked, talk.name if named else ""))
        if talk.grows:
            prompt = f"{asked} {answers[-1].text.strip()}" if answers[-1].ok else asked
    return answers


async def play(url: str, cell: Cell, sent: Sequence[Talk]) -> dict[str, Any]:
    """Send the traffic to a router; the figures of the run, times in seconds."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    begin = time.monotonic()
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
        found = await asyncio.gather(*(have(client, url, talk, cell.named) for talk in sent))
    wall_s = time.monotonic() - begin
    answers = [answer for each in found for answer in each]
    good = [answer for answer in answers if answer.ok]
    failures = dict.fromkeys(answer.text for answer in answers if not answer.ok)
    ttft = np.array([answer.ttft_s for answer in good] or [0.0])
    return {
        "requests": len(answers),
        "failed": len(answers) - len(good),
        "ttft": float(ttft.mean()),
        "ttft_p50": float(np.percentile(ttft, 50)),
        "ttft_p99": float(np.percentile(ttft, 99)),
        "e2e": sum(answer.e2e_s for answer in good) / max(1, len(good)),
        "wall_s": wall_s,
        "rps": len(good) / wall_s,
        "why": list(failures)[:3],
    }
