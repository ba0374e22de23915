"""Times as logs write them, in seconds."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from math import isfinite
from typing import Final

from peek.errors import WorkloadError
from peek.offline.formats.echo import echoed

UNITS: Final = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Of numbers: how many make a second."""

_EPOCH_FLOOR_S: Final = 1e8
"""Seconds above this (1973) are a date; so are milliseconds a thousand times above it, and so on."""

_FRACTION: Final = re.compile(r"\.(\d{1,6})\d*")


def seconds(value: object, unit: str = "") -> float:
    """Seconds on a clock that all requests of a log share.

    Args:
        value: a number, a number as text, or a date and time after ISO 8601 (UTC where it names no zone).
        unit: of numbers, one of `UNITS`; "": by their size, small ones are seconds.

    Raises:
        WorkloadError: it is none of these.
    """
    number = _number(value)
    if number is None:
        return _date(value)
    if not isfinite(number) or number < 0:
        raise WorkloadError(f"time is {echoed(value)}, not a time")
    if not unit:
        unit = next((name for name in ("ns", "us", "ms") if number >= UNITS[name] * _EPOCH_FLOOR_S), "s")
    return number / UNITS[unit]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _date(value: object) -> float:
    if not isinstance(value, str):
        raise WorkloadError(f"time is {echoed(value)}, not a time")
    text = _FRACTION.sub(lambda found: f".{found[1]:0<6}", value.strip().replace("Z", "+00:00"))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise WorkloadError(f"time is {echoed(value)}, not a time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
