"""A scheduler with `peek` for the tests of vLLM's server: it notes what it does, and goes wrong when told to.

In the folder WATCH_FOLDER:

- `admitted` gets a line for each step that admits somebody: the mode of `peek`, and the requests' names.
- While there is a file `hold`, who arrives is held back; once as many have come as it says, they enter the
  queue sorted by the digits of their names.
- A file `fail` makes the next call of the adapter raise.

A name is what the client said in `X-Request-Id`.  A request whose name begins with `spoilt` has an arrival
time that is no number.  Time is the number of admissions, which is the same in every run.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from peek.adapters.vllm import PeekScheduler

TICK_S = 1 / 64
"""Its multiples are exact, so a wait is the same number whenever it began."""


def name_of(request_id: str) -> str:
    """vLLM makes `cmpl-NAME-0-RANDOM` of it."""
    parts = request_id.split("-")
    return parts[1] if len(parts) > 1 else request_id


def digits(request_id: str) -> int:
    return int("".join(filter(str.isdigit, name_of(request_id))) or 0)


def fail(*_: Any) -> None:
    raise RuntimeError("injected")


class Scheduler(PeekScheduler):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.folder = Path(os.environ["WATCH_FOLDER"])
        self.held: list[Any] = []
        self.now = 0.0
        super().__init__(*args, **kwargs)

    def add_request(self, request: Any) -> None:
        hold = self.folder / "hold"
        if not hold.exists():
            self._enter(request)
            return
        self.held.append(request)
        if len(self.held) >= int(hold.read_text()):
            hold.unlink()
            for one in sorted(self.held, key=lambda one: digits(one.request_id)):
                self._enter(one)
            self.held.clear()

    def _enter(self, request: Any) -> None:
        spoilt = name_of(request.request_id).startswith("spoilt")
        request.arrival_time = math.nan if spoilt else self.now + digits(request.request_id) * TICK_S
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        adapter, order = self.peek.adapter, self.folder / "fail"
        if adapter is not None:
            adapter.clock = lambda: self.now
            if order.exists():
                order.unlink()
                adapter.before_schedule = fail
        output = super().schedule(*args, **kwargs)
        names = [name_of(new.req_id) for new in output.scheduled_new_reqs]
        self.now += TICK_S * sum(not name.startswith("spoilt") for name in names)
        if names:
            with (self.folder / "admitted").open("a") as file:
                print(self.peek.mode, *names, file=file)
        return output
