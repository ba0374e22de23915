"""Policies by name: the library's own, and anybody's by `module:Class` or entry point.

A policy of the library's own is its module and one line in `BUILT_IN`.  One of somebody else's needs no line
here: `mypkg.mymodule:MyPolicy` names a class (or any callable) that makes an `AdmissionPolicy` when called
without arguments, and a distribution may give it a short name in the entry-point group `peek.policies`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from peek.errors import InvalidConfig
from peek.policy.base import AdmissionPolicy
from peek.policy.clpm import ClpmScheduler
from peek.policy.dfs_weight import DfsWeight
from peek.policy.fcfs import FirstCome
from peek.policy.hrrn import Hrrn
from peek.policy.lpm import LongestPrefix, ShortestPrefill
from peek.policy.priority_index import PriorityIndex
from peek.policy.response_ratio import ClusterResponseRatio

GROUP: Final = "peek.policies"
"""The entry-point group in which distributions name their policies."""

Factory = Callable[[], AdmissionPolicy]


def _unlimited_longest_prefix() -> AdmissionPolicy:
    return LongestPrefix(queue_limit=None)


def _group_major() -> AdmissionPolicy:
    return ClpmScheduler(group_major=True)


BUILT_IN: Final[dict[str, Factory]] = {
    "fcfs": FirstCome,
    "lpm": LongestPrefix,
    "lpm-nolimit": _unlimited_longest_prefix,
    "dfs-weight": DfsWeight,
    "hrrn": Hrrn,
    "spf": ShortestPrefill,
    "clpm": ClpmScheduler,
    "clpm+gm": _group_major,
    "index": PriorityIndex,
    "response-ratio": ClusterResponseRatio,
}
"""The library's own policies, each made with its defaults."""


def installed() -> dict[str, str]:
    """Policies of other distributions: name -> `module:Class`.  Reads metadata, imports nothing."""
    return {entry.name: entry.value for entry in entry_points(group=GROUP)}


def find(name: str) -> Factory:
    """What makes the policy called `name`; imports its module where that is not ours.

    Raises `InvalidConfig`: unknown name (it lists the known ones), no such module, nothing of that name in
    it, or something that cannot be called.  What a module raises while it is imported passes through.
    """
    factory = BUILT_IN.get(name)
    if factory is not None:
        return factory
    path = name if ":" in name else installed().get(name, "")
    if not path:
        known = ", ".join([*BUILT_IN, *installed(), "module:Class"])
        raise InvalidConfig(f"admission is {name!r}; valid: {known}")
    return _imported(path)


def make(name: str) -> AdmissionPolicy:
    """A new policy called `name`; errors as `find`, and `InvalidConfig` if what is made is no policy."""
    factory: Any = find(name)
    policy: object = factory()
    if not isinstance(policy, AdmissionPolicy):
        raise InvalidConfig(f"policy {name!r} makes a {type(policy).__name__}, not an AdmissionPolicy")
    return policy


def _imported(path: str) -> Factory:
    module_name, _, attribute = path.partition(":")
    try:
        found: Any = import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfig(f"policy {path!r} cannot be imported: {error}") from error
    if not callable(found):
        raise InvalidConfig(f"policy {path!r} is a {type(found).__name__}; need a class or a function")
    factory: Factory = found
    return factory
