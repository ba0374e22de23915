"""What the environment asks of an adapter: `PEEK_CONFIG`, `PEEK_POLICY`, and names that nobody reads."""

from __future__ import annotations

import json
import logging
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.attached import ToyEngine, toy_attachment

from peek import PRESETS, InvalidConfig, LaneOptions, PeekConfig
from peek.adapters.activation import (
    Settings,
    check_environment,
    misspelled,
    requested_settings,
    settings_from,
)
from peek.cli.main import main
from peek.config import text_of
from peek.policy.default import PeekOptions

OPTIONS: list[dict[str, Any]] = [
    {"policy": "peek"},
    {"policy": "peek", "fair_share": 0.2, "strict": True},
    {"policy": "clpm+gm+dl+pe", "slo_s": 3},
    {"mean_bias": 0.25},
    {},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_config_says_what_the_engines_options_say(options: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps(options)
    (tmp_path / "peek.json").write_text(text)
    wanted = Settings.from_dict(options)
    assert settings_from({"PEEK_CONFIG": text}) == wanted
    assert settings_from({"PEEK_CONFIG": f"@{tmp_path / 'peek.json'}"}) == wanted


def test_the_policy_may_stand_beside_the_config() -> None:
    environ = {"PEEK_POLICY": "clpm+gm+dl", "PEEK_CONFIG": '{"slo_s": 4, "strict": true}'}
    assert settings_from(environ) == Settings.from_dict({"policy": "clpm+gm+dl", "slo_s": 4, "strict": True})


@pytest.mark.parametrize("environ", [{}, {"PEEK_CONFIG": ""}, {"PEEK_CONFIG": "  "}])
def test_nothing_asked_for_is_stock(environ: dict[str, str]) -> None:
    assert settings_from(environ).config.is_stock


def test_options_of_the_engine_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEEK_CONFIG", "not read")
    assert requested_settings({"policy": "clpm"}).config == PeekConfig.from_label("clpm")
    with pytest.raises(InvalidConfig, match="PEEK_CONFIG is not JSON"):
        requested_settings(None)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"PEEK_CONFIG": "{"}, "PEEK_CONFIG is not JSON"),
        ({"PEEK_CONFIG": "peek"}, "PEEK_CONFIG is not JSON"),
        ({"PEEK_CONFIG": "[1]"}, "PEEK_CONFIG is '[1]'; need an object"),
        ({"PEEK_CONFIG": '"peek"'}, "need an object"),
        ({"PEEK_CONFIG": "[" * 100_000}, "PEEK_CONFIG is not JSON"),
        ({"PEEK_CONFIG": "@/no/such/file"}, "PEEK_CONFIG names a file that cannot be read"),
        ({"PEEK_CONFIG": "@"}, "PEEK_CONFIG names a file that cannot be read"),
        ({"PEEK_CONFIG": "@a\0b"}, "PEEK_CONFIG names a file that cannot be read"),
        (
            {"PEEK_CONFIG": '{"polcy": "peek"}'},
            "PEEK_CONFIG: option 'polcy' is not one of policy 'peek'; valid: policy, objective",
        ),
        ({"PEEK_CONFIG": '{"policy": "peak"}'}, "PEEK_CONFIG: policy 'peak' is unknown"),
        ({"PEEK_CONFIG": '{"strict": 1}'}, "PEEK_CONFIG: strict is 1"),
        ({"PEEK_CONFIG": '{"policy": "peek"}', "PEEK_POLICY": "peek"}, "PEEK_CONFIG names a policy, too"),
        ({"PEEK_CONFIG": "{}", "PEEK_ONLINE_CLPM": "1"}, "PEEK_CONFIG and PEEK_ONLINE_CLPM are both set"),
    ],
)
def test_a_mistake_names_the_variable(environ: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        settings_from(environ)
    assert message in str(caught.value)


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    for content in (b"{", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(InvalidConfig) as caught:
            settings_from({"PEEK_CONFIG": f"@{path}"})
        assert "PEEK_CONFIG" in str(caught.value)


@given(text=st.text())
def test_any_text_is_settings_or_an_error(text: str) -> None:
    fault = None
    try:
        found = settings_from({"PEEK_CONFIG": text.removeprefix("@")})
    except InvalidConfig as error:
        fault = error
    assert isinstance(found, Settings) if fault is None else "PEEK_CONFIG" in str(fault)


NAMES = [field.name for kind in (PeekOptions, LaneOptions, Settings) for field in fields(kind)]


@given(
    option=st.sampled_from([*NAMES, "eviction", "polcy", "tenant"]), label=st.sampled_from(sorted(PRESETS))
)
def test_every_option_is_in_force_or_refused(option: str, label: str) -> None:
    """Said as it is, it changes nothing where it is in force; elsewhere it is an error that lists what is."""
    settings = Settings(PeekConfig.from_label(label))
    force = settings.in_force()
    options = {"policy": label, option: force.get(option, 1)}
    if option in force:
        assert Settings.from_dict(options) == settings
        assert f"{option}={text_of(force[option])}" in str(settings).split()
        return
    with pytest.raises(InvalidConfig) as caught:
        Settings.from_dict(options)
    if option not in vars(LaneOptions("work")):
        assert all(name in str(caught.value) for name in force)


@pytest.mark.parametrize(
    "environ",
    [
        {"PEEK_POLICY": "off"},
        {"PEEK_POLICY": "off", "PEEK_CONFIG": '{"mean_bias": 0.5, "mode": "shadow"}'},
        {"PEEK_CONFIG": '{"policy": "off", "mean_bias": 0.5, "mode": "on"}'},
    ],
)
def test_off_is_off(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_from(environ)
    assert settings.config.is_stock
    assert settings.mode == "off"
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main(["doctor"]) == 0
    assert "off at start" in capsys.readouterr().out


def test_off_attaches_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="peek")
    attachment = toy_attachment(engine := ToyEngine(), policy="off")
    assert (attachment.working, attachment.state, engine.made) == (None, "off", 0)
    assert [record.getMessage() for record in caplog.records if "switched off" in record.getMessage()]


def test_vllm_asks_for_it_before_it_loads_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = entry_points(group="vllm.general_plugins", name="peek_settings")
    monkeypatch.setenv("PEEK_CONFIG", '{"policy": "peek", "mean_bias": 2}')
    with pytest.raises(InvalidConfig, match="mean_bias is 2"):
        entry.load()()
    monkeypatch.setenv("PEEK_CONFIG", '{"policy": "peek"}')
    entry.load()()


WRONG = json.dumps({"peek": {"policy": "peek", "mean_bias": 2}})
RIGHT = json.dumps({"peek": {"policy": "peek"}, "somebody": "else"})


@pytest.mark.parametrize(
    ("arguments", "is_wrong"),
    [
        (["--additional-config", WRONG], True),
        ([f"--additional-config={WRONG}", "--port", "1"], True),
        (["--additional_config", WRONG], True),
        (["--additional-config", RIGHT, "--additional-config", WRONG], True),
        (["--additional-config", WRONG, "--additional-config", RIGHT], False),
        (["--additional-config", RIGHT], False),
        (["--additional-config", '{"peek": {}}'], False),
        (["--additional-config", "not JSON"], False),
        (["--additional-config", "[1]"], False),
        (["--additional-config"], False),
        (["--additional-configuration", WRONG], False),
    ],
)
def test_the_command_line_is_checked_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], is_wrong: bool
) -> None:
    monkeypatch.setattr("sys.argv", ["vllm", "serve", "model", *arguments])
    if is_wrong:
        with pytest.raises(InvalidConfig, match="mean_bias is 2"):
            check_environment()
    else:
        check_environment()


