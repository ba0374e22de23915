"""Settings of one planner, and their one text form.

A `PeekConfig` is a policy with its options, an eviction, and lanes if a published policy has them.  Three
spellings mean the same wherever a policy is named (environment, engine options, command line, docs):

    peek:mean_bias=0.5,tenant_lead=1e5          text: a label, `:`, options; `str(config)` gives it back
    {"policy": "peek", "mean_bias": 0.5}        JSON: `from_dict`
    PeekConfig("peek", {"mean_bias": 0.5})      Python

A label is the paper's (`clpm+gm+dl+pe`), the name of a baseline, `peek` for the library's own default, or
`module:Class`.  Each option is declared in one place, the dataclass that holds it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from math import inf
from typing import Any, Final

from peek.errors import InvalidConfig, a_kind
from peek.eviction.demand import MODES, DemandEviction, EvictionPolicy
from peek.policy import registry
from peek.policy.base import AdmissionPolicy
from peek.policy.lanes import CycleLanes, LaneController, Lanes, check_share, check_slo
from peek.settings import require_flag, require_number, require_one_of

POLICIES = tuple(registry.BUILT_IN)
LANES = ("cycle", "work")
EVICTIONS = ("lru", *MODES)

_ADAPTERS_OWN: Final = ("in_flight_gate", "strict")
"""Names that look like options but state facts about engine or driver; they are arguments of `Planner`."""


@dataclass(frozen=True)
class LaneOptions:
    """A second lane beside the policy's order.

    Attributes:
        lanes: "cycle" (the published algorithm: clocks that start anew every cycle) or "work" (charged by the
            uncached tokens that were really admitted).
        fair_share: the fair lane's share (the paper's 1 - alpha), in (0, 1).
        dynamic_share: let the share follow the queue.
        slo_s: seconds that a singleton has waited when its age pressure is 1.
    """

    lanes: str
    fair_share: float = 0.3
    dynamic_share: bool = False
    slo_s: float = 2.0

    def __post_init__(self) -> None:
        require_one_of("lanes", self.lanes, ("none", *LANES))
        check_share(self.fair_share)
        require_flag("dynamic_share", self.dynamic_share)
        check_slo(self.slo_s)

    def build(self) -> Lanes:
        """Make new lanes with clocks at zero."""
        kind = CycleLanes if self.lanes == "cycle" else LaneController
        return kind(self.fair_share, self.dynamic_share, self.slo_s)


@dataclass(frozen=True)
class PeekConfig:
    """Settings of one `Planner`; the defaults are the policy `peek`.

    Attributes:
        policy: one of `POLICIES`, `module:Class`, or a name in the entry-point group `peek.policies`.
        options: an instance of the policy's `Options`; a mapping of option names to values is made one.
        lanes: what merges the policy's order with a fair one; None for none.
        eviction: "lru" leaves eviction to the engine; any other value is a mode of `DemandEviction`.

    Raises `InvalidConfig` for an unknown name or an invalid value; the message lists what is valid.
    """

    policy: str = "peek"
    options: Any = None
    lanes: LaneOptions | None = None
    eviction: str = "lru"

    def __post_init__(self) -> None:
        if not isinstance(self.policy, str):
            raise InvalidConfig(f"policy is {self.policy!r}; valid: {', '.join(POLICIES)}, module:Class")
        kind = registry.options_of(self.policy)
        if self.options is None or isinstance(self.options, Mapping):
            options = _made(self.policy, kind, {} if self.options is None else self.options)
            object.__setattr__(self, "options", options)
        elif not isinstance(self.options, kind):
            raise InvalidConfig(
                f"options is {a_kind(self.options)}; policy {self.policy!r} needs {kind.__name__}"
            )
        if self.lanes is not None:
            if not isinstance(self.lanes, LaneOptions):
                raise InvalidConfig(f"lanes is {self.lanes!r}; need LaneOptions, or None")
            own = [field.name for field in fields(self.options) if field.name in _LANE_NAMES]
            if self.lanes.lanes == "none":
                object.__setattr__(self, "lanes", None)
            elif own:
                raise InvalidConfig(f"policy {self.policy!r} takes no lanes: it has a {own[0]!r} itself")
        require_one_of("eviction", self.eviction, EVICTIONS)

    # -- spellings ---------------------------------------------------------------------------------

    @classmethod
    def from_label(cls, label: str) -> PeekConfig:
        """Make the settings that a text means, `LABEL` or `LABEL:option=value,...`.

        A label is one of `PRESETS`, or a policy by name: one of `POLICIES`, `module:Class`, or an entry point
        in the group `peek.policies`.  A policy's name may be followed by `+lru` (the engine's own eviction,
        the default) or `+pe` (demand eviction).  The options are those of `from_dict`.

        >>> PeekConfig.from_label("peek:mean_bias=0.5").options.mean_bias
        0.5

        Raises `InvalidConfig`, which lists the valid labels.
        """
        head, _, tail = label.rpartition(":")
        if head and ("=" in tail or head in PRESETS):
            return cls.from_dict({"policy": head, **_parsed_options(label, tail)})
        preset = PRESETS.get(label)
        if preset is not None:
            return preset
        name, _, ending = label.rpartition("+")
        if ending not in _EVICTION_ENDINGS:
            name, ending = label, "lru"
        base = None if name.endswith(("+lru", "+pe")) else PRESETS.get(name)
        if base is None:
            if name not in POLICIES and ":" not in name and name not in registry.installed():
                known = ", ".join([*PRESETS, *registry.installed(), "module:Class"])
                raise InvalidConfig(f"policy {label!r} is unknown; valid: {known}")
            base = cls(name)
        return replace(base, eviction=_EVICTION_ENDINGS[ending])

    @classmethod
    def from_dict(cls, options: Mapping[str, Any], *, beside: Sequence[str] = ()) -> PeekConfig:
        """Make the settings from JSON-like options; `policy` names the label that the other options change.

        The other options are `eviction`, those of `LaneOptions`, and those of the policy.  Raises
        `InvalidConfig` for an option that this policy does not have.  The message lists the options that it
        has, and those in `beside`, which the caller handles itself.
        """
        label = options.get("policy", "peek")
        if not isinstance(label, str):
            raise InvalidConfig(f"policy is {label!r}; need a text")
        base = cls.from_label(label)
        given = {name: value for name, value in options.items() if name != "policy"}
        own = {field.name for field in fields(base.options)}
        eviction = given.pop("eviction", base.eviction)
        policy_options = {name: given.pop(name) for name in list(given) if name in own}
        lane_options = {name: given.pop(name) for name in list(given) if name in _LANE_NAMES}
        if given:
            raise InvalidConfig(_unknown(base, next(iter(given)), beside))
        lanes = base.lanes
        if lane_options:
            if "fair_share" in own or (lanes is None and "lanes" not in lane_options):
                raise InvalidConfig(_unknown(base, next(iter(lane_options)), beside))
            lanes = LaneOptions(**lane_options) if lanes is None else replace(lanes, **lane_options)
        with registry.naming(base.policy):
            policy_options = replace(base.options, **policy_options)
        return cls(base.policy, policy_options, lanes, eviction)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> PeekConfig:
        """Make the settings from `PEEK_POLICY` or the paper's `PEEK_ONLINE_*` variables; others are ignored.

        If none of these is set, it is the stock configuration (`is_stock`).  An unknown `PEEK_ONLINE_*` name
        is an error, because with a typing mistake one would otherwise measure the stock engine unawares.
        """
        unknown = [name for name in environ if name.startswith("PEEK_ONLINE_") and name not in VARIABLES]
        if unknown:
            raise InvalidConfig(f"variable {unknown[0]} is unknown; valid: {', '.join(VARIABLES)}")
        label = environ.get("PEEK_POLICY", "")
        if label:
            clash = [name for name in VARIABLES if name in environ]
            if clash:
                raise InvalidConfig(f"PEEK_POLICY and {clash[0]} are both set; set one of them")
            try:
                return cls.from_label(label)
            except InvalidConfig as error:
                raise InvalidConfig(f"PEEK_POLICY: {error}") from None
        return _from_flags(environ)

    def as_dict(self) -> dict[str, Any]:
        """Every option in force, by name; `from_dict` reads it back."""
        lanes = {} if self.lanes is None else vars(self.lanes)
        return {"policy": self.policy, **asdict(self.options), **lanes, "eviction": self.eviction}

    def __str__(self) -> str:
        """The text form: `from_label(str(config)) == config`."""
        for label, preset in PRESETS.items():
            if preset == self:
                return label
        label = self.policy if self.eviction != "cluster" else f"{self.policy}+pe"
        base = PeekConfig.from_label(label).as_dict()
        if self.lanes is not None and "lanes" not in base:
            base |= {**vars(LaneOptions(self.lanes.lanes)), "lanes": None}
        changed = {name: value for name, value in self.as_dict().items() if base[name] != value}
        if not changed:
            return label
        return f"{label}:{','.join(f'{name}={_inside_label(value)}' for name, value in changed.items())}"

    # -- building the parts ------------------------------------------------------------------------

    @property
    def is_stock(self) -> bool:
        """Whether the engine keeps its own order and eviction."""
        return self.policy == "fcfs" and self.lanes is None and self.eviction == "lru"

    @property
    def sees_prefills(self) -> bool:
        """Whether the policy uses the in-flight gate on engines that show a prefix late."""
        return self.build_policy().sees_prefills

    def build_policy(self) -> AdmissionPolicy:
        """Make a new policy object."""
        return registry.make(self.policy, self.options)

    def build_lanes(self) -> Lanes | None:
        """Make new lanes with clocks at zero; None if no lanes are configured."""
        return None if self.lanes is None else self.lanes.build()

    def build_eviction(self) -> EvictionPolicy | None:
        """Make the demand eviction; None for the engine's own."""
        return None if self.eviction == "lru" else DemandEviction(self.eviction)


