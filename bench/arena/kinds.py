"""Kinds of traffic, as people serve it today, on which the default policy is tuned and judged.

Each kind has a generator of its own.  `build(kind, seed)` draws about 800 requests; on average one request a
second arrives or, in kinds with sessions, one session.  `at_load` then scales the arrivals to a load relative
to the engine's capacity, so that a load means the same on every engine:

    capacity    requests a second of a client that keeps 48 outstanding, in arrival order
    load 1.2    requests arrive 1.2 times as fast as that

Seeds of `TUNING` are for experiments.  Those of `JUDGING` are for tables, and nothing is chosen by them.  The
kinds of `LATER` were written after the policy was finished: nothing was tuned on them, with any seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from math import log
from random import Random
from typing import Final

from bench.tiered import Tier, TieredEngine
from peek.simulation.cost import cost_model_for
from peek.simulation.simulate import figures, simulate
from peek.simulation.workload import SimRequest, Workload, unique_tokens, with_answers
from peek.trie.keys import SYMBOL_BYTES

TUNING: Final = (11, 12, 13)
JUDGING: Final = (901, 902, 903)

REQUESTS: Final = 800
OUTSTANDING: Final = 48
"""Number of requests that the client that measures capacity keeps outstanding."""
SEATS: Final = 128
ARENAS: Final = (50_000, 160_000)
LOADS: Final = (0.8, 1.1, 1.5)
CLOSED_LOOP: Final = 2.0
"""Factor on loads of sessions, whose queues would stay short: a session that waits sends no request."""


_Length = tuple[float, float, int, int]
"""The arguments of `Draw.length`: median, sigma, least and most, in tokens."""


class Draw:
    """Draws texts, lengths and requests of one workload."""

    def __init__(self, kind: str, seed: int, wanted: int) -> None:
        self.kind = kind
        self.seed = seed
        self.wanted = wanted
        self.rng = Random(f"{kind}/{seed}")
        self.requests: list[SimRequest] = []
        self._texts = 0
        self._clock = 0.0

    def text(self, tokens: int) -> bytes:
        """Draw a text whose beginning no other text has."""
        self._texts += 1
        return unique_tokens(f"{self.kind}/{self.seed}/{self._texts}", self._texts, max(1, tokens))

    def length(self, median: float, sigma: float, least: int, most: int) -> int:
        """Draw a log-normal length in tokens, clipped to `least` and `most`."""
        return min(max(round(self.rng.lognormvariate(log(median), sigma)), least), most)

    def texts(self, count: int, median: float, sigma: float, least: int, most: int) -> list[bytes]:
        return [self.text(self.length(median, sigma, least, most)) for _ in range(count)]

    def zipf(self, count: int, exponent: float = 1.0) -> Callable[[], int]:
        """Return a function that draws places in a list of `count`, the first ones most often."""
        weights = list(accumulate((rank + 1.0) ** -exponent for rank in range(count)))
        return lambda: self.rng.choices(range(count), cum_weights=weights)[0]

    def start(self) -> float:
        """Draw the time at which the next request or session arrives, in seconds."""
        self._clock += self.rng.expovariate(1.0)
        return self._clock

    def ask(
        self,
        prompt: bytes,
        answer_tokens: int,
        at_s: float,
        *,
        namespace: str = "",
        tenant: str = "",
        session: str = "",
        after: str | None = None,
        think_s: float = 0.0,
    ) -> str:
        """Add a request; return its id."""
        name = f"{self.kind}-{len(self.requests)}"
        self.requests.append(
            SimRequest(
                name, at_s, prompt, len(prompt) // SYMBOL_BYTES, max(1, answer_tokens), namespace, after,
                think_s, tenant, session,
            )
        )  # fmt: skip
        return name


def _rag(draw: Draw) -> None:
    """Three of sixty documents in random order behind a system prompt, then a question."""
    system = draw.text(250)
    documents = draw.texts(60, 700, 0.4, 200, 2000)
    pick = draw.zipf(60, 0.9)
    for _ in range(draw.wanted):
        chosen: set[int] = set()
        while len(chosen) < 3:
            chosen.add(pick())
        order = list(chosen)
        draw.rng.shuffle(order)
        prompt = (
            system + b"".join(documents[each] for each in order) + draw.text(draw.length(40, 0.5, 8, 200))
        )
        draw.ask(prompt, draw.length(120, 0.6, 16, 500), draw.start())


def _chat(draw: Draw) -> None:
    """Conversations of people with a few apps; a turn arrives when the answer before it has been read."""
    systems = draw.texts(6, 400, 0.5, 100, 1200)
    while len(draw.requests) < draw.wanted:
        text = draw.rng.choice(systems)
        at_s, turns = draw.start(), 1 + min(9, int(draw.rng.expovariate(1 / 3.5)))
        _talk(draw, text, at_s, turns, (60, 1.0, 8, 1500), (180, 0.7, 10, 800), (6.0, 0.8))


def _talk(
    draw: Draw, text: bytes, at_s: float, turns: int, asks: _Length, answers: _Length,
    thinks: tuple[float, float],
) -> None:  # fmt: skip
    """Let questions and answers follow a text; `thinks`: median and sigma of the pauses, seconds."""
    session, after = f"{draw.kind}-{len(draw.requests)}", None
    for _ in range(turns):
        text += draw.text(draw.length(*asks))
        answer = draw.length(*answers)
        think_s = draw.rng.lognormvariate(log(thinks[0]), thinks[1]) if after else 0.0
        after = draw.ask(text, answer, at_s, session=session, after=after, think_s=think_s)
        text += draw.text(answer)


def _agents(draw: Draw) -> None:
    """Agents with tools; one step in four gives its context to several sub-agents and waits for the last."""
    tools = draw.texts(4, 2500, 0.4, 1000, 5000)
    while len(draw.requests) < draw.wanted:
        session = f"agents-{len(draw.requests)}"
        text = draw.rng.choice(tools) + draw.text(draw.length(150, 0.6, 20, 800))
        at_s = draw.start()
        after: str | None = None
        for _ in range(draw.rng.randint(2, 7)):
            after, text = _step(draw, text, at_s, session, after)
            if draw.rng.random() < 0.25:
                parent = after
                for _ in range(draw.rng.randint(3, 8)):
                    own, name = text + draw.text(draw.length(120, 0.5, 20, 500)), parent
                    for _ in range(draw.rng.randint(1, 3)):
                        name, own = _step(draw, own, at_s, session, name)
                    after = name


def _step(draw: Draw, text: bytes, at_s: float, session: str, after: str | None) -> tuple[str, bytes]:
    """One request of an agent: its answer calls a tool, whose result is part of the next prompt."""
    answer = draw.length(60, 0.6, 10, 300)
    think_s = draw.rng.lognormvariate(log(0.3), 1.0) if after else 0.0
    name = draw.ask(text, answer, at_s, session=session, after=after, think_s=think_s)
    return name, text + draw.text(answer) + draw.text(draw.length(200, 1.0, 20, 2500))


def _mixed(draw: Draw) -> None:
    """Short interactive requests, and long ones of a batch that arrive several at a time."""
    system = draw.text(300)
    batch_system = draw.text(800)
    while len(draw.requests) < draw.wanted:
        at_s = draw.start()
        if draw.rng.random() < 0.03:
            for _ in range(draw.rng.randint(5, 15)):
                long = batch_system + draw.text(draw.length(3500, 0.5, 1000, 10000))
                draw.ask(long, draw.length(250, 0.5, 50, 600), at_s, tenant="batch")
        else:
            short = system + draw.text(draw.length(200, 0.8, 20, 1500))
            draw.ask(short, draw.length(120, 0.6, 10, 400), at_s, tenant="people")


def _flips(draw: Draw) -> None:
    """Templates whose answers alternate between short and long for a while each."""
    templates = draw.texts(24, 1200, 0.5, 300, 3000)
    pick = draw.zipf(24, 0.8)
    for position in range(draw.wanted):
        place = pick()
        long = (position // 120 + place) % 2 == 0
        prompt = templates[place] + draw.text(draw.length(60, 0.7, 8, 400))
        draw.ask(prompt, draw.length(450 if long else 30, 0.3, 4, 1200), draw.start())


def _lora(draw: Draw) -> None:
    """LoRA adapters, each with a system prompt and a namespace of its own."""
    systems = draw.texts(10, 500, 0.6, 100, 1500)
    pick = draw.zipf(10)
    for _ in range(draw.wanted):
        adapter = pick()
        prompt = systems[adapter] + draw.text(draw.length(300, 0.9, 20, 3000))
        draw.ask(prompt, draw.length(120, 0.7, 8, 500), draw.start(), namespace=f"adapter-{adapter}")


def _alone(draw: Draw) -> None:
    """Prompts that share nothing."""
    for _ in range(draw.wanted):
        draw.ask(draw.text(draw.length(600, 1.1, 32, 8000)), draw.length(150, 0.8, 8, 800), draw.start())


def _documents(draw: Draw) -> None:
    """Long documents, each with some questions that arrive close to each other."""
    documents = draw.texts(160, 5500, 0.5, 1500, 14000)
    near: list[int] = []
    fresh = iter(range(160))
    for _ in range(draw.wanted):
        if len(near) < 12 or draw.rng.random() < 0.15:
            near.append(next(fresh, draw.rng.randrange(160)))
            near = near[-12:]
        prompt = documents[draw.rng.choice(near)] + draw.text(draw.length(30, 0.5, 8, 120))
        draw.ask(prompt, draw.length(90, 0.6, 8, 400), draw.start())


def _templates(draw: Draw) -> None:
    """Floods of a few dozen templates with short fields."""
    templates = draw.texts(60, 1600, 0.6, 300, 5000)
    pick = draw.zipf(60)
    for _ in range(draw.wanted):
        draw.ask(templates[pick()] + draw.text(draw.length(25, 0.5, 5, 100)), 100, draw.start())


def _code(draw: Draw) -> None:
    """Completions in editors: each prompt is the file above the cursor, a bit longer each time."""
    while len(draw.requests) < draw.wanted:
        text = draw.text(draw.length(1800, 0.6, 200, 6000))
        session = f"code-{len(draw.requests)}"
        at_s, after = draw.start(), None
        for _ in range(draw.rng.randint(2, 12)):
            answer = draw.length(30, 0.6, 4, 120)
            think_s = draw.rng.lognormvariate(log(2.5), 0.9) if after else 0.0
            after = draw.ask(text, answer, at_s, session=session, after=after, think_s=think_s)
            text += draw.text(draw.length(25, 0.9, 2, 200))


def _thoughts(draw: Draw) -> None:
    """Trees of thoughts: three levels of four continuations, of which three go on."""
    tasks = draw.texts(3, 900, 0.3, 400, 2000)
    while len(draw.requests) < draw.wanted:
        session, at_s = f"thoughts-{len(draw.requests)}", draw.start()
        level: list[tuple[bytes, str | None]] = [
            (draw.rng.choice(tasks) + draw.text(draw.length(300, 0.6, 50, 1500)), None)
        ]
        for _ in range(3):
            below: list[tuple[bytes, str | None]] = []
            for text, after in level[:3]:
                for _ in range(4):
                    answer = draw.length(150, 0.4, 30, 400)
                    name = draw.ask(text, answer, at_s, session=session, after=after, think_s=0.05)
                    below.append((text + draw.text(answer), name))
            level = below


def _judges(draw: Draw) -> None:
    """Models as judges: a rubric, a document, one of many answers to it; a short verdict."""
    rubrics = draw.texts(5, 1200, 0.3, 500, 2500)
    documents = draw.texts(120, 1500, 0.5, 300, 4000)
    pick = draw.zipf(120, 0.6)
    for _ in range(draw.wanted):
        place = pick()
        prompt = rubrics[place % 5] + documents[place] + draw.text(draw.length(400, 0.6, 50, 1500))
        draw.ask(prompt, draw.length(12, 0.4, 3, 60), draw.start())


def _map_reduce(draw: Draw) -> None:
    """Jobs that send their chunks at once, behind common instructions, and then sum up the answers."""
    instructions = draw.texts(12, 600, 0.5, 200, 1500)
    while len(draw.requests) < draw.wanted:
        session, at_s, task = f"job-{len(draw.requests)}", draw.start(), draw.rng.choice(instructions)
        last = None
        for _ in range(draw.rng.randint(8, 25)):
            chunk = draw.text(draw.length(1800, 0.3, 500, 4000))
            last = draw.ask(task + chunk, draw.length(120, 0.4, 30, 300), at_s, session=session)
        draw.ask(task + draw.text(1500), 300, at_s, session=session, after=last, think_s=0.1)


def _samples(draw: Draw) -> None:
    """Each prompt eight times at once, for a vote over the answers."""
    examples = draw.texts(10, 1500, 0.4, 500, 3000)
    while len(draw.requests) < draw.wanted:
        prompt = draw.rng.choice(examples) + draw.text(draw.length(200, 0.6, 30, 1000))
        at_s = draw.start()
        for _ in range(8):
            draw.ask(prompt, draw.length(350, 0.5, 50, 1000), at_s)


def _few_shot(draw: Draw) -> None:
    """Lists of examples of which each prompt has the first few or many."""
    tasks = [draw.texts(40, 180, 0.4, 60, 500) for _ in range(6)]
    for _ in range(draw.wanted):
        examples = draw.rng.choice(tasks)[: draw.rng.randint(4, 40)]
        prompt = b"".join(examples) + draw.text(draw.length(120, 0.6, 20, 600))
        draw.ask(prompt, draw.length(60, 0.6, 8, 300), draw.start())


def _voice(draw: Draw) -> None:
    """Spoken conversations in short turns, beside summaries of long calls that share nothing."""
    personas = draw.texts(8, 1500, 0.3, 700, 3000)
    while len(draw.requests) < draw.wanted:
        at_s = draw.start()
        if draw.rng.random() < 0.15:
            draw.ask(draw.text(draw.length(6000, 0.4, 2000, 14000)), draw.length(400, 0.3, 100, 800), at_s)
            continue
        text, turns = draw.rng.choice(personas), draw.rng.randint(3, 8)
        _talk(draw, text, at_s, turns, (25, 0.5, 5, 100), (40, 0.4, 8, 120), (3.0, 0.5))


def _bursts(draw: Draw) -> None:
    """Thirty quiet templates; now and then somebody sends sixty requests of a new one at once."""
    templates = draw.texts(30, 800, 0.5, 200, 2500)
    while len(draw.requests) < draw.wanted:
        at_s = draw.start()
        if draw.rng.random() < 0.015:
            flood = draw.text(2000)
            for _ in range(60):
                prompt = flood + draw.text(draw.length(100, 0.5, 20, 500))
                draw.ask(prompt, draw.length(80, 0.5, 10, 300), at_s)
        else:
            prompt = draw.rng.choice(templates) + draw.text(draw.length(200, 0.8, 20, 2000))
            draw.ask(prompt, draw.length(150, 0.6, 10, 600), at_s)


def _customers(draw: Draw) -> None:
    """Forty customers of a service, each with a prefix of its own and five tools behind it."""
    prefixes = draw.texts(40, 700, 0.5, 200, 2000)
    tools = [draw.texts(5, 500, 0.5, 100, 1500) for _ in prefixes]
    pick = draw.zipf(40, 1.1)
    for _ in range(draw.wanted):
        place = pick()
        prompt = prefixes[place] + draw.rng.choice(tools[place]) + draw.text(draw.length(150, 0.9, 10, 2000))
        draw.ask(prompt, draw.length(100, 0.8, 8, 600), draw.start())


KINDS: Final[dict[str, Callable[[Draw], None]]] = {
    "rag": _rag,
    "chat": _chat,
    "agents": _agents,
    "mixed": _mixed,
    "flips": _flips,
    "lora": _lora,
    "alone": _alone,
    "documents": _documents,
    "templates": _templates,
    "code": _code,
}

LATER: Final[dict[str, Callable[[Draw], None]]] = {
    "thoughts": _thoughts,
    "judges": _judges,
    "map-reduce": _map_reduce,
    "samples": _samples,
    "few-shot": _few_shot,
    "voice": _voice,
    "bursts": _bursts,
    "customers": _customers,
}


def build(kind: str, seed: int, arena_tokens: int = ARENAS[0], wanted: int | None = None) -> Workload:
    """Draw the requests of a kind at load 1, about `wanted`; `REQUESTS` if that is None.

    Equal arguments give equal requests on every machine.
    """
    draw = Draw(kind, seed, REQUESTS if wanted is None else wanted)
    (KINDS | LATER)[kind](draw)
    requests = sorted(with_answers(draw.requests, 1), key=lambda each: each.arrival_s)
    return Workload(
        name=kind,
        load="1",
        seed=seed,
        requests=requests,
        warmup=0,
        max_running=SEATS,
        arena_tokens=arena_tokens,
    )


def capacity(workload: Workload, cache: str, tier: Tier | None = None) -> float:
    """Return the engine's capacity, as a multiple of the rate at which the workload's requests arrive."""
    at_once = [replace(each, arrival_s=0.0, think_s=0.0) for each in workload.requests]
    flood = replace(workload, requests=at_once, client_concurrency=OUTSTANDING)
    cost = cost_model_for(workload.name)
    if tier is None:
        done = simulate(flood, "fcfs+lru", cache, cost=cost)
    else:
        done = figures(flood, TieredEngine(flood, None, cost, tier=tier).run())
    seconds: float = len(at_once) / done["throughput_rps"]
    return workload.requests[-1].arrival_s / seconds


def at_load(workload: Workload, load: float, cache: str, tier: Tier | None = None) -> Workload:
    """Return the same requests at a load; the times to think between turns stay as they are."""
    factor = load * capacity(workload, cache, tier)
    if any(each.session for each in workload.requests):
        factor *= CLOSED_LOOP
    requests = [replace(each, arrival_s=each.arrival_s / factor) for each in workload.requests]
    return replace(workload, requests=requests, load=f"{load:g}")
