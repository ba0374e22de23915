"""From words to settings: policy labels, environment, JSON.

A label is the paper's (`clpm+gm+dl+pe`), or the name
of a baseline, or `peek` for the library's own default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any, Final

from peek.errors import InvalidConfig
from peek.eviction.base import EvictionPolicy
from peek.eviction.demand import MODES, DemandEviction
from peek.policy import registry
from peek.policy.base import AdmissionPolicy
from peek.policy.lanes import CycleLanes, LaneController, Lanes, check_share, check_slo
from peek.policy.overdue import OverdueLane, check_grace
from peek.policy.priority_index import PriorityIndex, check_mean_bias, check_unshared
from peek.policy.response_ratio import ClusterResponseRatio, check_exponent
from peek.policy.tenants import TenantAccounts, check_tenant_lead
from peek.settings import require_flag, require_number, require_one_of

ADMISSIONS = tuple(registry.BUILT_IN)
LANES = ("none", "cycle", "work", "overdue")
EVICTIONS = ("lru", *MODES)

_ADAPTERS_OWN: Final = ("in_flight_gate", "strict")
"""What looks like an option and is a fact about the engine or its driver: an argument of `Planner`."""


@dataclass(frozen=True)
class PeekConfig:
    """Settings of one `Planner`; the defaults are the policy `peek`.

    Attributes:
        admission: one of `ADMISSIONS`, `module:Class`, or a name in the entry-point group `peek.policies`.
        exponent: for `response-ratio`, how much a long wait counts.
        mean_bias: for `index`, from 0.0 (short tail) to 1.0 (short mean).
        unshared: for `index`, "arrival" leaves a queue alone in which nothing is shared or cached.
        lanes: "none", "cycle" (published: clocks per cycle), "work" (charged by uncached tokens), "overdue"
            (for those whom arrival order would have served by now).
        fair_share: the fair lane's share (the paper's 1 - alpha), in (0, 1).
        dynamic_share: let the share follow the queue.
        slo_s: seconds of waiting at which a singleton's age pressure is full.
        tenant_lead: tokens that a waiting tenant may be served ahead of the least served one; infinity for no
            turns among tenants.  In JSON a number larger than any account will do.
        grace_tokens: for the lanes "overdue", the work in tokens that is admitted after a request has come
            before it can be overdue.
        eviction: "lru" leaves eviction to the engine, else a mode of `DemandEviction`.
    """

    admission: str = "index"
    lanes: str = "overdue"
    fair_share: float = 0.15
    dynamic_share: bool = False
    slo_s: float = 2.0
    eviction: str = "lru"
    exponent: float = 5.0
    mean_bias: float = 0.0
    unshared: str = "index"
    tenant_lead: float = 32768.0
    grace_tokens: float = 500_000.0

    def __post_init__(self) -> None:
        if not isinstance(self.admission, str):
            raise InvalidConfig(
                f"admission is {self.admission!r}; valid: {', '.join(ADMISSIONS)}, module:Class"
            )
        registry.find(self.admission)
        require_one_of("lanes", self.lanes, LANES)
        require_one_of("eviction", self.eviction, EVICTIONS)
        check_share(self.fair_share)
        check_slo(self.slo_s)
        check_exponent(self.exponent)
        check_mean_bias(self.mean_bias)
        check_unshared(self.unshared)
        check_tenant_lead(self.tenant_lead)
        check_grace(self.grace_tokens)
        require_flag("dynamic_share", self.dynamic_share)

    @classmethod
    def from_label(cls, label: str) -> PeekConfig:
        """The settings behind a policy label.

        A label is one of `PRESETS`, or an admission policy by name: one of `ADMISSIONS`, `module:Class`, or
        an entry point in the group `peek.policies`.  Behind a `+` follows the eviction: `lru`, the engine's
        own, or `pe`, demand eviction; without one it is `lru`.  A policy that is no preset has no lanes.

        Raises `InvalidConfig`, which lists the valid ones.
        """
        preset = PRESETS.get(label)
        if preset is not None:
            return preset
        name, _, ending = label.rpartition("+")
        if ending not in _EVICTION_ENDINGS:
            name, ending = label, "lru"
        base = None if name.endswith(("+lru", "+pe")) else PRESETS.get(name)
        if base is None:
            if name not in ADMISSIONS and ":" not in name and name not in registry.installed():
                known = ", ".join([*PRESETS, *registry.installed(), "module:Class"])
                raise InvalidConfig(f"policy {label!r} is unknown; valid: {known}")
            base = _published(name)
        return replace(base, eviction=_EVICTION_ENDINGS[ending])

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> PeekConfig:
        """From JSON-like options; `policy` names the label that the others change."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(options) - set(known) - {"policy"})
        if unknown and unknown[0] in _ADAPTERS_OWN:
            raise InvalidConfig(
                f"option {unknown[0]!r} is not a setting of a policy: it is an argument of Planner"
            )
        if unknown:
            raise InvalidConfig(f"option {unknown[0]!r} is unknown; valid: {', '.join(['policy', *known])}")
        base = cls.from_label(str(options["policy"])) if "policy" in options else cls()
        return replace(base, **{name: value for name, value in options.items() if name != "policy"})

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> PeekConfig:
        """From `PEEK_POLICY` or the paper's `PEEK_ONLINE_*` variables; others are not looked at.

        Nothing set gives the stock configuration (`is_stock`).  An unknown `PEEK_ONLINE_*` name is
        an error, since a typing mistake would otherwise silently measure the stock engine.
        """
        unknown = [name for name in environ if name.startswith("PEEK_ONLINE_") and name not in _VARIABLES]
        if unknown:
            raise InvalidConfig(f"variable {unknown[0]} is unknown; valid: {', '.join(_VARIABLES)}")
        label = environ.get("PEEK_POLICY", "")
        if label:
            clash = [name for name in _VARIABLES if name in environ]
            if clash:
                raise InvalidConfig(f"PEEK_POLICY and {clash[0]} are both set; set one of them")
            return cls.from_label(label)
        return _from_flags(environ)

    @property
    def is_stock(self) -> bool:
        """True if the engine's own order and eviction are left alone."""
        return self.admission == "fcfs" and self.lanes == "none" and self.eviction == "lru"

    @property
    def waits_for_prefills(self) -> bool:
        """Whether the policy makes use of the in-flight gate on engines that show a prefix late.

        The published policies and the baselines do not: they are kept as they are elsewhere.
        """
        return self.admission in ("index", "response-ratio") or self.admission not in ADMISSIONS

    def build_policy(self) -> AdmissionPolicy:
        """A new policy object."""
        if self.admission == "response-ratio":
            return ClusterResponseRatio(self.exponent)
        if self.admission == "index":
            return PriorityIndex(self.mean_bias, self.unshared)
        return registry.make(self.admission)

    def build_lanes(self) -> Lanes | None:
        """New lanes with clocks at zero, or None."""
        if self.lanes == "none":
            return None
        if self.lanes == "overdue":
            return OverdueLane(self.fair_share, self.grace_tokens)
        kind = CycleLanes if self.lanes == "cycle" else LaneController
        return kind(self.fair_share, self.dynamic_share, self.slo_s)

    def build_tenants(self) -> TenantAccounts | None:
        """Accounts at zero, or None for no turns among tenants."""
        return None if self.tenant_lead == inf else TenantAccounts(self.tenant_lead)

    def build_eviction(self) -> EvictionPolicy | None:
        """The demand eviction, or None for the engine's own."""
        return None if self.eviction == "lru" else DemandEviction(self.eviction)


