"""Pioneers ahead of their siblings, for engines that share a prefix only when its prefill has ended.

On such an engine (SGLang) the second prompt of a group that starts with the first computes the prefix once
more.  If the first prompt of every group comes a few places early, among the last prompts of the groups
before it, its prefix is in the cache when the siblings come.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from peek.errors import InvalidConfig
from peek.offline.shape import BatchShape, Ints, places


class Engine(NamedTuple):
    """How an engine shares prefixes.

    Attributes:
        spacing: places that pioneers are put ahead; at least as many as prompts are in prefill at once.
        in_flight: prompts taken to start before one's prefix can be hit, when expected hits are simulated.
    """

    spacing: int
    in_flight: int


ENGINES: Final = {"vllm": Engine(0, 0), "sglang": Engine(32, 16)}


def engine_named(name: str) -> Engine:
    """An engine by its name; `InvalidConfig` for an unknown one."""
    if name not in ENGINES:
        raise InvalidConfig(f"engine {name!r} is unknown; valid: {', '.join(ENGINES)}")
    return ENGINES[name]


def pioneers_ahead(shape: BatchShape, order: Ints, spacing: int) -> Ints:
    """The depth-first `order` of `shape` with every pioneer `spacing` places earlier.

    A pioneer is the first prompt that touches a shared node.  The others keep their order.  O(n log n).
    """
    if not spacing:
        return order
    shared = (shape.count >= 2) & (shape.lengths > 0)
    is_pioneer = np.zeros(len(order), bool)
    is_pioneer[places(shape)[shared]] = True
    at = np.arange(len(order))
    key = 2 * np.where(is_pioneer, at - spacing, at) + ~is_pioneer
    return order[np.argsort(key, kind="stable")]
