"""On, off and shadow while an engine runs: at any moment, losing nobody."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.attached import EmptyCache, ToyEngine, toy_attachment

from peek import InvalidConfig, PeekConfig, PendingRequest, Planner
from peek.adapters import lifecycle as shields
from peek.adapters.activation import MODES, Settings
from peek.adapters.engine_adapter import EngineInfo
from peek.adapters.lifecycle import Switch
from peek.adapters.observed import IN_SHADOW, Observations, ObservedPlanner
from peek.eviction.demand import victims

A, B = [7, 7, 7], [9, 9, 9]


def arrive(engine: ToyEngine, requests: int = 6) -> list[str]:
    """Prompts that a planner would sort: A and B in turns."""
    names = [f"r{len(engine.prompts) + i}" for i in range(requests)]
    for i, name in enumerate(names):
        engine.arrive(name, [*(A, B)[i % 2], i])
    return names


class Told:
    """An engine, its attachment and the control file."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.engine = ToyEngine()
        options = {"control_file": str(path), "control_every": 1, **options}
        self.attachment = toy_attachment(self.engine, **options)

    def say(self, word: str) -> None:
        self.path.write_text(word)

    def serve(self, requests: int = 6) -> bool:
        """Whether the order of admission is that of arrival."""
        names = arrive(self.engine, requests)
        before = len(self.engine.admitted)
        for _ in names:
            self.engine.step(self.attachment)
        admitted = self.engine.admitted[before:]
        assert sorted(admitted) == sorted(names)
        return admitted == names


def test_off_and_on_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = Told(tmp_path / "control")
    assert not told.serve(), "on is the default"
    told.say("off\n")
    assert told.serve()
    assert told.engine.owned_by is None, "the engine has its own objects"
    assert (told.attachment.adapter, told.attachment.active, told.attachment.state) == (None, False, "off")
    told.say(" ON ")
    assert not told.serve()
    assert told.engine.made == 2
    told.path.unlink()
    assert not told.serve()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["peek: switched from on to off", "peek: switched from off to on"]


def test_shadow_plans_and_never_reorders(tmp_path: Path) -> None:
    told = Told(tmp_path / "control")
    told.say("shadow")
    assert told.serve()
    adapter: Any = told.attachment.adapter
    assert adapter.reordered == 0
    assert adapter.planner.stats.plans == 6
    assert told.attachment.seen.shadow_reordered > 0
    assert (told.attachment.active, told.attachment.state) == (False, "shadow")
    assert told.engine.made == 1, "the same adapter goes on"
    told.say("on")
    assert not told.serve()
    assert told.engine.made == 1


def test_the_mode_at_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "peek"):
        assert Told(tmp_path / "none", mode="off").attachment.adapter is None
        assert Told(tmp_path / "none", mode="shadow").serve()
        (tmp_path / "says").write_text("off")
        told = Told(tmp_path / "says", mode="on")
    assert told.attachment.adapter is None
    told.path.unlink()
    assert not told.serve()
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("peek: not active, switched off; toy")
    assert lines[1].startswith("peek: in shadow: plans, and leaves the order alone; toy")


def test_without_a_file_nothing_is_looked_at() -> None:
    assert toy_attachment(ToyEngine())._switch is None


def test_what_stands_aside_cannot_be_switched_on(tmp_path: Path) -> None:
    told = Told(tmp_path / "control", mode="off")
    told.engine.aside = "prefix caching is off"
    told.say("on")
    assert told.serve()
    assert told.attachment.state == "prefix caching is off"


def test_several_ranks_do_not_look(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "control").write_text("off")
    assert Told(tmp_path / "control", info=EngineInfo("toy", ranks=2)).attachment.active
    assert "2 ranks might not see it at once" in caplog.text


