"""The environment: the paper's variables, and `PEEK_POLICY` in one shot."""

from __future__ import annotations

import pytest
from test_config import CONTRACT, VARIABLES

from peek import PRESETS, InvalidConfig, PeekConfig
from peek.eviction.demand import MODES

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
def test_modes(mode: str) -> None:
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
