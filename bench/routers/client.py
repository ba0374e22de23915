"""One client for all routers: it sends talks to a router and times the answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import aiohttp
import numpy as np

from bench.routers.traffic import ANSWER, Cell, Talk
from bench.servers.engines import MODEL

LIMIT_S: Final = 120.0
"""Of one request."""

SESSION_HEADERS: Final = ("x-session-id", "x-smg-routing-key")
"""Where a session is named: for vllm-router and peek-epp, and for sglang-router."""


class Answer(NamedTuple):
    """What came of a request: seconds to its first token and to its end; not `ok` without an answer."""

    ok: bool
    ttft_s: float
    e2e_s: float
    text: str = ""


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
