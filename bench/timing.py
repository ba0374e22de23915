"""What was timed in a benchmark run: one readable table, and the same as JSON.

Absolute targets were set on one machine, on which packing a list of 4096 ints with `struct` takes
about 22 us.  The same packing is timed at the start of every run; `scaled` is the target times what
this machine takes of those 22 us, and it is what the verdict goes by.  Ratios need no such help:
both sides come from the same run, minutes apart at most.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from peek.timing import aligned, best_of, readable

REFERENCE_S = 22e-6
"""`struct.pack` of 4096 ints on the machine of the targets (18 .. 26 us)."""


@dataclass(frozen=True)
class Timing:
    """One measured thing.  All times in seconds of one operation."""

    what: str
    best_s: float
    median_s: float
    yardstick: str = ""
    yardstick_s: float = 0.0
    max_s: float = 0.0
    """The target as a time, 0 for none."""
    max_ratio: float = 0.0
    """The target as a multiple of the yardstick, 0 for none."""

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
    """The timings of one run, and how fast this machine is (`factor`: times slower than the targets')."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.timings: list[Timing] = []
        self.factor = machine_yardstick() / REFERENCE_S

    def lines(self) -> list[str]:
        """The table as text."""
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
        """The table as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [vars(one) | {"ratio": one.ratio, "verdict": one.verdict(self.factor)} for one in self.timings]
        content = {"backend": self.backend, "machine_factor": self.factor, "rows": rows}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def machine_yardstick() -> float:
    """Seconds to pack a list of 4096 ints with the standard library."""
    tokens = [(37 * i) % 150_000 for i in range(4096)]
    return best_of(3_000, lambda: struct.pack("<4096i", *tokens))
