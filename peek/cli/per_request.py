"""`--per-request`: a CSV file with a line for each request of each run, warm-up included."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from peek.cli.writing import write_whole
from peek.simulation.engines import Job

COLUMNS: Final = (
    "request_id", "tenant", "arrival_s", "admitted_s", "first_token_s", "finished_s",
    "prompt_tokens", "cached_tokens", "output_tokens", "policy", "seed",
)  # fmt: skip


class PerRequest:
    """Collects the requests of all runs."""

    def __init__(self) -> None:
        self._text = io.StringIO()
        self._csv = csv.writer(self._text, lineterminator="\n")
        self._csv.writerow(COLUMNS)

    def add(self, jobs: Sequence[Job], policy: str, seed: int) -> None:
        """The requests of one run, in order of arrival; times in seconds since its start."""
        for job in jobs:
            times = (job.arrival_s, job.admitted_s, job.first_token_s, job.finished_s)
            self._csv.writerow([
                job.request_id, job.request.tenant, *(f"{time_s:.6f}" for time_s in times), job.prompt_tokens,
                job.cached_at_admission, job.output_tokens, policy, seed,
            ])  # fmt: skip

    def write(self, path: Path) -> None:
        """All of them, into a file that appears when it is complete."""
        with write_whole([path]) as (stream,):
            stream.write(self._text.getvalue().encode())
