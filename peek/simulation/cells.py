"""The paper's cells W1-W5 as synthetic workloads.

`cell(name, load, seed, engine)` builds one, the same for the same arguments on every machine.  Token ids are
equal where the cell's definition says "shared", and differ elsewhere.  The main generator makes exactly the
draws that the definition lists, in that order; token ids come from separate generators.  If a definition
leaves a choice open, the comment at the constant says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from math import log
from os import PathLike
from random import Random
from typing import Final

from peek.errors import WorkloadError
from peek.settings import require_one_of
from peek.simulation.cost import arena_for
from peek.simulation.trace import TraceRow, iter_rows
from peek.simulation.workload import SimRequest, Workload, pack_tokens, unique_tokens
from peek.trie.keys import SYMBOL_BYTES

LOADS: Final = ("moderate", "heavy")
ENGINES: Final = ("sglang", "vllm")

ARENA_TOKENS: Final = 50_000  # of W1 and W2, as the paper states it; for W3 to W5 see `arena_for`
SYSTEM_PROMPT_TOKENS: Final = 1402  # of the system prompt that all sessions of w4-shared share
W4_LONGEST_INPUT: Final = 6000  # longest input of a row of the conversation trace that makes a W4 session

_TEMPLATE: Final = (1, 2, 3)
_BEFORE_QUESTION: Final = (4, 5, 6, 7, 8)
_AFTER_QUESTION: Final = (9, 10, 11, 12, 13)

# W1 and W3 C: 8 questions per group of 10..93 tokens, mean 22.  The definition gives range, mean and count
# only; this skewed table is a choice that meets them.  Group g takes every fifth entry from entry g on, so
# any 16 consecutive groups together ask each length equally often.
_QUESTION_TABLE: Final = (10, 11, 12, 12, 13, 14, 14, 15, 16, 17, 18, 20, 22, 27, 38, 93)

# W2 and W3 B ("mirrors W2"): every group has the same ten questions, of 8..14 tokens.
_FIXED_QUESTIONS: Final = (8, 9, 9, 10, 11, 11, 12, 13, 13, 14)

# Cumulative share of groups -> output tokens.  A group's popularity comes from the shuffle, not from its id.
# So the mix can be assigned by id, which needs no draw.
_DECODE_MIX: Final = ((0.10, 128), (0.35, 512), (0.65, 1024), (0.90, 2048), (1.00, 4096))

W4_ROUNDS: Final = 4
_W4_GAP_S: Final = 0.050  # median of the log-normal gap; the definition only says "50 ms"
_W4_GAP_SIGMA: Final = 0.5
_W4_SESSIONS: Final = {"moderate": 30, "heavy": 120}


@dataclass(frozen=True, slots=True)
class _SharedPrefixCell:
    """Parameters of a W1, W2 or W3 cell; dictionaries are by engine, pairs are (moderate, heavy)."""

    groups: int
    prefix_tokens: int
    requests: dict[str, int]
    warmup: int
    rates: dict[str, tuple[float, float]]  # requests / s, 0 = closed loop
    caps: dict[str, tuple[int, int]]
    mixed: bool = False  # True (RAG-like): decode mix, fixed questions; False: 128 tokens, own questions
    arena_tokens: int = ARENA_TOKENS


_N500, _N1000, _N2000 = (dict.fromkeys(ENGINES, count) for count in (500, 1000, 2000))
_W1_CAPS: Final = {"sglang": (256, 256), "vllm": (100, 210)}
_W2_RATES: Final = {"sglang": (0.40, 0.45), "vllm": (0.15, 0.20)}
_CLOSED: Final = dict.fromkeys(ENGINES, (0.0, 0.0))
_W3_CAPS: Final = dict.fromkeys(ENGINES, (180, 180))
_DEFAULT_CAP: Final = 256
_W2_CAPS: Final = dict.fromkeys(ENGINES, (_DEFAULT_CAP, _DEFAULT_CAP))

_SHARED_PREFIX: Final = {  # groups, prefix, requests, warm-up, rates, caps, mixed, arena
    "w1a": _SharedPrefixCell(100, 1024, _N1000, 200, {"sglang": (40, 60), "vllm": (20, 30)}, _W1_CAPS),
    "w1b": _SharedPrefixCell(200, 1024, _N2000, 400, {"sglang": (35, 80), "vllm": (20, 30)}, _W1_CAPS),
    "w1c": _SharedPrefixCell(100, 4096, _N1000, 200, {"sglang": (4, 8), "vllm": (5, 10)}, _W1_CAPS),
    "w1d": _SharedPrefixCell(200, 4096, _N2000, 400, {"sglang": (12, 24), "vllm": (8, 15)}, _W1_CAPS),
    "w2b": _SharedPrefixCell(40, 8192, {"sglang": 1000, "vllm": 500}, 100, _W2_RATES, _W2_CAPS, True),
    "w3b": _SharedPrefixCell(14, 4096, _N500, 100, _CLOSED, _W3_CAPS, True, arena_for("w3")),
    "w3c": _SharedPrefixCell(88, 1500, _N1000, 200, _CLOSED, _W3_CAPS, False, arena_for("w3")),
}
# W5: bounds of the prompt length in tokens, (moderate, heavy) requests / s
_SINGLETONS: Final[dict[str, tuple[int, int, tuple[float, float]]]] = {
    "w5-long": (512, 4096, (15, 25)),
    "w5-short": (32, 1024, (102, 120)),
}

CELL_NAMES: Final = (*_SHARED_PREFIX, "w4", "w4-shared", *_SINGLETONS)


def cell(
    name: str,
    load: str = "heavy",
    seed: int = 42,
    engine: str = "sglang",
    *,
    trace: str | PathLike[str] | None = None,
    client: str | None = None,
) -> Workload:
    """Build one of the paper's cells, with one token per symbol and the rates, caps and counts of `engine`.

    The paper has seeds 42, 142 and 242.  W4 needs a `trace`, the path of the Mooncake conversation trace, and
    there the rounds wait for answers if `client` is "vllm", and do not if it is "sglang"; None: as `engine`.
    Raises `InvalidConfig` for unknown names, `WorkloadError` for other faults.
    """
    client = engine if client is None else client
    require_one_of("workload", name, CELL_NAMES)
    require_one_of("load", load, LOADS)
    require_one_of("engine", engine, ENGINES)
    require_one_of("client", client, ENGINES)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise WorkloadError(f"seed is {seed!r}, not an integer")
    if name in _SHARED_PREFIX:
        return _shared_prefix_workload(name, load, seed, engine)
    if name in _SINGLETONS:
        return _singleton_workload(name, load, seed)
    return _agentic_workload(name, load, seed, trace, client)


def _shared_prefix_workload(name: str, load: str, seed: int, engine: str) -> Workload:
    """Build a W1, W2 or W3 cell; draws shuffle, Zipf samples, then question and gap of each request."""
    spec = _SHARED_PREFIX[name]
    level = LOADS.index(load)
    rate, cap = spec.rates[engine][level], spec.caps[engine][level]
    rng = Random(seed)
    groups = draw_groups(rng, spec.groups, spec.requests[engine])
    prompts: dict[tuple[int, int], bytes] = {}
    arrival_s = 0.0
    requests = []
    for position, group in enumerate(groups):
        own = [_QUESTION_TABLE[(group + 5 * place) % len(_QUESTION_TABLE)] for place in range(8)]
        lengths = _FIXED_QUESTIONS if spec.mixed else own
        question = rng.randrange(len(lengths))
        arrival_s += rng.expovariate(rate) if rate else 0.0
        if (group, question) not in prompts:  # equal prompts share one object
            prompts[group, question] = _prompt(spec, seed, group, question, lengths[question])
        key = prompts[group, question]
        middle = (group + 0.5) / spec.groups  # of the group's share of all groups
        mix = next(tokens for share, tokens in _DECODE_MIX if middle < share)
        output = mix if spec.mixed else 128
        requests.append(SimRequest(f"{name}-{position}", arrival_s, key, len(key) // SYMBOL_BYTES, output))
    return Workload(
        name=name, load=load, seed=seed, requests=tuple(requests), warmup=spec.warmup, max_running=cap,
        arena_tokens=spec.arena_tokens, client_concurrency=None if rate else cap,
    )  # fmt: skip


def _prompt(spec: _SharedPrefixCell, seed: int, group: int, question: int, length: int) -> bytes:
    """Return a packed prompt: template, prefix of the group, glue, question of `length` tokens, glue."""
    asked_by = "all" if spec.mixed else str(group)
    return (
        pack_tokens(_TEMPLATE)
        + unique_tokens(f"{seed}/prefix/{group}", group, spec.prefix_tokens)
        + pack_tokens(_BEFORE_QUESTION)
        + unique_tokens(f"{seed}/question/{asked_by}/{question}", question, length)
        + pack_tokens(_AFTER_QUESTION)
    )


def draw_groups(rng: Random, groups: int, count: int) -> list[int]:
    """Draw `count` groups by popularity: one shuffle, then Zipf samples, each of one `rng.random()`.

    The group at position r of the shuffled list has weight 1 / (r + 1).
    """
    by_rank = list(range(groups))
    rng.shuffle(by_rank)
    return rng.choices(by_rank, [1.0 / (rank + 1) for rank in range(groups)], k=count)


def _agentic_workload(
    name: str, load: str, seed: int, trace: str | PathLike[str] | None, client: str
) -> Workload:
    """Build W4: sessions start at the times of their trace rows; draws three log-normal gaps by session."""
    if trace is None:
        what = "the Mooncake conversation trace (conversation_trace.jsonl.gz of Mooncake's FAST25 release)"
        raise WorkloadError(f"{name} needs {what}, which is not shipped: give its path with --trace-file")
    wanted = _W4_SESSIONS[load]
    # A shorter input cannot be split into rounds.
    usable = (row for row in iter_rows(trace) if W4_ROUNDS <= row.input_tokens <= W4_LONGEST_INPUT)
    rows = list(islice(usable, wanted))
    if len(rows) < wanted:
        found = f"{len(rows)} rows with input_length {W4_ROUNDS}..{W4_LONGEST_INPUT}"
        need = f"{name} {load} needs {wanted} of the Mooncake conversation trace"
        raise WorkloadError(f"{trace}: {found}, {need}")
    rng = Random(seed)
    shared = unique_tokens(f"{seed}/system", 0, SYSTEM_PROMPT_TOKENS) if name == "w4-shared" else b""
    start_ms = min(row.timestamp_ms for row in rows)
    requests = []
    for session, row in enumerate(rows):
        gaps_s = [rng.lognormvariate(log(_W4_GAP_S), _W4_GAP_SIGMA) for _ in range(W4_ROUNDS - 1)]
        start_s = (row.timestamp_ms - start_ms) / 1000.0
        # + 1, since the system prompt of w4-shared has the name 0
        words = unique_tokens(f"{seed}/session/{session}", session + 1, row.input_tokens)
        requests += _session(f"{name}-{session}", row, shared, words, start_s, gaps_s, client == "vllm")
    requests.sort(key=lambda request: request.arrival_s)  # stable: rounds stay in order
    return Workload(
        name=name, load=load, seed=seed, requests=tuple(requests), warmup=len(requests) // 10,
        max_running=_DEFAULT_CAP, arena_tokens=arena_for(name),
    )  # fmt: skip


def _session(
    name: str, row: TraceRow, shared: bytes, words: bytes, start_s: float, gaps_s: list[float], waits: bool
) -> list[SimRequest]:
    """Make the four rounds of a session from one trace row, whose input is the whole conversation.

    The prompt of round r (1..4) is the first r quarters of the row's input.  Each quarter after the first
    stands for the previous answer and the next user turn.  Every answer has the row's output length.
    """
    requests: list[SimRequest] = []
    arrival_s = start_s
    for number, gap_s in enumerate([0.0, *gaps_s], start=1):
        arrival_s += gap_s
        key = shared + words[: SYMBOL_BYTES * (row.input_tokens * number // W4_ROUNDS)]
        before = requests[-1].request_id if waits and requests else None
        requests.append(
            SimRequest(
                f"{name}-{number}", arrival_s, key, len(key) // SYMBOL_BYTES, row.output_tokens,
                after=before, think_s=gap_s if before else 0.0,
            )
        )  # fmt: skip
    return requests


def _singleton_workload(name: str, load: str, seed: int) -> Workload:
    """Build a W5 cell, without sharing; draws log-normal length, output length and gap of each request.

    The definition does not give the parameters of the log-normal.  Here its clip bounds are two standard
    deviations from the median (1448 or 181 tokens), so that 5 % of the lengths are clipped.
    """
    low, high, rates = _SINGLETONS[name]
    rng = Random(seed)
    middle, sigma = (log(low) + log(high)) / 2.0, (log(high) - log(low)) / 4.0
    rate = rates[LOADS.index(load)]
    arrival_s = 0.0
    requests = []
    for position in range(1500):
        length = min(max(round(rng.lognormvariate(middle, sigma)), low), high)
        output = rng.randint(64, 256)
        arrival_s += rng.expovariate(rate)
        key = unique_tokens(f"{seed}/prompt/{position}", position, length)
        requests.append(SimRequest(f"{name}-{position}", arrival_s, key, length, output))
    return Workload(
        name=name, load=load, seed=seed, requests=tuple(requests), warmup=100,
        max_running=_DEFAULT_CAP, arena_tokens=arena_for(name),
    )  # fmt: skip