def test_a_program_without_a_command_line_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an interpreter inside another program."""
    monkeypatch.setattr("sys.argv", [])
    check_environment()


def test_doctor_prints_every_option_in_force(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PEEK_CONFIG", '{"policy": "peek", "explain": 3}')
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for name, value in Settings.from_dict({"policy": "peek", "explain": 3}).in_force().items():
        assert f"{name}={text_of(value)}" in shown
    assert "slo_s" not in shown


# -- names that nobody reads ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PEEK_POLCY", "PEEK_POLICY"),
        ("PEEK_CONFG", "PEEK_CONFIG"),
        ("peek_policy", "PEEK_POLICY"),
        ("PEEK_ONLINE_CLMP", "PEEK_ONLINE_CLPM"),
    ],
)
def test_a_misspelled_name_is_found(name: str, meant: str) -> None:
    assert misspelled({name: "peek", "PEEK_POLICY": "x", "PEEKABOO": "1", "PATH": ""}) == {name: meant}


def test_known_names_are_not_misspelled() -> None:
    names = ["PEEK_POLICY", "PEEK_CONFIG", "PEEK_ONLINE_CLPM", "PEEK_PURE", "PEEK_EXPECT_BACKEND"]
    assert misspelled(dict.fromkeys(names, "")) == {}


@pytest.mark.parametrize("policy", ["peek", "fcfs+lru"])
def test_the_adapters_warn_of_it(
    policy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PEEK_POLCY", "peek")
    toy_attachment(ToyEngine(), policy=policy)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage().startswith("peek: nothing reads PEEK_POLCY; is PEEK_POLICY meant? (known: ")
    assert "PEEK_CONFIG" in record.getMessage()


def test_doctor_reports_both(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PEEK_POLCY", "peek")
    monkeypatch.setenv("PEEK_CONFIG", '{"policy": "clpm+gm"}')
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["misspelled"] == {"PEEK_POLCY": "PEEK_POLICY"}
    assert found["active"] == "clpm+gm"
    assert main(["doctor"]) == 0
    assert "nothing reads it; is PEEK_POLICY meant?" in capsys.readouterr().out
    monkeypatch.setenv("PEEK_CONFIG", "{")
    assert main(["doctor"]) == 1
    assert "PEEK_CONFIG is not JSON" in capsys.readouterr().err
