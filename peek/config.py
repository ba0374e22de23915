"""From words to objects: policy labels, environment, JSON.

The only module where strings become policies.  A label is the paper's (`clpm+gm+dl+pe`), or the name
of a baseline, or `peek` for the library's own default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any

from peek.errors import InvalidConfig
from peek.eviction.base import EvictionPolicy
from peek.eviction.demand import MODES, DemandEviction
from peek.policy.base import AdmissionPolicy
from peek.policy.clpm import ClpmScheduler
from peek.policy.dfs_weight import DfsWeight
from peek.policy.fcfs import FirstCome
from peek.policy.hrrn import Hrrn
from peek.policy.lanes import CycleLanes, LaneController, Lanes
from peek.policy.lpm import LongestPrefix, ShortestPrefill
from peek.policy.response_ratio import ClusterResponseRatio

ADMISSIONS = ("fcfs", "lpm", "lpm-nolimit", "dfs-weight", "hrrn", "spf", "clpm", "clpm+gm", "peek")
LANES = ("none", "cycle", "work")
EVICTIONS = ("lru", *MODES)


def _one_of(name: str, value: object, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise InvalidConfig(f"{name} is {value!r}; valid: {', '.join(valid)}")


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return isfinite(value)
    except OverflowError:  # an integer beyond floats
        return False


def _number(name: str, value: object, low: float, high: float) -> None:
    """A finite number strictly between `low` and `high`."""
    if not _is_finite(value) or not low < value < high:  # type: ignore[operator]
        raise InvalidConfig(f"{name} is {value!r}; need a number above {low} and below {high}")


@dataclass(frozen=True)
class PeekConfig:
    """Settings of one `Planner`; the defaults are the policy `peek`.

    Attributes:
        admission: one of `ADMISSIONS`.
        exponent: how much a long wait counts in `peek`'s response ratio.
        lanes: "none", "cycle" (published: clocks per cycle), "work" (charged by uncached tokens).
        fair_share: the fair lane's share (the paper's 1 - alpha), in (0, 1).
        dynamic_share: let the share follow the queue.
        slo_s: seconds of waiting at which a singleton's age pressure is full.
        eviction: "lru" leaves eviction to the engine, else a mode of `DemandEviction`.
        in_flight_gate: siblings of a prefill under way wait for it; for engines that show a prefix
            to others only when its prefill ends.  Adapters set it.
        strict: adapters re-raise internal errors instead of falling back to stock order.
    """

    admission: str = "peek"
    lanes: str = "work"
    fair_share: float = 0.05
    dynamic_share: bool = False
    slo_s: float = 2.0
    eviction: str = "lru"
    in_flight_gate: bool = False
    strict: bool = False
    exponent: float = 5.0

    def __post_init__(self) -> None:
        _one_of("admission", self.admission, ADMISSIONS)
        _one_of("lanes", self.lanes, LANES)
        _one_of("eviction", self.eviction, EVICTIONS)
        _number("fair_share", self.fair_share, 0.0, 1.0)
        _number("slo_s", self.slo_s, 0.0, float("inf"))
        _number("exponent", self.exponent, 0.0, 64.0)
        for name in ("dynamic_share", "in_flight_gate", "strict"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidConfig(f"{name} is {getattr(self, name)!r}; need true or false")

    @classmethod
    def from_label(cls, label: str) -> PeekConfig:
        """The preset behind a policy label; `InvalidConfig` lists the valid ones."""
        preset = PRESETS.get(label)
        if preset is None:
            raise InvalidConfig(f"policy {label!r} is unknown; valid: {', '.join(PRESETS)}")
        return preset

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> PeekConfig:
        """From JSON-like options; `policy` names the preset that the others change."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(options) - set(known) - {"policy"})
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

    def build_policy(self) -> AdmissionPolicy:
        """A new policy object."""
        match self.admission:
            case "fcfs":
                return FirstCome()
            case "lpm":
                return LongestPrefix()
            case "lpm-nolimit":
                return LongestPrefix(queue_limit=None)
            case "dfs-weight":
                return DfsWeight()
            case "hrrn":
                return Hrrn()
            case "spf":
                return ShortestPrefill()
            case "clpm":
                return ClpmScheduler()
            case "clpm+gm":
                return ClpmScheduler(group_major=True)
        return ClusterResponseRatio(self.exponent)

    def build_lanes(self) -> Lanes | None:
        """New lanes with clocks at zero, or None."""
        if self.lanes == "none":
            return None
        kind = CycleLanes if self.lanes == "cycle" else LaneController
        return kind(self.fair_share, self.dynamic_share, self.slo_s)

    def build_eviction(self) -> EvictionPolicy | None:
        """The demand eviction, or None for the engine's own."""
        return None if self.eviction == "lru" else DemandEviction(self.eviction)


def _published(admission: str, lanes: str = "none", eviction: str = "lru") -> PeekConfig:
    """The paper's policies and the baselines: cache lane 0.7 (alpha), dynamic with the lanes."""
    return PeekConfig(admission, lanes, fair_share=0.3, dynamic_share=lanes != "none", eviction=eviction)


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
    "peek": PeekConfig(),
}
"""Every policy label; a missing eviction part means `lru`."""

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
    _one_of("PEEK_ONLINE_EVICTION_MODE", mode, MODES)
    try:
        cache_share = float(share)
    except ValueError:
        raise InvalidConfig(f"PEEK_ONLINE_CLPM_BIGLANE_SHARE is {share!r}, not a number") from None
    _number("PEEK_ONLINE_CLPM_BIGLANE_SHARE", cache_share, 0.0, 1.0)
    return PeekConfig(
        admission=("clpm+gm" if group_major else "clpm") if scheduler else "fcfs",
        lanes="cycle" if lanes else "none",
        fair_share=1.0 - cache_share,
        dynamic_share=dynamic and lanes,
        eviction=mode if _flag(environ, "PEEK_ONLINE_EVICTION") else "lru",
    )


def _flag(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise InvalidConfig(f"{name} is {value!r}; valid: {', '.join(_TRUE + _FALSE[1:])}")
