"""A policy of somebody's own, by name: in a module that only he has, or behind an entry point."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from support.queues import NOW, cache_of, planner_of, rows_of

from peek import AdmissionPolicy, ClpmScheduler, InvalidConfig, PeekConfig
from peek.adapters.activation import settings_from
from peek.config import PRESETS
from peek.policy import registry
from peek.testing import Scene

MODULE = """
from dataclasses import dataclass
from peek import AdmissionPolicy


class MostCachedFirst(AdmissionPolicy):
    def order(self, queue, cycle):
        return sorted(queue, key=lambda request: -request.cached_len)


class Youngest(AdmissionPolicy):
    def order(self, queue, cycle):
        return queue[::-1]


def gentle():
    return Youngest()


class Forgets(AdmissionPolicy):
    def order(self, queue, cycle):
        return queue[1:]


class Nested:
    class Inner(Youngest):
        pass


number = 7


class NoPolicy:
    pass


class Named(Youngest):
    @dataclass(frozen=True)
    class Options:
        name: str = "nobody"


@dataclass(frozen=True)
class Limits:
    most_s: float = 1.0

    def __post_init__(self):
        assert self.most_s >= 0


class Limited(Youngest):
    Options = Limits

    def __init__(self, options):
        super().__init__(options=options)
        1 / options.most_s
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of policies and a distribution that gives one of them a name."""
    (tmp_path / "own_policies.py").write_text(MODULE, encoding="utf-8")
    info = tmp_path / "own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[peek.policies]\nyoungest = own_policies:Youngest\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_policies", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("label", "order"),
    [
        ("own_policies:MostCachedFirst", ["r1", "r0", "r2"]),
        ("own_policies:MostCachedFirst+lru", ["r1", "r0", "r2"]),
        ("own_policies:Youngest", ["r2", "r1", "r0"]),
        ("own_policies:gentle", ["r2", "r1", "r0"]),
        ("own_policies:Nested.Inner", ["r2", "r1", "r0"]),
        ("youngest", ["r2", "r1", "r0"]),
    ],
)
def test_it_orders_the_queue(folder: Path, label: str, order: list[str]) -> None:
    config = PeekConfig.from_label(label)
    assert (config.lanes, config.eviction) == (None, "lru")
    planner = planner_of(rows_of([1, 2], [3, 4], [5, 6]), config, strict=True)
    assert planner.plan(cache_of([("", (3, 4))]), NOW) == order


def test_it_may_come_with_lanes_and_eviction(folder: Path) -> None:
    config = PeekConfig.from_dict({"policy": "own_policies:Youngest+pe", "lanes": "work", "fair_share": 0.5})
    assert config.eviction == "cluster"
    planner = planner_of(rows_of([1, 2], [3, 4], [5, 6]), config, strict=True)
    assert planner.plan(cache_of([]), NOW) == ["r0", "r2", "r1"]  # the fair lane begins


@pytest.mark.parametrize("name", ["a,b", "a:b=c", 'a "b", c', '"a,', r"a\u002cb", "true", "7", "", " a\nb "])
def test_any_text_of_an_option_survives_the_text_form(folder: Path, name: str) -> None:
    config = PeekConfig("own_policies:Named", {"name": name})
    assert PeekConfig.from_label(str(config)) == config


def test_it_is_asked_for_by_the_environment(folder: Path) -> None:
    config = PeekConfig.from_env({"PEEK_POLICY": "own_policies:Youngest"})
    assert type(config.build_policy()).__name__ == "Youngest"
    assert not config.is_stock


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("own_policies:Nobody", ["own_policies:Nobody", "cannot be imported", "Nobody"]),
        ("no_such_module:Policy", ["no_such_module:Policy", "cannot be imported"]),
        ("own_policies:number", ["own_policies:number", "is an int; need a class or a function"]),
        (":Policy", [":Policy", "cannot be imported"]),
        ("own_policies:", ["own_policies:", "cannot be imported"]),
        ("oldest", ["'oldest' is unknown", *PRESETS, "youngest", "module:Class"]),
    ],
)
def test_what_is_not_there_is_named(folder: Path, label: str, words: list[str]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        PeekConfig.from_label(label)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("wrong_policies:Any", "policy 'wrong_policies:Any' cannot be imported: SyntaxError: "),
        ("failing_policies:Any", "policy 'failing_policies:Any' cannot be imported: ZeroDivisionError: "),
        ("own_policies:Limited:most_s=5s", "policy 'own_policies:Limited': TypeError: '>=' not supported"),
        ("own_policies:Limited:most_s=0", "policy 'own_policies:Limited': ZeroDivisionError: "),
        ("own_policies:NoPolicy", "policy 'own_policies:NoPolicy' makes a NoPolicy, not an AdmissionPolicy"),
    ],
)
def test_what_goes_wrong_in_anothers_module_names_the_policy(folder: Path, label: str, message: str) -> None:
    (folder / "wrong_policies.py").write_text("class :")
    (folder / "failing_policies.py").write_text("1 / 0")
    for variables in ({"PEEK_POLICY": label}, {"PEEK_CONFIG": json.dumps({"policy": label})}):
        with pytest.raises(InvalidConfig) as caught:
            settings_from(variables)
        assert message in str(caught.value)
    for command, code in ((["doctor"], 1), (["simulate", "--policy", label], 2)):
        done = run(folder, *command, PEEK_POLICY=label)
        assert done.returncode == code
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_what_is_made_must_be_a_policy(folder: Path) -> None:
    with pytest.raises(InvalidConfig, match="makes a NoPolicy, not an AdmissionPolicy"):
        PeekConfig.from_label("own_policies:NoPolicy").build_policy()


def test_our_own_names_come_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "installed", lambda: {"peek": "own_policies:Youngest"})
    assert type(registry.make("peek", None)).__name__ == "PeekPolicy"


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_every_registered_name_makes_a_policy(name: str) -> None:
    made = registry.make(name)
    assert isinstance(made, AdmissionPolicy)
    assert made is not registry.make(name)
    assert PeekConfig.from_label(name).policy == name


def run(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`peek` in the folder, which is not on the path of the process."""
    return subprocess.run(
        [sys.executable, "-m", "peek", *words],
        cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("cache", ["radix", "blocks"])
def test_the_simulated_engines_run_it(folder: Path, cache: str) -> None:
    words = ["simulate", "--json", "--workload", "w5-short", "--load", "moderate", "--cache", cache]
    labels = ["own_policies:Youngest", "own_policies:MostCachedFirst", "fcfs+lru"]
    done = run(folder, *words, *(word for label in labels for word in ("--policy", label)))
    assert done.returncode == 0, done.stderr
    runs = {each["policy"]: each for each in json.loads(done.stdout)["runs"]}
    assert list(runs) == labels
    assert all(each["finished"] == each["requests"] for each in runs.values())
    longest = {label: each["queue_wait_s"]["max"] for label, each in runs.items()}
    median = {label: each["ttft_s"]["p50"] for label, each in runs.items()}
    assert longest["own_policies:Youngest"] > longest["fcfs+lru"]  # somebody waits to the end
    assert median["own_policies:Youngest"] < median["fcfs+lru"]  # and most wait less
    assert longest["own_policies:MostCachedFirst"] == longest["fcfs+lru"]  # nothing is shared


def test_a_simulation_does_not_hide_a_policy_that_fails(folder: Path) -> None:
    done = run(folder, "simulate", "--workload", "w5-short", "--policy", "own_policies:Forgets")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Forgets left out request" in done.stderr
    assert done.stderr.count("\n") == 1


def test_nor_does_a_measurement(folder: Path) -> None:
    done = run(folder, "bench", "--waiting", "9", "--rounds", "1", "--policy", "own_policies:Forgets")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Forgets left out request" in done.stderr


def test_the_doctor_knows_it(folder: Path) -> None:
    done = run(folder, "doctor", "--json", PEEK_POLICY="own_policies:Youngest")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["active"] == "own_policies:Youngest"
    done = run(folder, "doctor", PEEK_POLICY="own_policies:Nobody")
    assert done.returncode == 1
    assert "own_policies:Nobody" in done.stderr


class Remembers(ClpmScheduler):
    """Has attributes of its own beside those of the library's class."""

    __slots__ = ("limit",)

    def __init__(self, theta: int) -> None:
        super().__init__(theta=theta, tau=7)
        self.running = {"r0": "tenant"}
        self.limit = 3


class WithoutLock(Remembers):
    """Leaves out of a copy what cannot be copied."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "lock"}


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_has_what_the_policy_has(how: Callable[[AdmissionPolicy], Any]) -> None:
    """On either build: what the library's classes declare, and what a subclass adds."""
    policy = WithoutLock(64)
    policy.lock = Lock()
    twin = how(policy)
    assert type(twin) is WithoutLock
    assert (twin.theta, twin.tau, twin.running, twin.limit) == (64, 7, {"r0": "tenant"}, 3)
    assert not hasattr(twin, "lock")
    scene = Scene(rows_of([1, 2], [3, 4], [1, 2])).prepare()
    assert scene.order(twin) == scene.order(policy)