_LANE_NAMES: Final = tuple(field.name for field in fields(LaneOptions))
_EVICTION_ENDINGS: Final = {"lru": "lru", "pe": "cluster"}


def _made(policy: str, kind: Any, values: Mapping[str, Any]) -> Any:
    declared: object = kind
    if not is_dataclass(declared):
        raise InvalidConfig(f"Options of policy {policy!r} is {kind!r}; need a frozen dataclass")
    known = [field.name for field in fields(kind)]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise InvalidConfig(
            f"option {unknown[0]!r} is not one of policy {policy!r}; valid: {', '.join(known)}"
        )
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise InvalidConfig(f"policy {policy!r} needs the option {missing[0]!r}")
    with registry.naming(policy):
        return kind(**values)


def _unknown(base: PeekConfig, name: str, beside: Sequence[str]) -> str:
    """Why an option cannot be set, with the options that can."""
    if name in _ADAPTERS_OWN:
        return f"option {name!r} is not a setting of a policy: it is an argument of Planner"
    own = [field.name for field in fields(base.options)]
    lanes = [] if "fair_share" in own else list(_LANE_NAMES)
    if base.lanes is None and name in lanes and name != "lanes":
        return f"option {name!r} needs the option 'lanes'; valid: {', '.join(LANES)}"
    valid = ", ".join(["policy", *own, *lanes, "eviction", *beside])
    return f"option {name!r} is not one of policy {base.policy!r}; valid: {valid}"


