"""What the environment asks of an adapter: `PEEK_CONFIG`, `PEEK_POLICY`, and names that nobody reads."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.attached import ToyEngine, toy_attachment

from peek import InvalidConfig, PeekConfig
from peek.adapters.activation import Settings, misspelled, requested_settings, settings_from
from peek.cli.main import main

OPTIONS: list[dict[str, Any]] = [
    {"policy": "peek"},
    {"policy": "peek", "fair_share": 0.2, "strict": True},
    {"policy": "clpm+gm+dl+pe", "slo_s": 3},
    {"exponent": 2},
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
    environ = {"PEEK_POLICY": "clpm+gm", "PEEK_CONFIG": '{"slo_s": 4, "strict": true}'}
    assert settings_from(environ) == Settings.from_dict({"policy": "clpm+gm", "slo_s": 4, "strict": True})


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
        ({"PEEK_CONFIG": '{"polcy": "peek"}'}, "PEEK_CONFIG: option 'polcy' is unknown"),
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
    assert found["active"].startswith("clpm+gm, no lanes")
    assert main(["doctor"]) == 0
    assert "nothing reads it; is PEEK_POLICY meant?" in capsys.readouterr().out
    monkeypatch.setenv("PEEK_CONFIG", "{")
    assert main(["doctor"]) == 1
    assert "PEEK_CONFIG is not JSON" in capsys.readouterr().err
