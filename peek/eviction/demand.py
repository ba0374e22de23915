"""How much the queue needs a cached block (`EvictionPolicy`), and which blocks go first (`victims`).

`DemandEviction` is the paper's eviction hook with its four modes.  The published text gives Equation 2
(`plain`) and the names of the other modes; the formulas here are this library's reading of them.  In all
modes no demand scores 0 and any demand scores above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from typing import Final

from mypy_extensions import mypyc_attr

from peek.errors import InvalidConfig
from peek.native import i64


@mypyc_attr(allow_interpreted_subclasses=True)
class EvictionPolicy:
    """Scores a cached node or block by the demand that the queue has for it.

    Pass an instance of a subclass of your own to `Planner`.
    """

    def score(self, peak: i64, levels: i64, idle_s: float) -> float:
        """Return the score of a node; the lowest goes first, 0.0 means that no waiting request needs it.

        O(1), pure.

        Args:
            peak: max over the node's ancestors in the pending tree (itself included) of pending_count x
                depth, in requests x symbols (Eq. 2); 0 without demand.
            levels: number of these ancestors that at least two waiting requests share.
            idle_s: seconds since the engine last used the node; 0.0 if that is not known.
        """
        # Not abstract: where a subclass lacks an abstract method, a compiled call of it ends the process.
        raise NotImplementedError(f"{type(self).__name__} does not say how to score a block")


MODES: Final = ("plain", "cluster", "recency", "decay")


@mypyc_attr(allow_interpreted_subclasses=True)
class DemandEviction(EvictionPolicy):
    """Evicts blocks that the queue does not need first, then those that it needs least.

    Args:
        mode: with `peak` in requests x symbols,
            "plain"    peak                                     (Eq. 2)
            "cluster"  peak x (1 + levels)                      deeper sharing structure weighs more
            "recency"  peak x (1 + 1 / (1 + idle_s))            up to twice as much if just used
            "decay"    peak x 2 ** (-idle_s / half_life_s)      old demand fades
        half_life_s: seconds in which "decay" halves a score.
    """

    def __init__(self, mode: str = "cluster", half_life_s: float = 30.0) -> None:
        if mode not in MODES:
            raise InvalidConfig(f"eviction mode {mode!r} is unknown; valid: {', '.join(MODES)}")
        if not (isfinite(half_life_s) and half_life_s > 0.0):
            raise InvalidConfig(f"half_life_s is {half_life_s}; need a positive number of seconds")
        self.mode = mode
        self.half_life_s: float = half_life_s

    def score(self, peak: i64, levels: i64, idle_s: float) -> float:
        demand = float(peak)
        if self.mode == "plain" or demand == 0.0:
            return demand
        if self.mode == "cluster":
            return demand * float(1 + levels)
        idle = idle_s if idle_s > 0.0 else 0.0
        if self.mode == "recency":
            return demand * (1.0 + 1.0 / (1.0 + idle))
        # Never down to 0.0, which would mean that no request needs it.
        halvings = min(idle / self.half_life_s, 1000.0)
        return demand * float(2.0**-halvings)


def victims(candidates: Iterable[int], score: Callable[[int], float], scan_limit: int) -> Iterator[int]:
    """Yield candidates in the order in which they should be evicted.

    A candidate without demand is yielded as soon as it is met, so the usual choice looks at one candidate.
    Candidates with demand are set aside and come last, lowest score first.  Nothing is sorted or rebuilt
    unless the candidates without demand run out.

    Args:
        candidates: cached nodes or blocks, least recently used first.
        score: returns how much the queue needs one, 0.0 for not at all (`Planner.eviction_score`).
        scan_limit: number of candidates with demand after which the search ends; all further candidates
            follow last, without a score.
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