def _parsed_options(label: str, text: str) -> dict[str, Any]:
    """Parse options from `name=value,...`; a value that is no JSON is taken as text."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name or name in found or name == "policy":
            raise InvalidConfig(
                f"policy {label!r} has {part!r} among its options; need name=value, each once"
            )
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    try:
        value = json.loads(f"0{text}" if text.startswith(".") else text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, (int, float, str)) else text


_WORDS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None, "inf": inf, "-inf": -inf}


def text_of(value: object) -> str:
    """The text form of an option's value."""
    if isinstance(value, str):  # in quotes if it would be read as something else
        return value if _value(value) == value else json.dumps(value)
    for text, meaning in _WORDS.items():
        if value is meaning:
            return text
    return str(value)


def _inside_label(value: object) -> str:
    """`text_of` without `,` and `:`, which end an option and a label; JSON can write them otherwise."""
    if isinstance(value, str) and value.translate(_SEPARATORS) != value:
        return json.dumps(value).translate(_SEPARATORS)
    return text_of(value)


_SEPARATORS: Final = str.maketrans({",": r"\u002c", ":": r"\u003a"})

_PUBLISHED_LANES: Final = LaneOptions("cycle", 0.3, True)
"""The paper's lanes: cache lane 0.7 (alpha), dynamic."""

_BASELINES: Final = ("fcfs", "lpm", "lpm-nolimit", "dfs-weight", "hrrn", "hrrn-limit", "spf")

PRESETS: dict[str, PeekConfig] = {
    **{f"{name}+lru": PeekConfig(name) for name in _BASELINES},
    "lpm+pe": PeekConfig("lpm", eviction="cluster"),
    "fcfs+pe": PeekConfig("fcfs", eviction="cluster"),
    "clpm": PeekConfig("clpm"),
    "clpm+gm": PeekConfig("clpm+gm"),
    "clpm+gm+dl": PeekConfig("clpm+gm", lanes=_PUBLISHED_LANES),
    "clpm+gm+pe": PeekConfig("clpm+gm", eviction="cluster"),
    "clpm+gm+dl+pe": PeekConfig("clpm+gm", lanes=_PUBLISHED_LANES, eviction="cluster"),
    "peek": PeekConfig(),
}
"""The paper's policies, the baselines and the library's own; `PeekConfig.from_label` knows more labels."""

VARIABLES: Final = (
    "PEEK_ONLINE_SCHEDULER",
    "PEEK_ONLINE_EVICTION",
    "PEEK_ONLINE_CLPM",
    "PEEK_ONLINE_CLPM_GROUP_MAJOR",
    "PEEK_ONLINE_CLPM_DYNAMIC_LANE",
    "PEEK_ONLINE_CLPM_BIGLANE_SHARE",
    "PEEK_ONLINE_EVICTION_MODE",
)
"""The paper's variables."""
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
    require_number("PEEK_ONLINE_CLPM_BIGLANE_SHARE", cache_share, 1.0)
    return PeekConfig(
        ("clpm+gm" if group_major else "clpm") if scheduler else "fcfs",
        lanes=LaneOptions("cycle", round(1.0 - cache_share, 12), dynamic) if lanes else None,
        eviction=mode if _flag(environ, "PEEK_ONLINE_EVICTION") else "lru",
    )


def _flag(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise InvalidConfig(f"{name} is {value!r}; valid: {', '.join(_TRUE + _FALSE[1:])}")
