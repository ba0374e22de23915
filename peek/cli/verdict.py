"""What a comparison comes to, in one sentence."""

from __future__ import annotations

from typing import Any, Final

SAME_TIME: Final = 0.03
"""Times that differ by no more than this part are the same."""

SAME_HIT: Final = 0.005
"""Cache hits that differ by no more than half a point are the same."""

SHORT_WAIT_S: Final = 0.1
"""Where 99 of 100 requests wait less, there is hardly a queue."""

OURS: Final = "peek"


def verdict(runs: list[dict[str, Any]]) -> str:
    """What the policy in question (`peek` if it ran, else the best one) changes beside the first run.

    "" for a single run.
    """
    first = runs[0]
    others = [run for run in runs[1:] if run["policy"] != first["policy"]]
    if not others:
        return ""
    best = min(others, key=lambda run: float(run["ttft_s"]["mean"]))
    ours = next((run for run in others if run["policy"] == OURS), best)
    changes = [
        _change("the mean time to first token", first["ttft_s"]["mean"], ours["ttft_s"]["mean"]),
        _change("its p99", first["ttft_s"]["p99"], ours["ttft_s"]["p99"]),
        _hit_change(first["cache_hit"], ours["cache_hit"]),
    ]
    said = list(filter(None, changes))
    if not said:
        return f"Nothing changes under {ours['policy']}: {_reason(first)}."
    text = f"Under {ours['policy']} instead of {first['policy']} {_joined(said)}"
    shorter = best["ttft_s"]["mean"] < (1.0 - SAME_TIME) * ours["ttft_s"]["mean"]
    return text + (
        f"; {best['policy']} has the shortest mean, {_seconds(best['ttft_s']['mean'])}." if shorter else "."
    )


def _change(what: str, before: float, after: float) -> str:
    if abs(after - before) <= SAME_TIME * before:
        return ""
    verb = "falls" if after < before else "rises"
    times = max(before, after) / max(min(before, after), 1e-9)
    by = f"x{times:.1f}" if times >= 1.95 else f"{100.0 * abs(after - before) / before:.0f} %"
    return f"{what} {verb} from {_seconds(before)} to {_seconds(after)} ({by})"


def _hit_change(before: float, after: float) -> str:
    if abs(after - before) <= SAME_HIT:
        return ""
    verb = "rises" if after > before else "falls"
    return f"the cache hit {verb} from {100.0 * before:.1f} to {100.0 * after:.1f} %"


def _reason(first: dict[str, Any]) -> str:
    """Why no order makes a difference."""
    wait_s = first["queue_wait_s"]["p99"]
    hit, ideal = 100.0 * first["cache_hit"], 100.0 * first["ideal_hit"]
    if wait_s < SHORT_WAIT_S:
        waiting = f"99 of 100 requests wait less than {_seconds(max(wait_s, 1e-3))}"
        return f"{waiting}, so there is hardly a queue to order; a higher --rate-scale makes one"
    if ideal < 5.0:
        return f"these prompts share next to nothing, {ideal:.1f} % at best"
    if ideal - hit < 2.0:
        return f"the cache already serves {hit:.1f} % of the {ideal:.1f} % that any cache could"
    return "what these requests share does not wait at the same time"


def significant(value: float) -> str:
    """Three significant digits, all digits of what is larger, and no more than three decimals."""
    if value == 0.0:
        return "0"
    for decimals, limit in ((3, 0.9995), (2, 9.995), (1, 99.95)):
        if value < limit:
            return f"{value:.{decimals}f}"
    return f"{value:.0f}"


def _seconds(value: float) -> str:
    return f"{1000.0 * value:.0f} ms" if value < 0.9995 else f"{significant(value)} s"


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
