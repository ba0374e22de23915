"""What a failing check prints: queues, keys and histories that a reader takes in at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from peek.testing.replay import History
from peek.testing.scenes import Arrival, Scene
from peek.testing.twins import Place, longest


def show_symbols(symbols: Sequence[int]) -> str:
    """A key with runs of one symbol drawn together: `[1, 2 x31, 3]`."""
    runs = [(symbol, len(list(run))) for symbol, run in groupby(symbols)]
    return f"[{', '.join(f'{symbol} x{n}' if n > 1 else str(symbol) for symbol, n in runs)}]"


def show_place(place: Place) -> str:
    namespace, symbols = place
    return show_symbols(symbols) + (f" in namespace {namespace!r}" if namespace else "")


def show_arrival(row: Arrival) -> str:
    tokens = f", {row.num_tokens} tokens" if row.num_tokens else ""
    return f"{row.request_id}: arrived at {row.arrival_time:g}{tokens}, {show_place(row.place)}"


def show_scene(scene: Scene) -> str:
    """The queue with what is cached of each request."""
    unit = "" if scene.unit == 1 else f", {scene.unit} tokens a symbol"
    lines = [f"  queue at {scene.now:g}{unit}, symbols cached in brackets:"]
    for row in scene.rows:
        coming = longest(scene.in_flight, row.place)
        under_way = f", {coming} being computed" if coming else ""
        lines.append(f"    {show_arrival(row)} ({longest(scene.cached, row.place)}{under_way})")
    return "\n".join(lines)


def show_history(history: History) -> str:
    lines = ["  history, step by step:"]
    for step in history.steps:
        lines.append(f"    at {step.now:g}:")
        lines += [f"      arrives {show_arrival(row)}" for row in step.arrivals]
        lines += [f"      cached {show_place(place)}" for place in step.cached if place[1]]
        if step.admitted or step.withdrawn:
            lines.append(f"      then {step.admitted} admitted, {step.withdrawn} withdrawn")
    return "\n".join(lines)
