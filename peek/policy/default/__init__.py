"""The policy `peek`, the library's default: one index, and the parts that it is composed of.

Its settings stand here, in the one module of the package that is never compiled: a compiled dataclass would
convert or refuse a value before `__post_init__` can name it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from peek.policy.lanes import check_share
from peek.settings import require_lead, require_one_of, require_within

UNSHARED: Final = ("index", "arrival")


@dataclass(frozen=True)
class PeekOptions:
    """Settings of the policy `peek`.  `InvalidConfig` for a value that is out of range.

    Attributes:
        mean_bias: from 0.0 (short tail) to 1.0 (short mean); docs/policies.md shows the front between.
        unshared: "arrival" leaves a queue alone in which nothing is shared or cached; "index" orders it, too.
        fair_share: part of the work that goes to overdue requests while there are any, in (0, 1).
        grace_tokens: work in tokens that is admitted after a request has come before it can be overdue;
            infinity for no such turns.
        tenant_lead: tokens that a waiting tenant may be served ahead of the least served one; infinity for no
            turns among tenants.
    """

    mean_bias: float = 0.0
    unshared: str = "index"
    fair_share: float = 0.15
    grace_tokens: float = 500_000.0
    tenant_lead: float = 32768.0

    def __post_init__(self) -> None:
        require_within("mean_bias", self.mean_bias, 0.0, 1.0)
        require_one_of("unshared", self.unshared, UNSHARED)
        check_share(self.fair_share)
        require_lead("grace_tokens", self.grace_tokens)
        require_lead("tenant_lead", self.tenant_lead)
