"""Errors of the library, split by whose fault they are.

Every error of this library is a `PeekError`.  Each concrete one is also the built-in error that callers would
expect (`ValueError`, `KeyError`, ...), so code that knows nothing of `peek` still handles it.
"""

from __future__ import annotations


class PeekError(Exception):
    """Base of every error that `peek` raises on purpose."""


class InvalidKey(PeekError, ValueError):
    """The caller's key, or another value given with a request, has a wrong type or is out of range."""


class InvalidConfig(PeekError, ValueError):
    """The caller's configuration names an unknown option or an invalid value."""


class DuplicateRequest(PeekError, ValueError):
    """The caller added a request id that is already waiting."""


class UnknownRequest(PeekError, KeyError):
    """The caller named a request id that is not waiting."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


class UnknownReplica(PeekError, KeyError):
    """The caller named a replica that is not in the fleet."""

    __str__ = UnknownRequest.__str__


class QueueFull(PeekError, RuntimeError):
    """A fleet has no room for one more waiting request; the message says how many wait."""


class NoReplica(PeekError, RuntimeError):
    """A request had to be placed at once, and no replica accepts requests."""


class InvalidCache(PeekError, ValueError):
    """A `CacheView` gave an answer that no cache can give; the message names the call and the answer."""


class PolicyFault(PeekError, RuntimeError):
    """A policy raised, or returned something that is no order of the queue; the message names both."""


class PlannerBusy(PeekError, RuntimeError):
    """A planner or tree was called during another call, by a second thread, a policy or a view."""


class WorkloadError(PeekError, ValueError):
    """A trace file or workload definition cannot be read; the message names line and value."""


class MissingExtra(PeekError, ImportError):
    """An optional package that the caller's task needs is not installed."""


def needs(package: str, what: str, extra: str = "offline") -> MissingExtra:
    """Return the error for a missing optional package, which is part of an extra."""
    return MissingExtra(f"{what} needs {package}: pip install 'peek-kv[{extra}]'")


def a_kind(value: object) -> str:
    """Return the name of a value's type with its article, for a message: `an int`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


class EngineMismatch(PeekError, RuntimeError):
    """The engine at hand lacks a seam that an adapter needs; the message names the seam."""
