"""`peek bench`: all is measured, on the prompts it was given.  What comes out is no test's business."""

from __future__ import annotations

import json
import logging
import random
import re
import sys
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from support.batch_files import json_rows, write
from support.fixtures import Capsys, Patch

import peek
from bench.builds import ROOT, expose
from peek.cli.main import main
from peek.simulation.caches import RadixCache
from peek.timing import Bench, Rig, Rounds, aligned, best_of, readable
from peek.trie.keys import pack

PARSERS = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "bench").rglob("*.py"))
    if {"require_compiled", "argparse"} <= set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
]
"""The modules of `bench` that read a command line and refuse a build that is not compiled."""

MEASURED = [
    "tree, insert one", "tree, remove one", "one cache match per request", "dual-walk, cache changed",
    "plan, one left, one came, cache changed", "plan, one came"
]  # fmt: skip


def bench(capsys: Capsys, *words: object) -> dict[str, Any]:
    assert main(["bench", *map(str, words), "--rounds", "2", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def assert_rows(found: dict[str, Any], prompts: int) -> None:
    rows = found["rows"]
    noun = "prompt" if prompts == 1 else "prompts"
    assert [row["what"] for row in rows] == [*MEASURED, f"offline order of {prompts:,} {noun}"]
    assert all(0.0 < row["best_s"] <= row["median_s"] for row in rows)
    assert [(row["ratio"] or 0.0) > 0.0 for row in rows] == [False, False, True, True, True, True, False]
    assert found["backend"] == peek.backend()


def test_drawn_prompts(capsys: Capsys) -> None:
    found = bench(capsys, "--waiting", 40, "--policy", "clpm+gm")
    assert_rows(found, 80)
    assert (found["waiting"], found["waiting_symbols"], found["cached_prompts"]) == (40, 40 * 2176, 20)
    assert found["policy"] == "clpm+gm"


@pytest.mark.parametrize(("count", "waiting", "cached"), [(60, 30, 15), (1, 1, 0)])
def test_requests(tmp_path: Path, capsys: Capsys, count: int, waiting: int, cached: int) -> None:
    found = bench(capsys, write(tmp_path / "in.jsonl.gz", json_rows(count)))
    assert_rows(found, count)
    assert (found["waiting"], found["cached_prompts"]) == (waiting, cached)
    assert found["prompts"].endswith("in.jsonl.gz, a symbol is a token")


def test_bad_lines_are_named_and_the_rest_is_measured(tmp_path: Path, capsys: Capsys) -> None:
    path = write(tmp_path / "in.jsonl", [*json_rows(4), "no JSON"])
    assert main(["bench", str(path), "--rounds", "1", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["waiting"] == 2
    assert f"{path}: line 5: not valid JSON" in err
    assert err.splitlines()[-1] == f"peek: {path}: 1 bad line left out"


def test_many_lines_with_one_fault_are_one_line_of_text(tmp_path: Path, capsys: Capsys) -> None:
    path = write(tmp_path / "in.jsonl", [*json_rows(4), "no JSON", *["[]"] * 50, "no JSON"])
    assert main(["bench", str(path), "--rounds", "1", "--json"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "line 5: not valid JSON" in lines[0]
    assert "line 6: " in lines[1]
    assert lines[2] == f"peek: {path}: 52 bad lines left out"


def test_a_trace(tmp_path: Path, capsys: Capsys) -> None:
    row = {"timestamp": 1, "input_length": 1000, "output_length": 2, "hash_ids": [5, 9]}
    path = write(tmp_path / "t.jsonl", [json.dumps(row)] * 20)
    found = bench(capsys, path, "--waiting", 4)
    assert_rows(found, 8)
    assert (found["waiting"], found["waiting_symbols"]) == (4, 8)
    assert found["prompts"].endswith("a symbol is a block of 512 tokens")


def test_the_table(tmp_path: Path, capsys: Capsys) -> None:
    assert main(["bench", "--waiting", "20", "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert f"peek {peek.__version__}, {peek.backend()}, policy peek; drawn" in out
    assert [line for line in out.splitlines() if line.startswith("tree, insert one ")]


# -- the parts --------------------------------------------------------------------------------------------


def test_rounds_time_the_action_and_nothing_else() -> None:
    calls: list[str] = []

    def setup() -> tuple[str]:
        calls.append("setup")
        return ("x",)

    rounds = Rounds(calls.append, setup)
    rounds.do(2)
    assert calls == ["setup", "x"] * 3
    assert len(rounds.times_s) == 2
    assert best_of(3, lambda: calls.append("y")) >= 0.0
    assert calls[-3:] == ["y"] * 3


def test_a_rig_turns_over_and_takes_one_more() -> None:
    rnd = random.Random(0)
    keys = [pack([1, 2, 3, *(rnd.randrange(9) for _ in range(5))]) for _ in range(6)]
    cache = RadixCache(1)
    cache.insert(keys[0], "")
    rig = Rig(keys, cache, "clpm", own_at=3)
    first, version = rig.queue.ids[0], cache.version
    rig.turn_over()
    assert first not in rig.queue.ids
    assert len(rig.queue.ids) == 6
    assert cache.version > version
    rig.cycle()
    for _ in range(3):
        rig.one_arrival()
        assert len(rig.queue.ids) == 7
        rig.cycle()
        assert sorted(rig.planner.tree.scores()) == sorted(rig.queue.ids)
    assert rig.queue.keys[f"request-{len(rig.queue.keys) - 1}"][:12] == keys[0][:12]


def test_what_waits_and_what_is_cached() -> None:
    keys = [pack([number]) for number in range(10)]
    bench = Bench(keys, 4, "peek", 1, 1)
    assert (bench.waiting, bench.cached) == (keys[6:], keys[:6:2])
    assert [figure.what for figure in bench.figures()][:6] == MEASURED


def test_times_as_text() -> None:
    assert [readable(each) for each in (0.0123, 0.000456, 1.5e-6)] == ["12.30 ms", "456 us", "1.50 us"]
    assert aligned([("a", "b"), ("long", "1")], "<>") == ["a     b", "long  1"]


def test_a_build_without_timing_is_measured_by_this_ones(tmp_path: Path) -> None:
    for name, modules in (("old", ["__init__.py"]), ("new", ["__init__.py", "timing.py"])):
        package = tmp_path / name / "peek"
        package.mkdir(parents=True)
        (tmp_path / name / "peek__mypyc.so").touch()
        for module in modules:
            (package / module).touch()
        exposed = expose(tmp_path / name, tmp_path / f"exposed-{name}")
        own = (exposed / "peek" / "timing.py").resolve()
        assert own == ((package if name == "new" else ROOT / "peek") / "timing.py").resolve()
        assert own.exists()


@pytest.mark.parametrize("name", PARSERS)
def test_help_is_given_on_every_build(monkeypatch: Patch, capsys: Capsys, name: str) -> None:
    monkeypatch.setattr(peek, "backend", lambda: "interpreted")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit) as ended:
        run_path(str(ROOT / name), run_name="__main__")
    assert (ended.value.code, capsys.readouterr().out.startswith("usage: ")) == (0, True)
    assert logging.root.manager.disable == logging.NOTSET, "help silences no log"
