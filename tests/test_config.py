"""From words to objects: what is accepted, what it means, and what an error says."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict, fields
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek import (
    PRESETS,
    ClpmScheduler,
    ClusterResponseRatio,
    CycleLanes,
    DemandEviction,
    DfsWeight,
    FirstCome,
    Hrrn,
    InvalidConfig,
    LaneController,
    LongestPrefix,
    PeekConfig,
    PeekError,
    Planner,
    PriorityIndex,
    ShortestPrefill,
)
from peek.config import ADMISSIONS, EVICTIONS, LANES
from peek.eviction.demand import MODES
from peek.policy.overdue import OverdueLane

CONTRACT: dict[str, tuple[type, type | None, str | None]] = {
    # label: policy, lanes, mode of the demand eviction
    "fcfs+lru": (FirstCome, None, None),
    "lpm+lru": (LongestPrefix, None, None),
    "lpm-nolimit+lru": (LongestPrefix, None, None),
    "dfs-weight+lru": (DfsWeight, None, None),
    "hrrn+lru": (Hrrn, None, None),
    "spf+lru": (ShortestPrefill, None, None),
    "lpm+pe": (LongestPrefix, None, "cluster"),
    "fcfs+pe": (FirstCome, None, "cluster"),
    "clpm": (ClpmScheduler, None, None),
    "clpm+gm": (ClpmScheduler, None, None),
    "clpm+gm+dl": (ClpmScheduler, CycleLanes, None),
    "clpm+gm+pe": (ClpmScheduler, None, "cluster"),
    "clpm+gm+dl+pe": (ClpmScheduler, CycleLanes, "cluster"),
    "response-ratio": (ClusterResponseRatio, LaneController, None),
    "peek": (PriorityIndex, OverdueLane, None),
}
VARIABLES = (
    "PEEK_ONLINE_SCHEDULER",
    "PEEK_ONLINE_EVICTION",
    "PEEK_ONLINE_CLPM",
    "PEEK_ONLINE_CLPM_GROUP_MAJOR",
    "PEEK_ONLINE_CLPM_DYNAMIC_LANE",
    "PEEK_ONLINE_CLPM_BIGLANE_SHARE",
    "PEEK_ONLINE_EVICTION_MODE",
)
ABSURD = [nan, inf, -inf, -1, 0, 0.0, "x", "0.3", True, None, [], 1j]

# -- labels -------------------------------------------------------------------------------------------


def test_the_labels_are_those_of_the_contract() -> None:
    assert list(PRESETS) == list(CONTRACT)


@pytest.mark.parametrize("label", CONTRACT)
def test_a_label_builds_what_it_names(label: str) -> None:
    policy, lanes, mode = CONTRACT[label]
    config = PeekConfig.from_label(label)
    assert type(config.build_policy()) is policy
    built = config.build_lanes()
    assert built is None if lanes is None else type(built) is lanes
    eviction = config.build_eviction()
    assert (None if eviction is None else eviction.mode) == mode
    assert Planner(config).evicts == (mode is not None)
    assert config.is_stock == (label == "fcfs+lru")


@pytest.mark.parametrize(
    ("label", "same"),
    [
        ("fcfs", "fcfs+lru"),
        ("spf", "spf+lru"),
        ("peek+lru", "peek"),
        ("clpm+gm+dl+lru", "clpm+gm+dl"),
        ("clpm+gm+pe", "clpm+gm+pe"),
    ],
)
def test_a_missing_eviction_part_means_lru(label: str, same: str) -> None:
    assert PeekConfig.from_label(label) == PeekConfig.from_label(same)


def test_any_policy_may_evict_by_demand() -> None:
    assert PeekConfig.from_label("peek+pe") == PeekConfig(eviction="cluster")
    assert PeekConfig.from_label("hrrn+pe").build_eviction().mode == "cluster"


def test_one_check_for_a_setting_wherever_it_is_given() -> None:
    assert PeekConfig("response-ratio", exponent=64.0).build_policy().exponent == 64.0
    assert ClusterResponseRatio(64.0).exponent == 64.0
    for build in (lambda: PeekConfig(exponent=64.5), lambda: ClusterResponseRatio(64.5)):
        with pytest.raises(InvalidConfig, match=r"^exponent is 64.5; need a number above 0 and up to 64$"):
            build()
    for build in (lambda: PeekConfig(fair_share=1.0), lambda: LaneController(fair_share=1.0)):
        with pytest.raises(InvalidConfig, match=r"^fair_share is 1.0; need a number above 0 and below 1$"):
            build()


def test_labels_that_share_a_class_differ_in_its_settings() -> None:
    def build(label: str) -> object:
        return PeekConfig.from_label(label).build_policy()

    assert (build("lpm+lru").queue_limit, build("lpm-nolimit+lru").queue_limit) == (128, None)
    assert build("lpm+pe").queue_limit == 128
    assert build("hrrn+lru").queue_limit is None
    assert (build("clpm").group_major, build("clpm+gm").group_major) == (False, True)
    assert (build("clpm").theta, build("clpm").tau) == (32, 32)


def test_the_published_lanes_are_the_paper_settings() -> None:
    for label in ("clpm+gm+dl", "clpm+gm+dl+pe"):
        share = PeekConfig.from_label(label).build_lanes().share
        assert (share.value, share.dynamic, share.slo_s) == (0.3, True, 2.0)


def test_every_build_is_a_new_object() -> None:
    config = PeekConfig.from_label("clpm+gm+dl+pe")
    assert config.build_policy() is not config.build_policy()
    assert config.build_lanes() is not config.build_lanes()
    assert config.build_eviction() is not config.build_eviction()


@pytest.mark.parametrize(
    "label", ["", "CLPM", " peek", "peek+", "peek+lru+pe", "fcfs+lru+lru", "peek+fast", "+lru", "clpm+gm+dl+"]
)
def test_an_unknown_label_is_told_the_known_ones(label: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        PeekConfig.from_label(label)
    assert repr(label) in str(caught.value)
    for known in CONTRACT:
        assert known in str(caught.value)


def test_an_invalid_config_is_the_callers_fault() -> None:
    assert issubclass(InvalidConfig, ValueError)
    assert issubclass(InvalidConfig, PeekError)


# -- values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "valid"), [("admission", ADMISSIONS), ("lanes", LANES), ("eviction", EVICTIONS)]
)
@pytest.mark.parametrize("value", ["", "nope", "FCFS", None, 1, True, []])
def test_an_unknown_word_is_told_the_known_ones(option: str, valid: tuple[str, ...], value: object) -> None:
    with pytest.raises(InvalidConfig) as caught:
        PeekConfig(**{option: value})
    more = ", module:Class" if option == "admission" else ""
    assert str(caught.value) == f"{option} is {value!r}; valid: {', '.join(valid)}{more}"


@pytest.mark.parametrize("option", ["fair_share", "slo_s", "exponent"])
@pytest.mark.parametrize("value", ABSURD)
def test_absurd_numbers(option: str, value: object) -> None:
    with pytest.raises(InvalidConfig) as caught:
        PeekConfig(**{option: value})
    assert str(caught.value).startswith(f"{option} is {value!r}; need a number above 0 and ")


@pytest.mark.parametrize(
    ("option", "value"), [("fair_share", 1), ("fair_share", 1.0), ("fair_share", 2), ("exponent", 65)]
)
def test_numbers_above_their_range(option: str, value: float) -> None:
    with pytest.raises(InvalidConfig, match=f"{option} is {value}"):
        PeekConfig(**{option: value})


def test_whole_numbers_are_numbers() -> None:
    config = PeekConfig.from_dict({"policy": "response-ratio", "slo_s": 5, "exponent": 4})
    assert config.build_lanes().share.slo_s == 5.0
    assert config.build_policy().exponent == 4.0


def test_an_integer_beyond_floats_is_absurd_too() -> None:
    """`isfinite` cannot take it, and JSON can carry it."""
    with pytest.raises(InvalidConfig):
        PeekConfig(slo_s=10**400)


@pytest.mark.parametrize("option", ["dynamic_share"])
@pytest.mark.parametrize("value", [0, 1, "yes", "true", None, nan])
def test_flags_are_true_or_false(option: str, value: object) -> None:
    with pytest.raises(InvalidConfig, match=f"{option} is .*; need true or false"):
        PeekConfig(**{option: value})


@given(
    admission=st.sampled_from(ADMISSIONS),
    lanes=st.sampled_from(LANES),
    share=st.floats(0.0, 1.0, exclude_min=True, exclude_max=True),
    slo=st.floats(0.0, 1e9, exclude_min=True),
    exponent=st.floats(0.0, 64.0, exclude_min=True, exclude_max=True),
    eviction=st.sampled_from(EVICTIONS),
    dynamic=st.booleans(),
)
def test_every_valid_combination_builds_and_survives_a_dictionary(
    admission: str,
    lanes: str,
    share: float,
    slo: float,
    exponent: float,
    eviction: str,
    dynamic: bool,
) -> None:
    config = PeekConfig(admission, lanes, share, dynamic, slo, eviction, exponent)
    assert PeekConfig.from_dict(asdict(config)) == config
    assert Planner(config).config is config
    policy = config.build_policy()
    if isinstance(policy, ClusterResponseRatio):
        assert policy.exponent == exponent
    built = config.build_lanes()
    if isinstance(built, OverdueLane):
        assert built.fair_share == share
    elif built is not None:
        assert (built.share.value, built.share.dynamic, built.share.slo_s) == (share, dynamic, slo)
    assert config.is_stock == (admission == "fcfs" and lanes == "none" and eviction == "lru")


@pytest.mark.parametrize(
    "options", [{"lanes": "work"}, {"lanes": "cycle"}, {"eviction": "plain"}, {"admission": "lpm"}]
)
def test_stock_is_neither_order_nor_lanes_nor_eviction(options: dict[str, str]) -> None:
    assert not PeekConfig.from_dict({"policy": "fcfs+lru", **options}).is_stock


def test_a_config_cannot_change() -> None:
    with pytest.raises(FrozenInstanceError):
        PeekConfig().admission = "fcfs"


# -- dictionaries -------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", CONTRACT)
def test_policy_names_the_preset_and_the_rest_changes_it(label: str) -> None:
    assert PeekConfig.from_dict({"policy": label}) == PeekConfig.from_label(label)
    changed = PeekConfig.from_dict({"policy": label, "fair_share": 0.25})
    assert changed.fair_share == 0.25
    assert changed.admission == PeekConfig.from_label(label).admission


def test_an_empty_dictionary_is_the_default() -> None:
    assert PeekConfig.from_dict({}) == PeekConfig() == PeekConfig.from_label("peek")


@pytest.mark.parametrize("option", ["fairshare", "Policy", "", "theta"])
def test_an_unknown_option_is_told_the_known_ones(option: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        PeekConfig.from_dict({"policy": "peek", option: 1})
    assert f"option {option!r} is unknown" in str(caught.value)
    for known in ["policy", *(field.name for field in fields(PeekConfig))]:
        assert known in str(caught.value)


@pytest.mark.parametrize("option", ["in_flight_gate", "strict"])
def test_what_only_a_driver_can_honour_is_no_setting(option: str) -> None:
    """With the gate on and nobody to end prefills, a thousand admitted requests stayed in flight for ever."""
    with pytest.raises(
        InvalidConfig, match=f"option '{option}' is not a setting of a policy: it is an argument"
    ):
        PeekConfig.from_dict({"policy": "peek", option: True})


@pytest.mark.parametrize(
    "options", [{"policy": "nope"}, {"policy": None}, {"fair_share": True}, {"lanes": "fast"}]
)
def test_a_dictionary_is_checked(options: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        PeekConfig.from_dict(options)


# -- policies by hand ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda: ClpmScheduler(theta=0),
        lambda: ClpmScheduler(tau=-1),
        lambda: LongestPrefix(queue_limit=0),
        lambda: Hrrn(queue_limit=-3),
        lambda: ClusterResponseRatio(0.0),
        lambda: ClusterResponseRatio(64.5),
        lambda: ClusterResponseRatio(nan),
        lambda: DemandEviction("cluster", 0.0),
    ],
)
def test_policies_check_their_arguments(build: object) -> None:
    with pytest.raises(InvalidConfig, match=r" is .*need"):
        build()


def test_modes() -> None:
    assert MODES == ("plain", "cluster", "recency", "decay")
    assert tuple(EVICTIONS) == ("lru", "plain", "cluster", "recency", "decay")
