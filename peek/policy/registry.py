"""Policies by name: the library's own, and policies of other authors by `module:Class` or entry point.

A policy of the library is its module and one line in `BUILT_IN`.  Another author's policy needs no line here:
`mypkg.mymodule:MyPolicy` names a class (or any callable) that makes an `AdmissionPolicy`.  A distribution may
give it a short name in the entry-point group `peek.policies`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Final

from peek.errors import InvalidConfig, a_kind
from peek.policy.base import AdmissionPolicy, NoOptions
from peek.policy.clpm import ClpmScheduler
from peek.policy.default.policy import PeekPolicy
from peek.policy.stock import DfsWeight, FirstCome, Hrrn, LongestPrefix, ShortestPrefill

GROUP: Final = "peek.policies"
"""The entry-point group in which distributions name their policies."""

Factory = Callable[..., AdmissionPolicy]


BUILT_IN: Final[dict[str, Factory]] = {
    "peek": PeekPolicy,
    "fcfs": FirstCome,
    "lpm": LongestPrefix,
    "lpm-nolimit": partial(LongestPrefix, queue_limit=None),
    "dfs-weight": DfsWeight,
    "hrrn": Hrrn,
    "hrrn-limit": partial(Hrrn, queue_limit=128),
    "spf": ShortestPrefill,
    "clpm": ClpmScheduler,
    "clpm+gm": partial(ClpmScheduler, group_major=True),
}
"""The library's own policies."""


@contextmanager
def naming(policy: str, what: str = "") -> Iterator[None]:
    """Turn any error of a policy's code into an `InvalidConfig` that names it; `InvalidConfig` passes."""
    try:
        yield
    except InvalidConfig:
        raise
    except Exception as error:
        told = str(error) if isinstance(error, (ImportError, AttributeError)) else ""
        told = told or f"{type(error).__name__}: {error}"
        raise InvalidConfig(f"policy {policy!r}{what}: {told}") from error


def installed() -> dict[str, str]:
    """Policies of other distributions: name -> `module:Class`.  Reads metadata, imports nothing."""
    from importlib.metadata import entry_points  # a third of the time to import `peek`

    return {entry.name: entry.value for entry in entry_points(group=GROUP)}


def find(name: str) -> Factory:
    """Return the class or callable that makes the policy `name`; imports another author's module.

    Raises `InvalidConfig` for an unknown name (the message lists the known ones), a missing module or
    attribute, a module that raises while it is imported, or an object that cannot be called.
    """
    factory = BUILT_IN.get(name)
    if factory is not None:
        return factory
    path = name if ":" in name else installed().get(name, "")
    if not path:
        known = ", ".join([*BUILT_IN, *installed(), "module:Class"])
        raise InvalidConfig(f"policy is {name!r}; valid: {known}")
    return _imported(path)


def options_of(name: str) -> Any:
    """The options class of the policy called `name`; `NoOptions` if it has none.  Errors as `find`."""
    return getattr(find(name), "Options", NoOptions)


def make(name: str, options: object = None) -> AdmissionPolicy:
    """Make a new policy called `name`.

    Errors as `find`, and `InvalidConfig` if the result is no policy.

    Args:
        options: an instance of its `Options`, None for the defaults; ignored if the policy has no `Options`.
    """
    factory: Any = find(name)
    has_none = getattr(factory, "Options", NoOptions) is NoOptions
    with naming(name):
        policy: object = factory() if has_none else factory(options=options)
    if not isinstance(policy, AdmissionPolicy):
        raise InvalidConfig(f"policy {name!r} makes {a_kind(policy)}, not an AdmissionPolicy")
    return policy


def _imported(path: str) -> Factory:
    module_name, _, attribute = path.partition(":")
    with naming(path, " cannot be imported"):
        found: Any = import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    if not callable(found):
        raise InvalidConfig(f"policy {path!r} is {a_kind(found)}; need a class or a function")
    factory: Factory = found
    return factory
