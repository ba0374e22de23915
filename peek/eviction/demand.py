"""DemandEviction: the paper's eviction hook and its four modes.

The published text gives Equation 2 (`plain`) and the names of the other modes; the formulas here are
this library's reading of them.  All agree that no demand is 0 and any demand is above it.
"""

from __future__ import annotations

from math import isfinite
from typing import Final

from mypy_extensions import i64, mypyc_attr

from peek.errors import InvalidConfig
from peek.eviction.base import EvictionPolicy

MODES: Final = ("plain", "cluster", "recency", "decay")


@mypyc_attr(allow_interpreted_subclasses=True)
class DemandEviction(EvictionPolicy):
    """Evict what the queue does not need first, then what it needs least.

    Args:
        mode: with `peak` in requests x symbols,
            "plain"    peak                                     (Eq. 2)
            "cluster"  peak x (1 + levels)                      deeper sharing structure weighs more
            "recency"  peak x (1 + 1 / (1 + idle_s))            up to twice for what was just used
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
        # Never down to 0.0: that would read as "nobody needs it".
        halvings = min(idle / self.half_life_s, 1000.0)
        return demand * float(2.0**-halvings)
