"""CPU seconds of scheduling decisions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def timed(decide: Callable[..., Any], spent_s: list[float]) -> Callable[..., Any]:
    """`decide`, which also writes down how long each call of it took."""

    def measured(*args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        result = decide(*args, **kwargs)
        spent_s.append(time.process_time() - started)
        return result

    return measured


class Readings(list[float]):
    """A planner's timer, which it reads at the beginning and the end of each plan."""

    def __call__(self) -> float:
        self.append(time.process_time())
        return self[-1]

    def spans(self) -> list[float]:
        return [end - start for start, end in zip(self[::2], self[1::2], strict=False)]
