"""The `peek` command from outside: JSON, tables, figures, exit codes, one-line errors.

What only a process shows (pipes, terminals, signals, the environment) runs in one; wrong usage, of
which there is a lot, calls `main` in this process.
"""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fixtures import Capsys, Patch
from support.waiting import PATIENCE_S, until

import peek
from peek.adapters.engine_adapter import TESTED
from peek.cli import reading, report
from peek.cli.main import main
from peek.cli.report import rounded, significant, times_better
from peek.simulation.workload import Workload

# -- running it -------------------------------------------------------------------------------------------

HOME = Path(peek.__file__).resolve().parent.parent
COMMAND = [sys.executable, "-m", "peek"]
STEERING = ("PEEK_", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_", "TERM", "PYTHONPATH")

ROW: dict[str, Any] = {"timestamp": 0, "input_length": 1500, "output_length": 4, "hash_ids": [1, 2, 3]}


def environment(**more: str) -> dict[str, str]:
    """This process's, with the build under test and nothing that steers output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(STEERING)}
    return {**kept, "PYTHONPATH": str(HOME), "PYTHONIOENCODING": "utf-8", **more}


Done = subprocess.CompletedProcess[str]


def run(*arguments: object, cwd: Path, stdout: Any = subprocess.PIPE, **more: str) -> Done:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], cwd=cwd, env=environment(**more), stdin=subprocess.DEVNULL,
        stdout=stdout, stderr=subprocess.PIPE, encoding="utf-8", timeout=PATIENCE_S, check=False
    )  # fmt: skip


def runs_of(result: Done) -> list[dict[str, Any]]:
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    whole = json.loads(result.stdout)
    assert isinstance(whole, dict)
    runs: list[dict[str, Any]] = whole["runs"]
    return runs


def simulated(capsys: Capsys, *words: object) -> dict[str, Any]:
    """What `peek simulate` says as JSON, in this process."""
    assert main(["simulate", "--json", *map(str, words)]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def rows_by_name(shown: str) -> dict[str, list[str]]:
    """The words of each line, by the first."""
    return {line.split()[0]: line.split() for line in shown.splitlines() if line}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 requests of three conversations, two a second."""
    path = tmp_path_factory.mktemp("trace") / "talk.jsonl"
    lines = []
    for turn in range(60):
        blocks = [1000 * (turn % 3) + block for block in range(2 + turn // 10)] + [9000 + turn]
        row = {**ROW, "timestamp": 500 * turn, "input_length": 512 * len(blocks) - 7, "hash_ids": blocks}
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n")
    return path


# -- JSON -------------------------------------------------------------------------------------------------

CONTRACT = json.loads("""
{"runs": [{"workload": "w1c", "load": "heavy", "policy": "lpm+lru", "seed": 42, "requests": 1000, "finished": 1000,
  "cache_hit": 0.38, "ideal_hit": 0.90, "throughput_rps": 1.4, "ttft_s": {"mean": 0, "p50": 0, "p99": 0}, "e2e_s": {"mean": 0, "p50": 0, "p99": 0},
  "tpot_ms": {"mean": 0}, "queue_wait_s": {"p99": 0, "max": 0}, "prefill_tokens": 0, "plan_us": {"mean": 0, "p99": 0}}]}
""")["runs"][0]  # noqa: E501 - as it stands in the contract


def assert_shape(run: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Every key of the contract, with a value of its kind; more keys are allowed at the top only."""
    for name, example in wanted.items():
        value = run[name]
        if isinstance(example, dict):
            assert set(value) == set(example)
            assert_shape(value, example)
        elif isinstance(example, str):
            assert isinstance(value, str)
        else:
            assert isinstance(value, (int, float))
            assert not isinstance(value, bool)


def test_goodput_of_the_targets_that_are_named(capsys: Capsys) -> None:
    words = "--workload w1a --load moderate --policy peek --slo 5 --slo 0.5,40 --replicas 2 --router peek"
    (found,) = simulated(capsys, *words.split())["runs"]
    targets = [(each["ttft_s"], each["tpot_ms"]) for each in found["goodput"]]
    assert targets == [(2, 100), (10, 100), (5, 100), (0.5, 40)]
    shares = [each["share"] for each in found["goodput"]]
    assert 0.0 <= shares[3] <= shares[0] <= shares[2] <= shares[1] <= 1.0
    assert found["slowdown"]["mean"] >= 1.0


def test_json_of_a_cell_is_the_contract(tmp_path: Path) -> None:
    labels = ["fcfs+lru", "peek"]
    result = run(
        "simulate", "--workload", "w1a", "--load", "moderate", "--seed", 142, "--json",
        *[word for label in labels for word in ("--policy", label)], cwd=tmp_path
    )  # fmt: skip
    runs = runs_of(result)
    assert [each["policy"] for each in runs] == labels
    for each in runs:
        assert_shape(each, CONTRACT)
        assert (each["workload"], each["load"], each["seed"]) == ("w1a", "moderate", 142)
        assert each["requests"] == each["finished"] == 1000
        assert 0.0 < each["cache_hit"] <= each["ideal_hit"] < 1.0
        assert 0.0 < each["ttft_s"]["p50"] <= each["ttft_s"]["p99"] <= each["e2e_s"]["p99"]
        assert each["backend"] == peek.backend()
    stock, ours = runs
    assert stock["plan_us"]["mean"] == 0.0 < ours["plan_us"]["mean"] <= ours["plan_us"]["p99"]
    assert ours["ttft_s"]["mean"] < stock["ttft_s"]["mean"]


def test_same_arguments_same_json_but_for_planning_times(tmp_path: Path, trace: Path) -> None:
    arguments = ("simulate", "--trace", trace, "--json", "--arena-tokens", 12000, "--cache", "blocks")
    first, second = (runs_of(run(*arguments, cwd=tmp_path)) for _ in range(2))
    for each in first + second:
        assert_shape(each, CONTRACT)
        del each["plan_us"]
    assert first == second
    assert [each["policy"] for each in first] == [
        "fcfs+lru", "lpm+lru", "lpm-nolimit+lru", "hrrn+lru", "clpm+gm+dl+pe", "peek"
    ]  # fmt: skip
    assert {(each["workload"], each["load"], each["seed"]) for each in first} == {("talk", "trace", 0)}
    assert {(each["requests"], each["arena_tokens"], each["cache"]) for each in first} == {
        (60, 12000, "blocks")
    }


def test_a_fleet_in_json_and_as_a_table(tmp_path: Path, trace: Path) -> None:
    arguments = ("simulate", "--trace", trace, "--arena-tokens", 12000, "--replicas", 3)
    runs = runs_of(run(*arguments, "--json", cwd=tmp_path))
    assert [(each["router"], each["policy"]) for each in runs] == [
        ("round-robin", "peek"), ("prefix-hash", "peek"), ("peek", "peek")
    ]  # fmt: skip
    for each in runs:
        assert_shape(each, {**CONTRACT, "replicas": 4, "router": "peek", "imbalance": 1.2})
        assert (each["replicas"], each["finished"]) == (3, 60)
    result = run(*arguments, "--router", "lmetric", "--policy", "fcfs+lru", "--policy", "peek", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.startswith("lmetric, fcfs+lru ")]
    footnote = " ".join(lines[-4:])
    assert "3 replicas" in footnote
    assert "times better than lmetric, fcfs+lru" in footnote


@pytest.fixture
def asked(monkeypatch: Patch) -> list[tuple[Workload, str]]:
    """The workload and policy of each run that `peek simulate` begins; none is run."""
    noted: list[tuple[Workload, str]] = []

    def note(workload: Workload, label: str, *_: object, **__: object) -> dict[str, Any]:
        noted.append((workload, label))
        return {}

    monkeypatch.setattr("peek.cli.simulate.simulate", note)
    monkeypatch.setattr("peek.cli.simulate.simulate_fleet", note)
    return noted


def test_a_cell_comes_faster_to_a_fleet(asked: list[tuple[Workload, str]]) -> None:
    assert main(["simulate", "--json", "--policy", "peek"]) == 0
    assert main(["simulate", "--json", "--policy", "peek", "--replicas", "4", "--router", "peek"]) == 0
    alone, shared = (workload.requests[-1].arrival_s for workload, _ in asked)
    assert shared == pytest.approx(alone / 4)


def test_every_seed_meets_every_policy(asked: list[tuple[Workload, str]]) -> None:
    words = ["--seed", "1", "--seed", "2", "--policy", "fcfs+lru", "--policy", "spf+lru"]
    assert main(["simulate", "--json", *words]) == 0
    assert [(workload.seed, label) for workload, label in asked] == [
        (1, "fcfs+lru"), (1, "spf+lru"), (2, "fcfs+lru"), (2, "spf+lru")
    ]  # fmt: skip


@pytest.mark.parametrize(("cache", "requests"), [("radix", 1000), ("blocks", 500)])
def test_engine_kind_picks_its_column_of_the_cell(
    cache: str, requests: int, asked: list[tuple[Workload, str]]
) -> None:
    assert main(["simulate", "--json", "--workload", "w2b", "--policy", "peek", "--cache", cache]) == 0
    ((workload, label),) = asked
    assert (workload.seed, label, len(workload.requests)) == (42, "peek", requests)


@pytest.mark.parametrize(
    ("words", "requests", "span_s"),
    [([], 60, 29.5), (["--rate-scale", "2"], 60, 14.75), (["--limit", "20"], 20, 9.5)],
)
def test_trace_options(trace: Path, capsys: Capsys, words: list[str], requests: int, span_s: float) -> None:
    (only,) = simulated(capsys, "--trace", trace, "--policy", "fcfs+lru", *words)["runs"]
    assert only["requests"] == only["finished"] == requests
    measured = requests - requests // 10
    arrivals_s = span_s * (measured - 1) / (requests - 1)  # arrivals are equally far apart
    assert measured / only["throughput_rps"] == pytest.approx(arrivals_s + only["e2e_s"]["mean"], abs=0.5)


def test_floats_have_six_significant_digits() -> None:
    assert rounded({"a": {"b": 1234.56789}, "c": 1e-9 / 3, "d": 7, "e": "x"}) == {
        "a": {"b": 1234.57}, "c": 3.33333e-10, "d": 7, "e": "x"
    }  # fmt: skip


# -- recorded sessions ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 sessions of 3 turns with a common beginning."""
    path = tmp_path_factory.mktemp("sessions") / "talks.sessions.jsonl"
    rows = []
    for session in range(12):
        tokens = list(range(600))
        for turn in range(3):
            tokens = tokens + [1000 * session + turn] * 200
            row = {"session": session, "turn": turn, "tokens": tokens, "output_length": 40, "gap_s": 0.2}
            rows.append(json.dumps(row) + "\n")
    path.write_text("".join(rows))
    return path


@pytest.mark.parametrize("fleet", [[], ["--replicas", "2", "--router", "peek"]])
def test_sessions_of_several_seeds(talks: Path, capsys: Capsys, fleet: list[str]) -> None:
    words = "--cache blocks --session-rate 3 --policy fcfs+lru --policy peek --seed 1 --seed 2 --limit 10"
    found = simulated(capsys, "--sessions", talks, *words.split(), *fleet)
    assert [(run["seed"], run["policy"]) for run in found["runs"]] == [
        (1, "fcfs+lru"), (1, "peek"), (2, "fcfs+lru"), (2, "peek")
    ]  # fmt: skip
    for run in found["runs"]:
        assert_shape(run, {**CONTRACT, "job_s": {"mean": 0, "p50": 0, "p99": 0}, "session_rate": 1})
        assert (run["workload"], run["load"], run["session_rate"]) == ("talks", "sessions", 3)
        assert (run["requests"], run["finished"], run["warmup"]) == (30, 30, 0)
        assert "rate_scale" not in run
        assert run["job_s"]["p50"] > 2 * 0.2 + 2 * run["e2e_s"]["p50"]
    first, _, second, _ = found["runs"]
    assert first["e2e_s"] != second["e2e_s"]
    assert len(found["verdicts"]) == 2


@pytest.mark.parametrize("option", ["--trace", "--sessions"])
def test_recorded_traffic_on_standard_input(talks: Path, tmp_path: Path, option: str) -> None:
    rows = talks.read_bytes() if option == "--sessions" else json.dumps(ROW).encode()
    words = [*COMMAND, "simulate", option, "-", "--policy", "peek", "--json"]
    told = subprocess.run(
        words, cwd=tmp_path, env=environment(), input=rows, capture_output=True, check=False
    )
    (run,) = json.loads(told.stdout)["runs"]
    assert (run["workload"], run["finished"]) == ("-", 36 if option == "--sessions" else 1)


def test_no_sentence_compares_policies_behind_several_routers(talks: Path, capsys: Capsys) -> None:
    words = "--limit 10 --policy fcfs+lru --policy peek --replicas 2 --router peek --router round-robin"
    found = simulated(capsys, "--sessions", talks, *words.split())
    assert len(found["runs"]) == 4
    assert "verdicts" not in found


def test_a_turn_of_a_session_waits_for_the_one_before(talks: Path, tmp_path: Path) -> None:
    path = tmp_path / "each.csv"
    words = ["simulate", "--sessions", str(talks), "--policy", "peek", "--arena-tokens", "3000"]
    assert main([*words, "--max-running", "2", "--session-rate", "50", "--per-request", str(path)]) == 0
    with path.open(newline="") as stream:
        rows = {row["request_id"]: row for row in csv.DictReader(stream)}
    assert list(next(iter(rows.values())))[-3:] == ["policy", "seed", "session"]
    assert len(rows) == 36
    for session in range(12):
        for turn in range(3):
            assert rows[f"{session}/{turn}"]["session"] == str(session)
        for turn in (1, 2):
            ended_s = float(rows[f"{session}/{turn - 1}"]["finished_s"])
            assert float(rows[f"{session}/{turn}"]["arrival_s"]) == pytest.approx(ended_s + 0.2, abs=2e-6)


def test_the_table_of_sessions_has_the_job_time(talks: Path, capsys: Capsys) -> None:
    words = ["--sessions", str(talks), "--arena-tokens", "5000", "--session-rate", "20"]
    runs = simulated(capsys, *words)["runs"]
    assert main(["simulate", *words]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert [line.split()[-1] for line in lines[:3]] == ["job", "mean", "s"]
    assert max(map(len, lines)) <= 80
    rows = rows_by_name(shown)
    for run in runs:
        assert float(rows[run["policy"]][-1]) == pytest.approx(run["job_s"]["mean"], rel=0.01)
    said = " ".join(shown.split())
    assert "sessions talks, 20 a second, seed 42: 36 requests" in said
    assert main(["simulate", *words, "--policy", "fcfs+lru", "--policy", "lpm-nolimit+lru"]) == 0
    assert "the mean job time" in " ".join(capsys.readouterr().out.split())
    assert "--rate-scale" not in said


def test_idle_sessions_want_a_higher_rate(talks: Path, tmp_path: Path, capsys: Capsys) -> None:
    words = ["simulate", "--policy", "fcfs+lru", "--policy", "peek", "--sessions"]
    assert main([*words, str(talks), "--session-rate", "0.01"]) == 0
    assert "a higher --session-rate makes one" in " ".join(capsys.readouterr().out.split())
    row = {**ROW, "session": "s", "turn": 0, "gap_s": 0}
    (tmp_path / "timed.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "turn": 1}) + "\n")
    assert main([*words, str(tmp_path / "timed.jsonl")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "sessions timed: 2 requests" in said
    assert said.endswith("so there is hardly a queue to order.")


# -- the table --------------------------------------------------------------------------------------------


def test_one_of_a_thing_is_no_plural(tmp_path: Path, capsys: Capsys) -> None:
    log, traced, out = tmp_path / "one.jsonl", tmp_path / "trace.jsonl", tmp_path / "out.jsonl"
    log.write_text('{"custom_id": "r", "timestamp": 0, "prompt": [7], "max_tokens": 2}\n')
    for command in (
        ["trace", log, traced], ["simulate", "--trace", traced], ["check", log, "--draws", 1, "--seed", 7],
        ["simulate", "--trace", traced, "--replicas", 1, "--router", "peek"],
        ["reorder", log, out, "--explain"], ["reorder", log, out, "--explain", "--out-of-core"],
    ):  # fmt: skip
        if "--out-of-core" in command:
            pytest.importorskip("duckdb")
        assert main(list(map(str, command))) == 0
        shown = "".join(capsys.readouterr())
        assert re.search(r"\b1 (request|token|replica)\b", shown)
        assert not re.search(r"(?<![.,\d])1 (?!as|ms)[a-z]+s\b", shown), shown


def test_names_that_are_no_unicode_are_escaped(tmp_path: Path, capsys: Capsys) -> None:
    pytest.importorskip("matplotlib")
    log, each, figure, page = (tmp_path / name for name in ("\udcff.jsonl", "each.csv", "a.png", "a.html"))
    row = {"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1], "tenant": "\ud800"}
    log.write_text(json.dumps(row))
    words = ["--trace", log, "--per-request", each, "--plot", figure]
    assert simulated(capsys, *words)["runs"][0]["workload"] == "\udcff"
    assert "trace-0,\\ud800,0.0" in each.read_text()
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert main(["check", str(log), "--html", str(page), "--draws", "0"]) == 0
    assert "<title>peek check: \\udcff.jsonl</title>" in page.read_text()


@pytest.mark.parametrize("columns", ["80", "120", "", "0"])
def test_table_in_a_pipe(tmp_path: Path, trace: Path, columns: str) -> None:
    width = {"COLUMNS": columns} if columns else {}
    result = run("simulate", "--trace", trace, "--arena-tokens", 12000, cwd=tmp_path, **width)
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert all(line == line.rstrip() and len(line) <= (int(columns or 80) or 80) for line in lines)
    words = rows_by_name(result.stdout)
    assert words["fcfs+lru"].count("x1.0") == 2
    assert len(words["peek"]) == len(words["policy"]) == 13
    assert words["ideal"][1] == "cache"
    footnote = " ".join(lines[-7:])
    for fact in (
        "trace talk", "60 requests", "arena of 12,000 tokens", "radix cache", "SGLang-like",
        "Qwen2.5-32B on H100-SXM-80GB", peek.backend(), "times better than fcfs+lru"
    ):  # fmt: skip
        assert fact in footnote


def test_the_others_are_compared_with_the_first(trace: Path, capsys: Capsys) -> None:
    words = ["--trace", str(trace), "--arena-tokens", "6000", "--rate-scale", "8"]
    words += ["--policy", "fcfs+lru", "--policy", "hrrn+lru"]
    first, other = simulated(capsys, *words)["runs"]
    assert main(["simulate", *words]) == 0
    rows = rows_by_name(capsys.readouterr().out)
    ratios = (
        first["ttft_s"]["mean"] / other["ttft_s"]["mean"],
        other["throughput_rps"] / first["throughput_rps"],
    )
    assert [word for word in rows["hrrn+lru"] if word[0] == "x"] == [times_better(it) for it in ratios]
    assert [word for word in rows["fcfs+lru"] if word[0] == "x"] == ["x1.0", "x1.0"]
    assert min(ratios) > 2
    assert main(["simulate", *words[:-2]]) == 0
    shown = capsys.readouterr().out
    assert "x1.0" not in shown, "one policy is compared with nothing"
    assert "times better" not in shown


def test_terminal_without_unicode_gets_a_table_too(tmp_path: Path, trace: Path) -> None:
    result = run("simulate", "--trace", trace, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()


def test_progress_bar_is_for_terminals(tmp_path: Path, trace: Path) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "simulate", "--trace", str(trace), "--policy", "hrrn+lru"],
        cwd=tmp_path, env=environment(TERM="xterm"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=theirs
    ) as process:  # fmt: skip
        os.close(theirs)
        assert process.stdout is not None
        table = process.stdout.read()
        bar = os.read(ours, 100_000)
    os.close(ours)
    assert process.returncode == 0
    assert b"hrrn+lru" in bar
    assert b"%" in bar
    assert b"\x1b" not in table


def test_a_bar_adds_up_its_parts(monkeypatch: Patch) -> None:
    monkeypatch.setattr(reading, "_REFRESH_S", 0.0)
    bar = reading.ProgressBar(10, "first")
    shown = []
    for part, done in (("first", 1), ("first", 3), ("second", 0), ("second", 2)):
        if part == "second" and done == 0:
            bar.next_part(part)
        bar.show(done)
        shown.append(bar.tasks[0].completed)
    assert shown == [1, 3, 3, 5]


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (significant, 0.0, "0"), (significant, 0.0123, "0.012"), (significant, 0.9996, "1.00"),
        (significant, 9.994, "9.99"), (significant, 9.996, "10.0"), (significant, 99.96, "100"),
        (significant, 1156.4, "1156"), (times_better, 4.06, "x4.1"), (times_better, 1.0, "x1.0"),
        (times_better, 0.5, "x0.50"), (times_better, 12.3, "x12"),
    ],
)  # fmt: skip
def test_figures_as_text(write: Callable[[float], str], value: float, text: str) -> None:
    assert write(value) == text


# -- the figure -------------------------------------------------------------------------------------------


def test_plot_goes_through_a_link_and_never_over_the_trace(
    tmp_path: Path, trace: Path, capsys: Capsys
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "link.svg").symlink_to("real.svg")
    words = ["--policy", "peek", "--plot", str(tmp_path / "link.svg")]
    simulated(capsys, *words, "--trace", trace)
    assert (tmp_path / "link.svg").is_symlink()
    assert b"</svg>" in (tmp_path / "real.svg").read_bytes()
    before = (tmp_path / "real.svg").read_bytes()
    command = ["simulate", *words, "--trace", str(tmp_path / "real.svg")]
    assert_refused(capsys, command, 2, "--plot", "link.svg", "is the same file as")
    assert (tmp_path / "real.svg").read_bytes() == before


def test_plot_without_matplotlib_says_what_to_install(tmp_path: Path, trace: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "matplotlib.py").write_text("raise ImportError('hidden')\n")
    path = f"{hidden}{os.pathsep}{HOME}"
    result = run("simulate", "--trace", trace, "--plot", "out.png", cwd=tmp_path, PYTHONPATH=path)
    assert_one_line_error(result, 1, "pip install 'peek-kv[plot]'")
    assert not (tmp_path / "out.png").exists()


# -- errors -----------------------------------------------------------------------------------------------


def assert_one_line_error(result: Done, wanted: int, *named: str) -> None:
    assert result.returncode == wanted, result.stderr
    assert not result.stdout
    assert re.fullmatch("peek: [^\n]*\n", result.stderr)
    for text in named:
        assert text in result.stderr


def assert_refused(capsys: Capsys, command: list[str], wanted: int, *named: str) -> None:
    """Of a command in this process."""
    code = main(command)
    assert_one_line_error(Done(command, code, *capsys.readouterr()), wanted, *named)


def test_exit_codes_of_the_process(tmp_path: Path) -> None:
    assert_one_line_error(run("simulate", "--policy", "lru", cwd=tmp_path), 2, "'lru'")
    assert_one_line_error(run("simulate", "--trace", "missing.jsonl", cwd=tmp_path), 1, "missing.jsonl")


def planted_bug(*_: object) -> dict[str, Any]:
    raise KeyError("planted")


def test_our_own_bug_is_one_line_too(monkeypatch: Patch, trace: Path, capsys: Capsys) -> None:
    monkeypatch.setattr("peek.cli.simulate.simulate", planted_bug)
    words = ["internal error", "KeyError", "planted", "test_cli.py"]
    assert_refused(capsys, ["simulate", "--trace", str(trace)], 1, *words)


def test_reader_that_has_seen_enough(tmp_path: Path, trace: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    result = run("simulate", "--trace", trace, "--json", cwd=tmp_path, stdout=writing)
    os.close(writing)
    assert (result.returncode, result.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk(tmp_path: Path, trace: Path) -> None:
    with open("/dev/full", "w") as full:
        result = run("simulate", "--trace", trace, cwd=tmp_path, stdout=full)
    assert_one_line_error(result, 1, "No space left")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_ctrl_c(tmp_path: Path) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        pytest.skip("this run ignores Ctrl-C, and so would the command")
    pipe = tmp_path / "slow.jsonl"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [*COMMAND, "simulate", "--trace", str(pipe)], cwd=tmp_path, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )  # fmt: skip
    try:
        writer = opened_for_reading(pipe, process)
        time.sleep(0.3)  # the command waits for a row now, well past the opening of the file
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        os.close(writer)
    finally:
        process.kill()
    assert (process.returncode, out, err.strip()) == (130, "", "peek: interrupted")  # older typers add a line


def opened_for_reading(pipe: Path, process: subprocess.Popen[str]) -> int:
    """A named pipe's writing end, once the other end is open."""

    def opened() -> int:
        assert process.poll() is None, "the command ended without reading its trace"
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # no reader yet
            return 0

    return until(opened, "the opening of the trace")


# -- doctor and the rest ----------------------------------------------------------------------------------


def diagnosed(capsys: Capsys, code: int = 0) -> dict[str, Any]:
    """What `peek doctor` says as JSON, in this process."""
    assert main(["doctor", "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_doctor(tmp_path: Path) -> None:
    result = run("doctor", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    rows = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert rows["peek"] == f"{peek.__version__}, {peek.backend()}, from {HOME / 'peek'}"
    assert ".".join(map(str, sys.version_info[:3])) in rows["python"]
    assert rows["numpy"] == np.__version__
    for engine in ("vllm", "sglang"):
        assert rows[f"peek.adapters.{engine}"] == "tested on " + ", ".join(TESTED[engine])
        assert engine in rows
    assert rows["active"] == "stock"


def test_doctor_says_whether_the_engine_found_is_one_that_was_tested(
    tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, version in (("vllm", "0.32.0+cpu"), ("sglang", "0.6.0")):
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^peek\.adapters\.vllm +tested on 0\.32\.0\+cpu$", shown, re.MULTILINE)
    assert re.search(r"^peek\.adapters\.sglang +not tested on 0\.6\.0; on 0\.5\.9, ", shown, re.MULTILINE)


def test_doctor_says_whether_the_engines_find_a_plug_in(
    tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    assert diagnosed(capsys)["adapters"] == {"vllm": True, "sglang": True}
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # no distribution is there, as in an unpacked folder
    assert diagnosed(capsys)["adapters"] == {"vllm": False, "sglang": False}
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.count("; no plug-in: install peek-kv with pip") == 2


@pytest.mark.parametrize(
    ("variables", "active"),
    [
        ({"PEEK_POLICY": "peek"}, "peek"),
        ({"PEEK_POLICY": "clpm+gm+dl+pe"}, "clpm+gm+dl+pe"),
        ({"PEEK_POLICY": "fcfs+lru"}, "stock"),
        ({"PEEK_ONLINE_EVICTION": "1"}, "fcfs+pe"),
        ({"PEEK_ONLINE_CLPM": "1", "PEEK_ONLINE_CLPM_DYNAMIC_LANE": "1"},
         "clpm:lanes=cycle,dynamic_share=true"),
    ],
)  # fmt: skip
def test_doctor_tells_what_is_active(
    variables: dict[str, str], active: str, monkeypatch: Patch, capsys: Capsys
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = diagnosed(capsys)
    assert (found["active"], found["error"], found["backend"]) == (active, None, peek.backend())
    assert found["packages"]["numpy"] == np.__version__


def test_doctor_finds_a_policy_in_the_working_directory(
    tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    (tmp_path / "policies_of_doctor.py").write_text("from peek import FirstCome as Mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PEEK_POLICY", "policies_of_doctor:Mine")
    found = diagnosed(capsys)
    assert (found["active"], found["here_only"]) == ("policies_of_doctor:Mine", True)


@pytest.mark.parametrize("on_path", [False, True])
def test_doctor_says_where_an_engine_would_not_find_it(tmp_path: Path, on_path: bool) -> None:
    """`vllm serve` does not look into the working directory, as `python -m peek doctor` does."""
    (tmp_path / "mine.py").write_text("from peek import FirstCome as Mine\n")
    path = os.pathsep.join([str(HOME), *[str(tmp_path)] * on_path])
    result = run("doctor", cwd=tmp_path, PEEK_POLICY="mine:Mine", PYTHONPATH=path)
    assert result.returncode == 0, result.stderr
    assert ("an engine needs it installed, or on PYTHONPATH" in result.stdout) != on_path


@pytest.mark.parametrize(
    ("mode", "said"), [("on", ""), ("off", "off at start"), ("shadow", "shadow at start")]
)
def test_doctor_tells_the_mode(mode: str, said: str, monkeypatch: Patch, capsys: Capsys) -> None:
    monkeypatch.setenv("PEEK_CONFIG", json.dumps({"policy": "peek", "mode": mode}))
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert said in shown
    assert ("peek_shadow_hit_tokens_total" in shown) == (mode == "shadow")
    assert ("\nmode " in shown) == (mode != "on")
    assert diagnosed(capsys)["mode"] == mode


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("PEEK_POLICY", "best", "'best'"),
        ("PEEK_ONLINE_CLMP", "1", "PEEK_ONLINE_CLMP"),
        ("PEEK_ONLINE_CLPM", "maybe", "'maybe'"),
    ],
)
def test_doctor_finds_an_invalid_environment(
    name: str, value: str, named: str, monkeypatch: Patch, capsys: Capsys
) -> None:
    monkeypatch.setenv(name, value)
    assert main(["doctor"]) == 1
    shown = capsys.readouterr()
    assert_one_line_error(Done([], 1, "", shown.err), 1, named)
    assert peek.backend() in shown.out  # the rest is told all the same
    found = diagnosed(capsys, 1)
    assert named in found["error"]
    assert found["active"] is None


def test_the_module_is_the_command(tmp_path: Path) -> None:
    (entry,) = entry_points(group="console_scripts", name="peek")
    script = f"import sys; sys.argv[0] = 'peek'; from {entry.module} import {entry.attr} as m; sys.exit(m())"
    for words in (["--version"], ["simulate", "--help"], ["--guess"]):
        results = []
        for start in (["-m", "peek"], ["-c", script]):
            command = [sys.executable, *start, *words]
            done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, check=False)
            results.append((done.returncode, done.stdout, done.stderr))
        assert results[0] == results[1]


def test_version_and_help(capsys: Capsys) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"peek {peek.__version__}\n"
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "simulate" in shown
    assert "doctor" in shown
    assert main([]) == 0
    assert capsys.readouterr().out == shown
    assert main(["simulate", "--help"]) == 0
    assert "--arena-tokens" in capsys.readouterr().out


def column_of(figure: str) -> Any:
    """The column of a figure that is drawn."""
    return next(column for column in report._COLUMNS if column.figure.name == figure)


def drawn(values: list[list[float]], figure: str) -> Any:
    """The axes of one panel, as `save_plot` draws them."""
    module = pytest.importorskip("matplotlib.figure")
    axes = module.Figure(figsize=(5.0, 3.0)).add_subplot()
    report._draw(axes, ["a", "peek"], values)
    report._scale(axes, figure, values)
    report._write_values(axes, column_of(figure), values)
    return axes


def test_each_bar_has_its_value_behind_it() -> None:
    axes = drawn([[2.0, 4.0], [10.0, 10.0]], "ttft_s.mean")
    said = {each.get_text(): (each.xy, each.get_position()) for each in axes.texts}
    write = column_of("ttft_s.mean").text
    assert said == {write(3.0): ((4.0, 0), (5, 0)), write(10.0): ((10.0, 1), (5, 0))}


def test_a_wide_range_is_drawn_on_a_log_scale_with_plain_numbers() -> None:
    axes = drawn([[1.0], [100.0 * report.LOG_RANGE]], "ttft_s.p99")
    assert axes.get_xscale() == "log"
    assert axes.xaxis.get_major_formatter()(200.0) == "200"
    assert axes.get_title("left").endswith("log scale")
    assert drawn([[1.0], [2.0]], "ttft_s.p99").get_xscale() == "linear"


def test_the_figure_has_the_values_of_all_its_panels(tmp_path: Path, trace: Path, capsys: Capsys) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.svg"
    runs = simulated(capsys, "--trace", trace, "--plot", path)["runs"]
    picture = path.read_text()
    for run in runs:
        for column in map(column_of, report.PANELS):
            value = column.text(
                column.figure.value(run)
            )  # drawn as outlines, or as text, as matplotlib is set
            assert f"<!-- {value} -->" in picture or f">{value}<" in picture


def test_a_value_of_a_long_bar_of_hits_stands_inside_clear_of_the_ideal() -> None:
    axes = drawn([[0.9], [0.01]], "cache_hit")
    write = column_of("cache_hit").text
    said = {each.get_text(): (each.get_position(), each.get_ha()) for each in axes.texts}
    assert said == {write(0.9): ((-5, 0), "right"), write(0.01): ((5, 0), "left")}


def test_a_bar_draws_from_no_thread_of_its_own_and_names_a_part_as_it_is_called() -> None:
    bar = reading.ProgressBar(10, "[red]my[/] trace")
    assert not bar.live.auto_refresh
    assert bar.columns[0].render(bar.tasks[0]).plain == "[red]my[/] trace"


def test_panels_stand_two_by_two_and_of_several_routers_only_the_bar_of_peek_is_red(
    tmp_path: Path, trace: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure
    to_hex = pytest.importorskip("matplotlib.colors").to_hex
    seen: list[Any] = []
    monkeypatch.setattr(figure, "savefig", lambda self, *_, **__: seen.append(self))
    words = ["--router", "round-robin", "--router", "peek", "--policy", "fcfs+lru", "--policy", "peek"]
    simulated(capsys, "--trace", trace, "--replicas", 2, *words, "--plot", tmp_path / "out.svg")
    places = [axes.get_subplotspec().get_geometry() for axes in seen[0].axes]
    assert places == [(2, 2, place, place) for place in range(4)]
    named = [any(label.get_text() for label in axes.get_yticklabels()) for axes in seen[0].axes]
    assert named == [True, False, True, False], "names at the left"
    axes = seen[0].axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["round-robin, fcfs+lru", "peek, fcfs+lru", "round-robin, peek", "peek, peek"]
    red = report._PEEK
    assert [to_hex(bar.get_facecolor()) == red for bar in axes.patches] == [False, False, False, True]
