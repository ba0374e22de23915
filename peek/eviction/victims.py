"""Choosing whom to evict: nobody's needs first, then the least needed, ties in the engine's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator


def victims(candidates: Iterable[int], score: Callable[[int], float], scan_limit: int) -> Iterator[int]:
    """Yield candidates in the order in which they should go.

    A candidate without demand is yielded as soon as it is met, so the usual choice costs one look;
    demanded ones are set aside and come last, lowest score first.  Nothing is sorted or rebuilt unless
    the candidates without demand run out.

    Args:
        candidates: cached nodes or blocks, least recently used first.
        score: how much the queue needs one, 0.0 for not at all (`Planner.eviction_score`).
        scan_limit: give up looking for one without demand after this many demanded ones; what lies
            behind them follows last, unlooked at.
    """
    needed: list[tuple[float, int, int]] = []
    rest = iter(candidates)
    for candidate in rest:
        demand = score(candidate)
        if demand == 0.0:
            yield candidate
            continue
        needed.append((demand, len(needed), candidate))
        if len(needed) >= scan_limit:
            break
    needed.sort()
    for _, _, candidate in needed:
        yield candidate
    yield from rest
