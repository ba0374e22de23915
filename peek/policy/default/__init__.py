"""The policy `peek`, the library's default: its options, and the package of its parts.

This module is never compiled: a compiled dataclass would convert or refuse a value before `__post_init__` can
name it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from peek.policy.lanes import check_share
from peek.settings import require_lead, require_one_of, require_seconds, require_within

UNSHARED: Final = ("index", "arrival")

OBJECTIVES: Final = {"tail": 0.0, "balanced": 0.5, "mean": 1.0, "target": 0.0}
"""The objectives' places on the dial `mean_bias`; with "target" it orders requests that are not in time."""

TARGET_S: Final = 2.0
"""The default target of the objective "target", in seconds: how long a person waits for a first word."""


@dataclass(frozen=True)
class PeekOptions:
    """Settings of the policy `peek`.  `InvalidConfig` for a value that is out of range.

    Attributes:
        objective: "balanced"; "tail" or "mean", the ends of the dial; or "target", which brings as many first
            tokens as possible within `ttft_target_s`.
        mean_bias: the dial itself, from 0.0 (short tail) to 1.0 (short mean), rounded to steps of 1/8;
            docs/policies.md compares the places.  null means the objective's own place, 0.5 for balanced.
        ttft_target_s: target for the first token of a request that names none, in seconds.  With infinity
            only requests that name a target have one.  With null no request has one, whatever it names: any
            client can name a target.  With the objective "target" null means 2.0.
        unshared: "arrival" leaves a queue as it is if nothing in it is shared or cached; "index" orders it.
        fair_share: part of the work that goes to overdue requests while there are any, in (0, 1).  While
            requests are in time, the same part goes to requests in the order of the dial.
        grace_tokens: work that is admitted after a request arrives before it can be overdue, in tokens;
            infinity switches turns for overdue requests off.
        tenant_lead: tokens that a waiting tenant may be served ahead of the least served one; infinity
            switches turns among tenants off.
    """

    objective: str = "balanced"
    mean_bias: float | None = None
    ttft_target_s: float | None = None
    unshared: str = "index"
    fair_share: float = 0.15
    grace_tokens: float = 500_000.0
    tenant_lead: float = 32768.0

    def __post_init__(self) -> None:
        require_one_of("objective", self.objective, OBJECTIVES)
        if self.mean_bias is not None:
            require_within("mean_bias", self.mean_bias, 0.0, 1.0)
        if self.ttft_target_s is not None:
            require_seconds("ttft_target_s", self.ttft_target_s)
        require_one_of("unshared", self.unshared, UNSHARED)
        check_share(self.fair_share)
        require_lead("grace_tokens", self.grace_tokens)
        require_lead("tenant_lead", self.tenant_lead)

    @property
    def bias(self) -> float:
        """The place on the dial, from 0.0 to 1.0."""
        return OBJECTIVES[self.objective] if self.mean_bias is None else self.mean_bias

    @property
    def power(self) -> float:
        """The exponent of all factors of the index but the age: 2, 6 and 10 at dial 0, 0.5 and 1."""
        return 2.0 + 8.0 * self.bias

    @property
    def target_s(self) -> float | None:
        """The target of a request that names none, in seconds; None where no request has a target."""
        none_given = self.objective == "target" and self.ttft_target_s is None
        return TARGET_S if none_given else self.ttft_target_s
