"""The progress bar of long commands: on stderr, and on a terminal only."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

_REFRESH_S: Final = 0.1


class ProgressBar:
    """One bar over all parts of a job; it goes when the job is done.

    It draws when told of progress and never from a thread of its own, which would disturb what is measured
    meanwhile.

    Args:
        total: of all parts, in any unit; None: nobody knows.
        what: what is going on; see `next_part`.
    """

    def __init__(self, total: int | None, what: str = "") -> None:
        self._bar: Progress | None = None
        if sys.stderr is not None and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
            )
            self._task = self._bar.add_task(what, total=total)
        self._before: int = 0
        self._done: int = 0
        self._drawn_s: float = 0.0

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def next_part(self, what: str) -> None:
        """Another part begins; what the last one has done stays done."""
        self._before += self._done
        self._done = 0
        if self._bar is not None:
            self._bar.update(self._task, description=what, refresh=True)

    def show(self, done: int) -> None:
        """So much of the present part is done."""
        self._done = done
        now = time.perf_counter()
        if self._bar is not None and now - self._drawn_s >= _REFRESH_S:
            self._drawn_s = now
            self._bar.update(self._task, completed=self._before + done, refresh=True)
