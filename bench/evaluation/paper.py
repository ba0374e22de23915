"""Published figures that the report shows beside its own: appendix tables of the paper, three-seed means.

paper.json has them by engine family, stream and policy, each as `Figures`; what a table lacks is absent.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from bench.evaluation.text import seconds

BASELINE = {"sglang": "lpm+lru", "vllm": "fcfs+lru"}
"""The paper's "stock": LPM (0.5.9) on SGLang, FCFS with prefix caching (0.19.1) on vLLM."""

TPOT_W1A = {"sglang": 45.9, "vllm": 43.5}
"""Stock, milliseconds, W1 A heavy."""


class Figures(NamedTuple):
    """Throughput in requests/s, cache hit in %, mean TTFT and mean E2E in seconds."""

    rps: float
    hit: float
    ttft: float
    e2e: float

    def __str__(self) -> str:
        return f"{self.hit:.1f}, {seconds(self.ttft)}, {self.rps:.2f}"


FIT = Path(__file__).with_name("fit.json")
"""The constant of the step times that is fitted to the paper's throughput, see fit.py."""

TABLES: dict[str, dict[str, dict[str, list[float]]]] = json.loads(
    Path(__file__).with_name("paper.json").read_text()
)


def published(family: str, stream: str, policy: str) -> Figures | None:
    """The paper's figures, None where it states none.  Variants of a W1 or W2 cell have the cell's."""
    if stream.startswith(("w1", "w2")):
        stream = ":".join(stream.split(":")[:2])
    found = TABLES[family].get(stream, {}).get(policy)
    return Figures(*found) if found else None