class Ranks:
    """Two attachments that must be in one mode, of which the first has its word."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.word = ""
        self.asked = self.answered = 0
        leads = EngineInfo("toy", ranks=2, agree=self.lead)
        follows = EngineInfo("toy", ranks=2, agree=self.follow, speaks=False)
        self.first = Told(folder / "first", info=leads, **options)
        self.second = Told(folder / "second", info=follows, **options)

    def lead(self, word: str) -> str:
        self.word = word
        self.asked += 1
        return word

    def follow(self, word: str) -> str:
        self.answered += 1
        return self.word

    def modes(self, calls: int) -> list[str]:
        """The mode in each call, which is the same in both."""
        modes = []
        for _ in range(calls):
            pair = [told.attachment.working and told.attachment.mode for told in (self.first, self.second)]
            assert (pair[0] is None) == (pair[1] is None)
            assert self.first.attachment.mode == self.second.attachment.mode
            modes.append(self.first.attachment.mode)
        return modes


def test_ranks_that_can_agree_follow_the_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ranks = Ranks(tmp_path, control_every=3)
    assert ranks.modes(4) == ["on"] * 4
    ranks.first.say("off")  # the second's host has no such file
    assert ranks.modes(6) == ["on"] * 1 + ["off"] * 5
    ranks.second.say("on")
    assert ranks.modes(4) == ["off"] * 4
    ranks.first.say("shadow")
    ranks.second.say("nonsense")
    assert set(ranks.modes(6)[3:]) == {"shadow"}
    ranks.first.path.unlink()
    assert set(ranks.modes(6)[3:]) == {"on"}
    assert caplog.text.count("switched from on to off") == 2


def test_ranks_that_only_trace_look_equally_often(tmp_path: Path) -> None:
    """Of a broadcast that one rank leaves out, the others wait for ever."""
    ranks = Ranks(tmp_path, policy="off", trace_file=str(tmp_path / "trace"), control_every=3)
    ranks.first.say("off no-trace")
    assert ranks.modes(7) == ["off"] * 7
    assert ranks.asked == ranks.answered > 1
    assert not ranks.first.attachment.recording


def test_ranks_that_no_longer_agree_stay_in_their_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ranks = Ranks(tmp_path)
    monkeypatch.setattr(ranks.first.attachment._switch, "_agree", lambda word: 1 / 0)
    ranks.first.say("off")
    assert not ranks.first.serve()
    assert not ranks.first.serve()
    assert ranks.first.attachment.active
    assert caplog.text.count("control_file is no longer looked at") == 1


@given(
    steps=st.lists(
        st.sampled_from([*MODES, "gone", "nonsense", "fails", "works", *["arrive"] * 3, *["step"] * 8]),
        max_size=60,
    )
)
def test_any_change_at_any_moment_loses_nobody(
    steps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shields, "FIRST_WAIT", 3)
        patch.setattr(shields, "LONGEST_WAIT", 6)
        play(steps, Told(tmp_path_factory.mktemp("told") / "control"))


def play(steps: list[str], told: Told) -> None:
    engine, mode, word = told.engine, "on", "on"
    waiting: list[str] = []
    for do in [*steps, "works", *["step"] * 20]:
        if do in MODES:
            told.say(do)
            word = do
        elif do == "gone":
            told.path.unlink(missing_ok=True)
            word = "on"
        elif do == "nonsense":
            told.say("maybe")
            word = mode
        elif do in ("fails", "works"):
            engine.fails_in = {"plan"} if do == "fails" else set()
        elif do == "arrive":
            waiting += arrive(engine, 3)
        else:
            before = len(engine.admitted)
            engine.step(told.attachment)
            mode = word
            assert told.attachment.mode == mode
            for name in engine.admitted[before:]:
                waiting.remove(name)
            assert sorted(engine.queue) == sorted(waiting)
            assert (engine.owned_by is None) == (told.attachment.adapter is None)
            assert told.attachment.active <= (mode == "on")
    assert (told.attachment.adapter is None) == (mode == "off")


# -- the file -----------------------------------------------------------------------------------------------


def test_it_is_looked_at_every_so_many_calls(tmp_path: Path) -> None:
    path = tmp_path / "control"
    switch = Switch("on", str(path), 5)
    switch.look()
    path.write_text("off")
    assert [switch.look() for _ in range(6)] == ["on"] * 4 + ["off"] * 2


@pytest.mark.parametrize("content", [b"", b"maybe", b"onn", b"\xff\xff", b"on off", b"x" * 100_000])
def test_a_word_that_is_no_mode_is_warned_of_once(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "control"
    path.write_text("shadow")
    switch = Switch("on", str(path), 1)
    assert switch.look() == "shadow"
    path.write_bytes(content)
    assert {switch.look() for _ in range(5)} == {"shadow"}
    (record,) = caplog.records
    assert "valid: on, off, shadow; behind it trace, no-trace; still shadow" in record.getMessage()
    path.write_text("off")
    assert switch.look() == "off"


def test_what_is_no_file_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("off")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "file" / "below"):
        switch = Switch("on", str(path), 1)
        assert {switch.look() for _ in range(5)} == {"on"}
    assert len(caplog.records) == 3


def test_a_file_that_may_be_read_later_is_read_then(caplog: pytest.LogCaptureFixture) -> None:
    """Its contents, and when they were written, are the same as before."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder, "control")
        path.write_text("off")
        switch = Switch("on", str(path), 1)
        for allowed, mode in ((0, "on"), (0o644, "off")):
            path.chmod(allowed)
            user = os.geteuid()
            os.seteuid(user or 65534)  # root may read anything
            try:
                assert switch.look() == switch.look() == mode
            finally:
                os.seteuid(user)
    assert [record.getMessage().split(" (")[0].rpartition(" ")[2] for record in caplog.records] == ["read"]


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "maybe"},
        {"mode": None},
        {"control_file": 7},
        {"control_file": None},
        {"control_file": "a\0b"},
        {"control_every": 0},
        {"control_every": True},
        {"control_every": 1.5},
        {"control_every": 10**9},
    ],
)
def test_mistakes_in_the_options(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(options))):
        Settings.from_dict({"policy": "peek", **options})


# -- a planner in shadow ------------------------------------------------------------------------------------


@given(families=st.lists(st.integers(0, 3), min_size=1, max_size=20), evicts=st.booleans())
def test_in_shadow_the_answer_is_arrival_order_and_no_demand(families: list[int], evicts: bool) -> None:
    config = PeekConfig(eviction="cluster" if evicts else "lru")
    seen = Observations()
    planner, twin = ObservedPlanner(Planner(config), seen), Planner(config)
    for i, family in enumerate(families):
        for each in (planner, twin):
            each.add(PendingRequest(f"r{i}", [family, family, i], float(i), num_tokens=3))
    planner.shadow = True
    answer, wanted = planner.plan(EmptyCache(), 99.0), twin.plan(EmptyCache(), 99.0)
    assert list(answer) == [f"r{i}" for i in range(len(families))]
    assert (answer.stood_aside, answer.reason, planner.evicts) == (True, IN_SHADOW, False)
    assert seen.shadow_reordered == wanted.reordered
    assert planner.eviction_score(1) == 0.0
    planner.shadow = False
    assert planner.plan(EmptyCache(), 99.0) == wanted
    assert planner.evicts == evicts


@given(blocks=st.lists(st.integers(0, 99), unique=True), limit=st.integers(1, 20))
def test_without_demand_the_engines_own_victims_go(blocks: list[int], limit: int) -> None:
    assert list(victims(iter(blocks), lambda block: 0.0, limit)) == blocks
