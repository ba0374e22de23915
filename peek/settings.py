"""Seven checks of settings; their errors name the setting, the value and what is valid.

Each setting is checked in one place, next to its declaration, by one of these functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, isfinite

from peek.errors import InvalidConfig


def require_number(name: str, value: object, below: float) -> None:
    """Raise `InvalidConfig` unless `value` is a finite number above 0 and below `below`."""
    number = _finite(value)
    if number is None or not 0.0 < number < below:
        raise InvalidConfig(f"{name} is {value!r}; need a number above 0 and below {below:g}")


def require_within(name: str, value: object, least: float, most: float) -> None:
    """Raise `InvalidConfig` unless `value` is a number from `least` to `most`, both included."""
    number = _finite(value)
    if number is None or not least <= number <= most:
        raise InvalidConfig(f"{name} is {value!r}; need a number from {least:g} to {most:g}")


def require_whole(name: str, value: object, least: int, most: int) -> None:
    """Raise `InvalidConfig` unless `value` is a whole number from `least` to `most`, both included."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidConfig(f"{name} is {value!r}; need a whole number from {least} to {most}")


def require_lead(name: str, value: object) -> None:
    """Raise `InvalidConfig` unless `value` is a number from 0 on, or infinity."""
    number = _finite(value)
    if value != inf and (number is None or number < 0.0):
        raise InvalidConfig(f"{name} is {value!r}; need a number from 0, or infinity")


def require_seconds(name: str, value: object) -> None:
    """Raise `InvalidConfig` unless `value` is a number above 0, or infinity."""
    number = _finite(value)
    if value != inf and (number is None or number <= 0.0):
        raise InvalidConfig(f"{name} is {value!r}; need a number above 0, or infinity")


def require_one_of(name: str, value: object, valid: Iterable[str]) -> None:
    """Raise `InvalidConfig` unless `value` is one of `valid`."""
    names = list(valid)
    if value not in names:
        raise InvalidConfig(f"{name} is {value!r}; valid: {', '.join(names)}")


def require_flag(name: str, value: object) -> None:
    """Raise `InvalidConfig` unless `value` is a bool."""
    if not isinstance(value, bool):
        raise InvalidConfig(f"{name} is {value!r}; need true or false")


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:  # an integer too large for a float
        return None
