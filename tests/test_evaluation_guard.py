"""`make eval` sees a policy that is not `peek`, a run that was cut short, and results that must not be
stored.

The policies are really substituted, and their runs compared as CI compares them.  Runs of a policy are the
same on both builds, so the compiled one, on which `bench` insists, is enough.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import peek
from peek import config

ROOT = Path(__file__).resolve().parent.parent
if peek.backend() != "compiled":
    pytest.skip("bench runs on the compiled build only", allow_module_level=True)
sys.path.append(str(ROOT))  # behind everything: `peek` stays the one that is tested

from bench import ablation  # noqa: E402
from bench.evaluation import check, store  # noqa: E402
from bench.evaluation.plans import FAMILY, FRESH, FULL, GUARDED, QUICK, SIMULATED, runs_of  # noqa: E402
from bench.evaluation.policies import REORDERED, config_of  # noqa: E402
from bench.evaluation.record import record  # noqa: E402
from bench.evaluation.results import Record, write  # noqa: E402
from bench.evaluation.streams import build  # noqa: E402
from peek.simulation.cells import cell  # noqa: E402
from peek.simulation.simulate import simulate  # noqa: E402

STREAMS = ("w1a:heavy", "w1c:heavy")
SUBSTITUTES = [label for label in GUARDED if label != "peek"]


def played(label: str) -> list[Record]:
    """Runs of the quick plan."""
    return [
        record(engine, stream, build(stream, FRESH[0], FAMILY[engine], None), label)
        for engine in SIMULATED
        for stream in STREAMS
    ]


@pytest.fixture(scope="module")
def rival() -> list[Record]:
    return played(check.RIVAL)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, rival: list[Record]) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    write(folder / "runs.csv", [*rival, *played("peek")])
    path = folder / "reference.json"
    assert called(check, folder / "runs.csv", "--reference", path, "--store") == 0
    return path


def called(module: Any, *arguments: object) -> int:
    """The exit status of a module's `main` with these arguments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["module", *map(str, arguments)])
        status: int = module.main()
    return status


def test_the_stored_runs_have_all_that_ci_compares() -> None:
    assert set(runs_of(QUICK)) <= set(runs_of(FULL))


def test_six_policies_could_be_taken_for_peek() -> None:
    assert len(SUBSTITUTES) == 6


@pytest.mark.parametrize("label", SUBSTITUTES)
def test_another_policy_under_the_name_of_peek_is_caught(
    label: str, reference: Path, rival: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(config.PRESETS, "peek", config.PRESETS[label])
    write(tmp_path / "runs.csv", [*rival, *played("peek")])
    assert called(check, tmp_path / "runs.csv", "--reference", reference) == 1
    said = capsys.readouterr().out
    assert "moved: simulated-" in said
    assert "CUT" not in said


def test_the_same_policy_passes(reference: Path, rival: list[Record], tmp_path: Path) -> None:
    write(tmp_path / "runs.csv", [*rival, *played("peek")])
    assert called(check, tmp_path / "runs.csv", "--reference", reference) == 0


@pytest.mark.parametrize("figure", ["hit", "ttft", "ttft_p99"])
@pytest.mark.parametrize(("by", "status"), [(0.9, 1), (0.98, 0), (1.02, 0), (1.1, 1)])
def test_each_figure_alone_is_looked_at(figure: str, by: float, status: int) -> None:
    was = {"simulated-radix | a | 1 | fcfs+lru": {"hit": 0.8, "ttft": 10.0, "ttft_p99": 30.0}}
    now = {name: run | {figure: run[figure] * by} for name, run in was.items()}
    assert check.compare(now, was) == status


@pytest.mark.parametrize("figure", ["ttft", "ttft_p99"])
def test_a_win_that_is_lost_is_a_fault_however_small(figure: str, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = "simulated-radix | a | 1 | peek", f"simulated-radix | a | 1 | {check.RIVAL}"
    was = {
        ours: {"hit": 0.8, "ttft": 10.0, "ttft_p99": 30.0},
        theirs: {"hit": 0.8, "ttft": 10.1, "ttft_p99": 30.1},
    }
    now = {**was, ours: was[ours] | {figure: was[ours][figure] * 1.02}}
    assert check.compare(was, was) == 0
    assert check.compare(now, was) == 1
    assert f"lost: {ours}: no longer ahead" in capsys.readouterr().out


def test_the_last_line_says_that_a_run_was_cut_short(
    reference: Path, rival: list[Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "runs.csv", rival[:-1])
    assert called(check, tmp_path / "runs.csv", "--reference", reference) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("CUT SHORT, not run: 3 of simulated-blocks, 2 of simulated-radix")


def test_an_engine_that_is_not_here_is_named_and_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    runs = {
        f"{engine} | a | 1 | peek": dict.fromkeys(check.TOLERANCE, 1.0) for engine in ("vllm", *SIMULATED)
    }
    here = {name: run for name, run in runs.items() if not name.startswith("vllm")}
    assert check.compare(here, runs) == 0
    assert capsys.readouterr().out == "2 of 3 runs compared, 0 faults; not here: vllm\n"


def test_a_run_without_engines_stores_nothing(rival: list[Record], tmp_path: Path) -> None:
    kept, run = tmp_path / "results.csv", tmp_path / "run.csv"
    kept.write_text("what is stored")
    write(run, rival)
    assert called(store, run, "--into", kept) == 1
    assert kept.read_text() == "what is stored"


def test_a_whole_run_without_engines_is_not_begun(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    command = [sys.executable, "-m", "bench.evaluation.run", "--plan", "full", "--whole", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nothing begun: a whole run needs " in done.stderr
    assert "mooncake/conversation_trace.jsonl.gz" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("name", ablation.VARIANTS)
def test_each_variant_of_the_ablation_finds_its_lines_and_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = ablation.write(tmp_path, name, ablation.VARIANTS[name])
    monkeypatch.syspath_prepend(tmp_path)
    burst = cell("w1a", "heavy", 1, "vllm")
    few = replace(burst, requests=burst.requests[:40], warmup=0)
    assert simulate(few, label, "blocks")["requests"] == 40
    with pytest.raises(AssertionError, match="has no 'no such line' any more"):
        ablation.write(tmp_path, "other", [("frontier", "no such line", "")])


@pytest.mark.parametrize("label", ["peek", "peek:mean_bias=1,grace_tokens=inf", "fcfs+lru"])
def test_every_option_of_a_label_counts_also_for_a_batch_put_in_order(label: str) -> None:
    assert config_of(label) == config_of(label + REORDERED) == config.PeekConfig.from_label(label)


def test_a_run_that_has_no_time_says_so(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    command = [sys.executable, "-m", "bench.evaluation.run", "--engines", "simulated-radix", "--minutes", "0"]
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1].startswith("cut short, to go on with the same command:")
