"""Shows the times of a benchmark run as a table, and as JSON.

Absolute targets were set on one machine, which packs a list of 4096 ints with `struct` in about 22 us.  The
same packing is timed at the start of every run.  `scaled` is the target times this machine's time over 22 us,
and the verdict goes by it.  Ratios need no scaling, as both times come from the same run.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from peek.timing import aligned, best_of, readable

REFERENCE_S = 22e-6
"""Seconds of `struct.pack` of 4096 ints on the machine of the targets (18 to 26 us)."""


@dataclass(frozen=True)
class Timing:
    """One row of the table; all times are of one operation, in seconds."""

    what: str
    best_s: float
    median_s: float
    yardstick: str = ""
    yardstick_s: float = 0.0
    max_s: float = 0.0
    """The target as a time, seconds; 0 for none."""
    max_ratio: float = 0.0
    """The target as a multiple of the yardstick; 0 for none."""

    @property
    def ratio(self) -> float:
        return self.best_s / self.yardstick_s if self.yardstick_s else 0.0

    def verdict(self, factor: float) -> str:
        if self.max_ratio:
            return "ok" if self.ratio <= self.max_ratio else "short"
        if not self.max_s:
            return ""
        raw = self.best_s <= self.max_s
        scaled = self.best_s <= self.max_s * factor
        if raw == scaled:
            return "ok" if raw else "short"
        return "ok (raw: short)" if scaled else "short (raw: ok)"


class TimingTable:
    """The timings of one run; `factor` is how many times slower this machine is than the targets'."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.timings: list[Timing] = []
        self.factor = machine_yardstick() / REFERENCE_S

    def lines(self) -> list[str]:
        """Return the table as lines of text."""
        head = ("what", "best", "median", "yardstick of this run", "ratio", "target", "scaled", "verdict")
        title = (
            f"backend {self.backend}; struct.pack of 4096 ints: {readable(self.factor * REFERENCE_S)}, "
            f"targets scaled by {self.factor:.2f}"
        )
        return [title, "", *aligned([head, *map(self._cells, self.timings)], "<>><>>><")]

    def _cells(self, timing: Timing) -> tuple[str, ...]:
        target = scaled = ""
        if timing.max_ratio:
            target = f"{timing.max_ratio:g} x"
        elif timing.max_s:
            target, scaled = readable(timing.max_s), readable(timing.max_s * self.factor)
        return (
            timing.what,
            readable(timing.best_s),
            readable(timing.median_s),
            f"{timing.yardstick} {readable(timing.yardstick_s)}" if timing.yardstick_s else "",
            f"{timing.ratio:.2f}" if timing.yardstick_s else "",
            target,
            scaled,
            timing.verdict(self.factor),
        )

    def write(self, path: Path) -> None:
        """Write the table as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [vars(one) | {"ratio": one.ratio, "verdict": one.verdict(self.factor)} for one in self.timings]
        content = {"backend": self.backend, "machine_factor": self.factor, "rows": rows}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def machine_yardstick() -> float:
    """Return the time of packing a list of 4096 ints with `struct`, in seconds."""
    tokens = [(37 * i) % 150_000 for i in range(4096)]
    return best_of(3_000, lambda: struct.pack("<4096i", *tokens))
