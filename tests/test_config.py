"""From words and the environment to objects: what is accepted, what it means, and what an error says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek import (
    PRESETS,
    ClpmScheduler,
    CycleLanes,
    DemandEviction,
    DfsWeight,
    FirstCome,
    Hrrn,
    InvalidConfig,
    LaneController,
    LaneOptions,
    LongestPrefix,
    PeekConfig,
    PeekError,
    PeekPolicy,
    Planner,
    ShortestPrefill,
)
from peek.config import EVICTIONS, LANES, POLICIES
from peek.eviction.demand import MODES
from peek.policy.default import OBJECTIVES, UNSHARED, PeekOptions

CONTRACT: dict[str, tuple[type, type | None, str | None]] = {
    # label: policy, lanes, mode of the demand eviction
    "fcfs+lru": (FirstCome, None, None),
    "lpm+lru": (LongestPrefix, None, None),
    "lpm-nolimit+lru": (LongestPrefix, None, None),
    "dfs-weight+lru": (DfsWeight, None, None),
    "hrrn+lru": (Hrrn, None, None),
    "hrrn-limit+lru": (Hrrn, None, None),
    "spf+lru": (ShortestPrefill, None, None),
    "lpm+pe": (LongestPrefix, None, "cluster"),
    "fcfs+pe": (FirstCome, None, "cluster"),
    "clpm": (ClpmScheduler, None, None),
    "clpm+gm": (ClpmScheduler, None, None),
    "clpm+gm+dl": (ClpmScheduler, CycleLanes, None),
    "clpm+gm+pe": (ClpmScheduler, None, "cluster"),
    "clpm+gm+dl+pe": (ClpmScheduler, CycleLanes, "cluster"),
    "peek": (PeekPolicy, None, None),
}
VARIABLES = (
    "PEEK_ONLINE_SCHEDULER", "PEEK_ONLINE_EVICTION", "PEEK_ONLINE_CLPM", "PEEK_ONLINE_CLPM_GROUP_MAJOR",
    "PEEK_ONLINE_CLPM_DYNAMIC_LANE", "PEEK_ONLINE_CLPM_BIGLANE_SHARE", "PEEK_ONLINE_EVICTION_MODE",
)  # fmt: skip
ABSURD = [nan, inf, -inf, -1, 0, 0.0, "x", "0.3", True, None, [], 1j]


def said(build: Callable[[], object]) -> str:
    """What is said of a config that cannot be."""
    with pytest.raises(InvalidConfig) as caught:
        build()
    return str(caught.value)


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
    assert str(config) == label


@pytest.mark.parametrize(
    ("label", "same"),
    [
        ("fcfs", "fcfs+lru"), ("spf", "spf+lru"), ("peek+lru", "peek"), ("clpm+gm+dl+lru", "clpm+gm+dl"),
    ],
)  # fmt: skip
def test_a_missing_eviction_part_means_lru(label: str, same: str) -> None:
    assert PeekConfig.from_label(label) == PeekConfig.from_label(same)


def test_any_policy_may_evict_by_demand() -> None:
    assert PeekConfig.from_label("peek+pe") == PeekConfig(eviction="cluster")
    assert PeekConfig.from_label("hrrn+pe").build_eviction().mode == "cluster"


def test_one_check_for_a_setting_wherever_it_is_given() -> None:
    for build in (lambda: PeekConfig(options={"mean_bias": 1.5}), lambda: PeekOptions(mean_bias=1.5)):
        assert said(build) == "mean_bias is 1.5; need a number from 0 to 1"
    for build in (
        lambda: PeekConfig(options={"fair_share": 1.0}),
        lambda: LaneOptions("work", 1.0),
        lambda: LaneController(fair_share=1.0),
    ):
        assert said(build) == "fair_share is 1.0; need a number above 0 and below 1"


def test_labels_that_share_a_class_differ_in_its_settings() -> None:
    def build(label: str) -> object:
        return PeekConfig.from_label(label).build_policy()

    assert (build("lpm+lru").queue_limit, build("lpm-nolimit+lru").queue_limit) == (128, None)
    assert build("lpm+pe").queue_limit == 128
    assert (build("hrrn-limit+lru").queue_limit, build("hrrn+lru").queue_limit) == (128, None)
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
    text = said(lambda: PeekConfig.from_label(label))
    assert all(word in text for word in (repr(label), *CONTRACT))


def test_an_invalid_config_is_the_callers_fault() -> None:
    assert issubclass(InvalidConfig, ValueError)
    assert issubclass(InvalidConfig, PeekError)


# -- options of a label -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("peek:mean_bias=0.5", {"policy": "peek", "mean_bias": 0.5}),
        ("peek+pe:grace_tokens=1e5", {"policy": "peek+pe", "grace_tokens": 1e5}),
        ("peek:tenant_lead=inf,unshared=arrival", {"tenant_lead": inf, "unshared": "arrival"}),
        ("clpm+gm+dl+pe:fair_share=0.2", {"policy": "clpm+gm+dl+pe", "fair_share": 0.2}),
        ("hrrn:eviction=decay", {"policy": "hrrn", "eviction": "decay"}),
        ("lpm:lanes=work,dynamic_share=true", {"policy": "lpm", "lanes": "work", "dynamic_share": True}),
        ("clpm+gm+dl:lanes=none", {"policy": "clpm+gm"}),
    ],
)
def test_text_and_dictionary_mean_the_same(text: str, same: dict[str, object]) -> None:
    config = PeekConfig.from_label(text)
    assert config == PeekConfig.from_dict(same)
    assert PeekConfig.from_env({"PEEK_POLICY": text}) == config


@pytest.mark.parametrize(
    "text", ["peek:=1", "peek:mean_bias=1,", "peek:mean_bias=1,mean_bias=0", "peek:policy=lpm"]
)
def test_options_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InvalidConfig, match="need name=value, each once"):
        PeekConfig.from_label(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "fcfs+lru", "mean_bias": 1},
         "'mean_bias' is not one of policy 'fcfs'; valid: policy, lanes, "),
        ({"policy": "peek", "theta": 1},
         "valid: policy, objective, mean_bias, ttft_target_s, unshared, fair_share, grace_tokens, tenant"),
        ({"policy": "peek", "lanes": "work"}, "'lanes' is not one of policy 'peek'"),
        ({"policy": "lpm", "fair_share": 0.2}, "'fair_share' needs the option 'lanes'; valid: cycle, work"),
        ({"policy": "peek", "": 1}, "option '' is not one of"),
    ],
)  # fmt: skip
def test_an_option_that_the_policy_does_not_have(options: dict[str, object], words: str) -> None:
    assert words in said(lambda: PeekConfig.from_dict(options))


CONFIGS = st.builds(
    PeekConfig,
    st.sampled_from([name for name in POLICIES if name != "peek"]),
    lanes=st.none()
    | st.builds(
        LaneOptions,
        st.sampled_from(LANES),
        st.floats(0.0, 1.0, exclude_min=True, exclude_max=True),
        st.booleans(),
        st.floats(0.0, 1e9, exclude_min=True),
    ),
    eviction=st.sampled_from(EVICTIONS),
) | st.builds(
    PeekConfig,
    options=st.builds(
        PeekOptions,
        st.sampled_from(list(OBJECTIVES)),
        st.none() | st.floats(0.0, 1.0),
        st.none() | st.floats(0.0, exclude_min=True, allow_nan=False),
        st.sampled_from(UNSHARED),
        st.floats(0.0, 1.0, exclude_min=True, exclude_max=True),
        st.floats(0.0, allow_nan=False),
        st.floats(0.0, allow_nan=False),
    ),
    eviction=st.sampled_from(EVICTIONS),
)


@given(config=CONFIGS)
def test_every_config_survives_text_and_dictionary(config: PeekConfig) -> None:
    assert PeekConfig.from_label(str(config)) == config
    assert PeekConfig.from_dict(config.as_dict()) == config
    assert Planner(config).config is config
    assert config.build_policy().options == config.options
    assert config.is_stock == (config.policy == "fcfs" and config.lanes is None and config.eviction == "lru")
    built = config.build_lanes()
    if built is not None:
        share = built.share
        assert (share.value, share.dynamic, share.slo_s) == tuple(vars(config.lanes).values())[1:]


# -- values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "nope", "FCFS", None, 1, True, []])
def test_an_unknown_word_is_told_the_known_ones(value: object) -> None:
    known = f"policy is {value!r}; valid: {', '.join(POLICIES)}, module:Class"
    assert said(lambda: PeekConfig(value)) == known
    assert said(lambda: PeekConfig(eviction=value)) == f"eviction is {value!r}; valid: {', '.join(EVICTIONS)}"
    assert said(lambda: LaneOptions(value)) == f"lanes is {value!r}; valid: none, {', '.join(LANES)}"


@pytest.mark.parametrize("option", ["fair_share", "slo_s"])
@pytest.mark.parametrize("value", ABSURD)
def test_absurd_numbers(option: str, value: object) -> None:
    text = said(lambda: LaneOptions("work", **{option: value}))
    assert text.startswith(f"{option} is {value!r}; need a number above 0 and ")


def test_whole_numbers_are_numbers() -> None:
    config = PeekConfig.from_dict({"policy": "lpm", "lanes": "work", "slo_s": 5})
    assert config.build_lanes().share.slo_s == 5.0


def test_an_integer_beyond_floats_is_absurd_too() -> None:
    """`isfinite` cannot take it, and JSON can carry it."""
    with pytest.raises(InvalidConfig):
        LaneOptions("work", slo_s=10**400)


@pytest.mark.parametrize("value", [0, 1, "yes", "true", None, nan])
def test_flags_are_true_or_false(value: object) -> None:
    with pytest.raises(InvalidConfig, match=r"dynamic_share is .*; need true or false"):
        LaneOptions("work", dynamic_share=value)


def test_no_lanes_beside_options_of_the_same_names() -> None:
    """Text and dictionary could not tell the two `fair_share` apart."""
    with pytest.raises(InvalidConfig, match="policy 'peek' takes no lanes: it has a 'fair_share'"):
        PeekConfig(lanes=LaneOptions("work"))
    assert PeekConfig(lanes=LaneOptions("none")) == PeekConfig()


@pytest.mark.parametrize("options", [5, "mean_bias=1", LaneOptions("work")])
def test_options_of_another_kind_are_refused(options: object) -> None:
    with pytest.raises(InvalidConfig, match="policy 'peek' needs PeekOptions"):
        PeekConfig(options=options)


def test_a_config_cannot_change() -> None:
    with pytest.raises(FrozenInstanceError):
        PeekConfig().policy = "fcfs"
    with pytest.raises(FrozenInstanceError):
        PeekConfig().options.mean_bias = 1.0


# -- dictionaries -------------------------------------------------------------------------------------


def test_an_empty_dictionary_is_the_default() -> None:
    assert PeekConfig.from_dict({}) == PeekConfig() == PeekConfig.from_label("peek")


@pytest.mark.parametrize("option", ["in_flight_gate", "strict"])
def test_what_only_a_driver_can_honour_is_no_setting(option: str) -> None:
    """With the gate on and nobody to end prefills, a thousand admitted requests stayed in flight for ever."""
    text = said(lambda: PeekConfig.from_dict({"policy": "peek", option: True}))
    assert f"option '{option}' is not a setting of a policy: it is an argument" in text


@pytest.mark.parametrize(
    "options",
    [{"policy": "nope"}, {"policy": None}, {"fair_share": True}, {"policy": "lpm", "lanes": "fast"}],
)
def test_a_dictionary_is_checked(options: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        PeekConfig.from_dict(options)


# -- policies by hand ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda: ClpmScheduler(theta=0), lambda: ClpmScheduler(tau=-1), lambda: ClpmScheduler(theta=2**63),
        lambda: ClpmScheduler(tau=2**64), lambda: LongestPrefix(queue_limit=0),
        lambda: Hrrn(queue_limit=-3), lambda: DemandEviction("cluster", 0.0),
    ],
)  # fmt: skip
def test_policies_check_their_arguments(build: object) -> None:
    with pytest.raises(InvalidConfig, match=r" is .*need"):
        build()


def test_modes() -> None:
    assert MODES == ("plain", "cluster", "recency", "decay")
    assert tuple(EVICTIONS) == ("lru", "plain", "cluster", "recency", "decay")


# -- the environment -----------------------------------------------------------------------------------

from_env = PeekConfig.from_env


@pytest.mark.parametrize(
    "environ", [{}, {"PATH": "/bin", "PEEK_SOMETHING": "1", "peek_policy": "x"}, {"PEEK_POLICY": ""}]
)
def test_nothing_set_is_stock(environ: dict[str, str]) -> None:
    config = from_env(environ)
    assert config.is_stock
    assert config.build_lanes() is None
    assert config.build_eviction() is None


@pytest.mark.parametrize("name", VARIABLES[:5])
@pytest.mark.parametrize("value", ["", "0", "false", "no", "off", "OFF", " 0 "])
def test_every_flag_off_is_stock(name: str, value: str) -> None:
    assert from_env({name: value}).is_stock


@pytest.mark.parametrize("value", ["1", "true", "yes", "on", "ON", " True "])
@pytest.mark.parametrize(
    ("flags", "admission", "lanes", "dynamic", "eviction"),
    [
        ("SCHEDULER", "clpm", "none", False, "lru"),
        ("CLPM", "clpm", "cycle", False, "lru"),
        ("SCHEDULER CLPM", "clpm", "cycle", False, "lru"),
        ("EVICTION", "fcfs", "none", False, "cluster"),
        ("SCHEDULER CLPM_GROUP_MAJOR", "clpm+gm", "none", False, "lru"),
        ("CLPM CLPM_GROUP_MAJOR", "clpm+gm", "cycle", False, "lru"),
        ("CLPM CLPM_DYNAMIC_LANE", "clpm", "cycle", True, "lru"),
        ("CLPM CLPM_GROUP_MAJOR CLPM_DYNAMIC_LANE EVICTION", "clpm+gm", "cycle", True, "cluster"),
        ("CLPM_GROUP_MAJOR", "fcfs", "none", False, "lru"),
        ("SCHEDULER CLPM_DYNAMIC_LANE", "clpm", "none", False, "lru"),
    ],
)
def test_flags(value: str, flags: str, admission: str, lanes: str, dynamic: bool, eviction: str) -> None:
    config = from_env({f"PEEK_ONLINE_{flag}": value for flag in flags.split()})
    assert (config.policy, config.eviction) == (admission, eviction)
    if lanes == "none":
        assert config.lanes is None
    else:
        assert (config.lanes.lanes, config.lanes.dynamic_share) == (lanes, dynamic)
        assert config.lanes.fair_share == pytest.approx(0.3)


def test_all_flags_are_the_full_published_policy() -> None:
    names = ["CLPM", "CLPM_GROUP_MAJOR", "CLPM_DYNAMIC_LANE", "EVICTION"]
    config = from_env({f"PEEK_ONLINE_{name}": "1" for name in names})
    published = PRESETS["clpm+gm+dl+pe"]
    assert config.lanes.fair_share == pytest.approx(published.lanes.fair_share)
    assert PeekConfig.from_dict({**config.as_dict(), "fair_share": published.lanes.fair_share}) == published


@pytest.mark.parametrize("value", ["2", "y", "enable", "None", "-1"])
@pytest.mark.parametrize("others", [{}, {"PEEK_ONLINE_CLPM": "1"}], ids=["alone", "with clpm"])
@pytest.mark.parametrize("name", VARIABLES[:5])
def test_a_flag_is_not_guessed(name: str, others: dict[str, str], value: str) -> None:
    """Not even where another flag decides."""
    with pytest.raises(InvalidConfig, match="valid: 1, true, yes, on, 0, false, no, off") as caught:
        from_env({**others, name: value})
    assert name in str(caught.value)
    assert repr(value.lower()) in str(caught.value)


@pytest.mark.parametrize("share", ["0.7", "0.9", "0.5", "0.05", " 0.6 ", "1e-3"])
def test_the_big_lane_is_the_cache_lane(share: str) -> None:
    config = from_env({"PEEK_ONLINE_CLPM": "1", "PEEK_ONLINE_CLPM_BIGLANE_SHARE": share})
    assert config.lanes.fair_share == pytest.approx(1.0 - float(share))
    assert config.build_lanes().share.value == config.lanes.fair_share


@pytest.mark.parametrize("share", ["nan", "inf", "-1", "0", "1", "2", "x", "", "True", "70%", "0,7"])
def test_absurd_shares(share: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        from_env({"PEEK_ONLINE_CLPM_BIGLANE_SHARE": share})
    assert "PEEK_ONLINE_CLPM_BIGLANE_SHARE is" in str(caught.value)


@pytest.mark.parametrize("mode", MODES)
def test_the_variable_of_modes(mode: str) -> None:
    config = from_env({"PEEK_ONLINE_EVICTION": "1", "PEEK_ONLINE_EVICTION_MODE": mode})
    assert config.build_eviction().mode == mode
    assert from_env({"PEEK_ONLINE_EVICTION_MODE": mode}).is_stock


@pytest.mark.parametrize("mode", ["lru", "Cluster", "none"])
def test_unknown_modes(mode: str) -> None:
    with pytest.raises(InvalidConfig, match="plain, cluster, recency, decay") as caught:
        from_env({"PEEK_ONLINE_EVICTION": "1", "PEEK_ONLINE_EVICTION_MODE": mode})
    assert "PEEK_ONLINE_EVICTION_MODE" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["PEEK_ONLINE_", "PEEK_ONLINE_CLMP", "PEEK_ONLINE_CLPM_ALPHA", "PEEK_ONLINE_clpm"]
)
def test_a_typing_mistake_does_not_measure_the_stock_engine(name: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        from_env({name: "1"})
    assert f"variable {name} is unknown" in str(caught.value)
    for known in VARIABLES:
        assert known in str(caught.value)


@pytest.mark.parametrize("label", CONTRACT)
def test_one_shot(label: str) -> None:
    assert from_env({"PEEK_POLICY": label, "HOME": "/"}) == PeekConfig.from_label(label)


def test_an_unknown_one_shot_is_told_the_known_ones() -> None:
    with pytest.raises(InvalidConfig, match="clpm\\+gm\\+dl\\+pe"):
        from_env({"PEEK_POLICY": "clpm+dl"})


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("value", ["1", "0", ""])
def test_one_shot_and_variables_clash(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=f"PEEK_POLICY and {name} are both set"):
        from_env({"PEEK_POLICY": "peek", name: value})
