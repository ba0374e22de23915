"""The policy `peek`, the library's default: one index, and the parts that it is composed of.

Its settings stand here, in the one module of the package that is never compiled: a compiled dataclass would
convert or refuse a value before `__post_init__` can name it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from peek.policy.lanes import check_share
from peek.settings import require_lead, require_one_of, require_seconds, require_within

UNSHARED: Final = ("index", "arrival")

OBJECTIVES: Final = {"tail": 0.0, "balanced": 0.5, "mean": 1.0, "target": 0.0}
"""The place of each on the dial `mean_bias`; for "target" that of late requests, which only grow older."""

TARGET_S: Final = 2.0
"""The target of the objective `target`, where none is given: a person waits so long for a first word."""


@dataclass(frozen=True)
class PeekOptions:
    """Settings of the policy `peek`.  `InvalidConfig` for a value that is out of range.

    Attributes:
        objective: "balanced"; "tail" or "mean", the ends of the dial; or "target", as many as can be with
            their first token within `ttft_target_s`.
        mean_bias: the dial itself, from 0.0 (short tail) to 1.0 (short mean), docs/policies.md shows the
            front between; null is the objective's place, 0.5 for balanced.
        ttft_target_s: seconds within which the first token of a request is wanted that names no target of its
            own; infinity for none but those that are named, null for none at all.  Any client can name one,
            so where nobody has set this names count for nothing.  With the objective "target" null is 2.0.
        unshared: "arrival" leaves a queue alone in which nothing is shared or cached; "index" orders it, too.
        fair_share: part of the work that goes to overdue requests while there are any, and to those beside
            the requests in time, in (0, 1).
        grace_tokens: work in tokens that is admitted after a request has come before it can be overdue;
            infinity for no such turns.
        tenant_lead: tokens that a waiting tenant may be served ahead of the least served one; infinity for no
            turns among tenants.
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
        """The place on the dial."""
        return OBJECTIVES[self.objective] if self.mean_bias is None else self.mean_bias

    @property
    def power(self) -> float:
        """The exponent of all but the age: 2, 6 and 10 at the ends and in the middle of the dial."""
        return 2.0 + 8.0 * self.bias

    @property
    def target_s(self) -> float | None:
        """The target of a request that names none, in seconds; None where there are no targets."""
        none_given = self.objective == "target" and self.ttft_target_s is None
        return TARGET_S if none_given else self.ttft_target_s
