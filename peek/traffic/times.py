"""Reads times as logs write them, dates or numbers of any unit, and says where a unit is a guess."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Final

from peek.errors import WorkloadError
from peek.offline.formats import excerpt_of

UNITS: Final = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # number of each unit in a second

# Numbers from this on (1998) are dates, in seconds; 1,000 times this they are dates in ms, and so on.
_EPOCH_FLOOR_S: Final = 9e8
_LAST_S: Final = 253_402_300_800.0  # end of the year 9999, the last that a date can name

_LONGEST_GAP_S: Final = 1000.0**0.5
"""Longest mean gap, in seconds, with which a unit is likely.  An engine with one request in 32 s is idle, and
no order matters.  The next finer unit would make it 32 per second, which is as far from one per second."""

_DATE: Final = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?"
    r" ?(Z|UTC|[+-]\d\d(?::?\d\d)?)?(?: UTC)?"
)
_CLF: Final = re.compile(r"\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}")


def seconds(value: object, unit: str = "") -> float:
    """Read a time as seconds on a clock that all requests of a log share.

    Args:
        value: a number, a number as text, or a date and time as `_date` reads it (UTC if it names no zone);
            `WorkloadError` for anything else, and for numbers below 0 or after the year 9999.
        unit: unit of a number, a key of `UNITS`; "" to guess it by size, with seconds for small numbers.
    """
    number = _number(value)
    if number is None:
        return _date(value)
    if not unit:
        unit = next((name for name in ("ns", "us", "ms") if number >= UNITS[name] * _EPOCH_FLOOR_S), "s")
    at_s = number / UNITS[unit]
    if not 0.0 <= at_s < _LAST_S:  # refuses NaN, too
        raise WorkloadError(f"time is {excerpt_of(value)}, not a time in {unit} of the years 1970 to 9999")
    return at_s


def is_bare(value: object) -> bool:
    """Whether a value is a number too small for a date; without a unit `seconds` reads it as seconds."""
    number = _number(value)
    return number is not None and number < _EPOCH_FLOOR_S


def bare_unit(times: Sequence[float]) -> str:
    """Guess the unit, a key of `UNITS`, of times that count from any start, in any order.

    Clients that count from their start write fractions of seconds, or whole milliseconds (as Mooncake's
    traces do).  So fractions are seconds.  Whole numbers get the coarsest unit in which the mean gap is at
    most 32 s.
    """
    if not all(at.is_integer() for at in times):
        return "s"
    gap = mean_gap(times)
    return next((unit for unit, parts in UNITS.items() if gap <= parts * _LONGEST_GAP_S), "ns")


def doubt(times: Sequence[float], unit: str) -> str:
    """Return a message on how bare numbers (`times`, now seconds) were read; "" if only `unit` is likely."""
    gap = mean_gap(times)
    if unit != "s":
        slow = f"as seconds one request would come in {gap * UNITS[unit]:,.0f} s (--time-unit s if so)"
        return f"times are whole numbers without a unit, read as {unit}: {slow}"
    if gap > _LONGEST_GAP_S or (gap >= 1.0 and all(at.is_integer() for at in times)):
        fast = f"--time-unit ms if they are {1000.0 / gap:,.0f} a second"
        return f"times are numbers without a unit, read as s: one request in {gap:,.0f} s ({fast})"
    return ""


def mean_gap(times: Sequence[float]) -> float:
    """Return the mean gap between requests in seconds; 0 for fewer than two."""
    return (max(times) - min(times)) / (len(times) - 1) if len(times) > 1 else 0.0


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _date(value: object) -> float:
    """Read a date: about ISO 8601, as web servers or mails write it, {"seconds", "nanos"} or {"$date"}."""
    if isinstance(value, dict):
        if isinstance(value.get("seconds"), (int, str)):
            return seconds(value["seconds"], "s") + seconds(value.get("nanos", 0), "ns")
        if "$date" in value:
            return seconds(value["$date"])
    if not isinstance(value, str):
        raise WorkloadError(f"time is {excerpt_of(value)}, not a time")
    text = value.strip().strip("[]")
    try:
        return _moment(text).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        raise WorkloadError(f"time is {excerpt_of(value)}, not a time") from None


def _moment(text: str) -> datetime:
    found = _DATE.fullmatch(text)
    if found is not None:
        year, month, day, clock, fraction, zone = found.groups()
        zone = "+0000" if zone in (None, "Z", "UTC") else zone.replace(":", "").ljust(5, "0")
        clock = clock if clock.count(":") == 2 else f"{clock}:00"
        micro = f"{fraction or '0':0<6}"[:6]  # Python 3.10 reads only 6 digits, and no "Z"
        return datetime.fromisoformat(f"{year}-{month}-{day}T{clock}.{micro}{zone[:3]}:{zone[3:]}")
    if _CLF.fullmatch(text):
        return datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z")
    moment = parsedate_to_datetime(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
