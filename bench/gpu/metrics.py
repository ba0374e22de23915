"""What a replay measured, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from bench.gpu.client import Answer, Replay
from bench.gpu.loads import Load, Request

Pair = tuple[Request, Answer]


def summary(load: Load, replay: Replay) -> dict[str, Any]:
    """The metrics of a load without its warm-up, as they are stored.

    TTFT and E2E in seconds from the planned arrival, so a late client counts against the engine;
    TPOT in ms between first and last token.  Throughput: requests finished, from the first planned
    arrival to the last answer.  Cached tokens are those that vLLM reports per request.  `finished` below
    `requests` means that the limit cut the replay off; means are then of those that came.
    """
    pairs = list(zip(load.requests, replay.answers, strict=True))[load.warmup :]
    done = [pair for pair in pairs if pair[1].done_s is not None]
    firsts = [answer.first_s for _, answer in pairs if answer.first_s is not None]
    prompts = sum(len(request.prompt) for request, _ in done)
    cached = sum(answer.cached or 0 for _, answer in done)
    return {
        "requests": len(pairs),
        "finished": len(done),
        "warmup": load.warmup,
        "prompt_tokens": prompts,
        "output_tokens": sum(answer.tokens for _, answer in done),
        "cached_tokens": cached,
        "cache_hit": round(cached / prompts, 4) if prompts else 0.0,
        "ideal_hit": round(load.ideal_hit, 4),
        "throughput_rps": _throughput(done),
        "ttft_s": spread(firsts),
        "e2e_s": spread([answer.done_s for _, answer in done if answer.done_s is not None]),
        "tpot_ms": spread([per_token_ms(answer) for _, answer in done if answer.tokens > 1]),
        "wall_s": round(replay.wall_s, 3),
        "client_late_s": round(replay.late_s, 4),
        "broken": replay.broken[:3],
        "ttft_each_s": [round(value, 4) for value in firsts],
    }


def _throughput(done: Sequence[Pair]) -> float:
    if not done:
        return 0.0
    begin = min(request.arrival_s for request, _ in done)
    end = max(request.arrival_s + (answer.done_s or 0.0) for request, answer in done)
    return round(len(done) / (end - begin), 4)


def per_token_ms(answer: Answer) -> float:
    """Mean time between two tokens of an answer of two or more."""
    return 1e3 * ((answer.done_s or 0.0) - (answer.first_s or 0.0)) / (answer.tokens - 1)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, median and 99th percentile (nearest rank); zeros where there is nothing."""
    if not values:
        return {"mean": 0.0, "p50": 0.0, "p99": 0.0}
    ordered = sorted(values)
    ranks = {"p50": 0.50, "p99": 0.99}
    found = {name: ordered[max(0, -int(-len(ordered) * rank // 1) - 1)] for name, rank in ranks.items()}
    return {name: round(value, 4) for name, value in {"mean": fmean(ordered), **found}.items()}