def _published(admission: str, lanes: str = "none", eviction: str = "lru") -> PeekConfig:
    """The paper's policies and the baselines: cache lane 0.7 (alpha), dynamic with the lanes; no tenants."""
    return PeekConfig(
        admission,
        lanes,
        fair_share=0.3,
        dynamic_share=lanes != "none",
        eviction=eviction,
        tenant_lead=inf,
    )


PRESETS: dict[str, PeekConfig] = {
    "fcfs+lru": _published("fcfs"),
    "lpm+lru": _published("lpm"),
    "lpm-nolimit+lru": _published("lpm-nolimit"),
    "dfs-weight+lru": _published("dfs-weight"),
    "hrrn+lru": _published("hrrn"),
    "spf+lru": _published("spf"),
    "lpm+pe": _published("lpm", eviction="cluster"),
    "fcfs+pe": _published("fcfs", eviction="cluster"),
    "clpm": _published("clpm"),
    "clpm+gm": _published("clpm+gm"),
    "clpm+gm+dl": _published("clpm+gm", "cycle"),
    "clpm+gm+pe": _published("clpm+gm", eviction="cluster"),
    "clpm+gm+dl+pe": _published("clpm+gm", "cycle", "cluster"),
    "response-ratio": PeekConfig("response-ratio", "work", fair_share=0.05),
    "peek": PeekConfig(),
}
"""The paper's policies, the baselines and the library's own; `PeekConfig.from_label` knows more."""

_EVICTION_ENDINGS: Final = {"lru": "lru", "pe": "cluster"}

_VARIABLES = (
    "PEEK_ONLINE_SCHEDULER",
    "PEEK_ONLINE_EVICTION",
    "PEEK_ONLINE_CLPM",
    "PEEK_ONLINE_CLPM_GROUP_MAJOR",
    "PEEK_ONLINE_CLPM_DYNAMIC_LANE",
    "PEEK_ONLINE_CLPM_BIGLANE_SHARE",
    "PEEK_ONLINE_EVICTION_MODE",
)
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("", "0", "false", "no", "off")


def _from_flags(environ: Mapping[str, str]) -> PeekConfig:
    lanes = _flag(environ, "PEEK_ONLINE_CLPM")
    scheduler = _flag(environ, "PEEK_ONLINE_SCHEDULER") or lanes
    group_major = _flag(environ, "PEEK_ONLINE_CLPM_GROUP_MAJOR")
    dynamic = _flag(environ, "PEEK_ONLINE_CLPM_DYNAMIC_LANE")
    share = environ.get("PEEK_ONLINE_CLPM_BIGLANE_SHARE", "0.7")
    mode = environ.get("PEEK_ONLINE_EVICTION_MODE", "cluster")
    require_one_of("PEEK_ONLINE_EVICTION_MODE", mode, MODES)
    try:
        cache_share = float(share)
    except ValueError:
        raise InvalidConfig(f"PEEK_ONLINE_CLPM_BIGLANE_SHARE is {share!r}, not a number") from None
    require_number("PEEK_ONLINE_CLPM_BIGLANE_SHARE", cache_share, 0.0, 1.0)
    return PeekConfig(
        admission=("clpm+gm" if group_major else "clpm") if scheduler else "fcfs",
        lanes="cycle" if lanes else "none",
        fair_share=1.0 - cache_share,
        dynamic_share=dynamic and lanes,
        eviction=mode if _flag(environ, "PEEK_ONLINE_EVICTION") else "lru",
        tenant_lead=inf,
    )


def _flag(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise InvalidConfig(f"{name} is {value!r}; valid: {', '.join(_TRUE + _FALSE[1:])}")
