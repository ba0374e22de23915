"""Every policy of the library does what `peek.testing.check_policy` demands of anybody's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from peek import (
    AdmissionPolicy,
    ClpmScheduler,
    FirstCome,
    Hrrn,
    LongestPrefix,
)
from peek.policy.registry import BUILT_IN
from peek.testing import check_policy

OTHER_SETTINGS: dict[str, Callable[[], AdmissionPolicy]] = {
    "lpm-4": partial(LongestPrefix, queue_limit=4),
    "hrrn-4": partial(Hrrn, queue_limit=4),
    "clpm-1-0": partial(ClpmScheduler, theta=1, tau=0),
}

POLICIES = BUILT_IN | OTHER_SETTINGS
"""Those of the registry as they come by name, and some with other settings."""
EXAMPLES = 40
"""Queues, and histories, for each policy; there are more than a dozen."""


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_does_what_is_demanded(name: str) -> None:
    check_policy(POLICIES[name], examples=EXAMPLES, stateful=name == "peek")  # which learns from answers


def test_arrival_order_has_the_bound_it_states() -> None:
    check_policy(FirstCome, bound=lambda ahead_s, largest_s: ahead_s, examples=EXAMPLES)
