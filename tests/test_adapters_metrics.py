"""The series of an adapter: right, current, one by one against what happened, over fallbacks and restarts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.attached import EmptyCache, ToyEngine, toy, toy_attachment
from support.waiting import Clock

from peek import PendingRequest, Planner
from peek.adapters import export
from peek.adapters import lifecycle as shields
from peek.adapters.engine_adapter import EngineInfo
from peek.adapters.metrics import EVERY_S, LABELS, METRICS, snapshot
from peek.adapters.observed import PLACES, PLAN_SECONDS, TOKENS, Observations, ObservedPlanner, Tally

prometheus = pytest.importorskip("prometheus_client", reason="metrics need prometheus_client")


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The series on /metrics by name and labels beyond the common ones."""
    monkeypatch.delenv(export.ENGINES_FOLDER, raising=False)
    monkeypatch.setenv(export.OUR_FOLDER, str(tmp_path / "series"))
    return lambda: series(tmp_path / "series")


def series(path: Path) -> dict[str, float]:
    found = {}
    for metric in export.FolderCollector(path).collect():
        for sample in metric.samples:
            extra = [f"{name}={value}" for name, value in sample.labels.items() if name not in LABELS]
            found[" ".join([sample.name, *extra])] = sample.value
    return found


def busy(engine: ToyEngine, attachment: Any, requests: int = 8) -> None:
    for i in range(requests):
        engine.arrive(f"r{i}-{len(engine.prompts)}", [7 + i % 3] * 4 + [i])
    for _ in range(requests):
        engine.step(attachment)


def that_was_busy(**options: Any) -> tuple[ToyEngine, Any]:
    """An engine that has served eight requests, and what is attached to it."""
    engine, attachment = toy(**options)
    busy(engine, attachment)
    return engine, attachment


def test_what_is_shown_is_what_happened(shown: Any) -> None:
    _, attachment = that_was_busy()
    found = shown()
    adapter = attachment.adapter
    assert adapter is not None
    for name, value in snapshot(adapter).items():
        assert found[f"{name}_total"] == value, name
    assert found["peek_cycles_total"] == found["peek_plan_duration_seconds_count"] == 8
    assert found["peek_admitted_requests_total"] == found["peek_position_gain_count"] == 8
    assert found["peek_prompt_tokens_total"] == 40
    assert found["peek_position_gain_sum"] > 0
    assert found["peek_waiting_requests"] == 0
    assert found["peek_active"] == 1
    assert found["peek_state reason=on"] == 1


def test_the_queue_is_current_though_nothing_is_planned(shown: Any) -> None:
    engine, attachment = toy()
    clock = slowly(attachment)
    busy(engine, attachment, 4)
    engine.arrive("late", [1, 2, 3])
    attachment.call(attachment.adapter.before)  # type: ignore[union-attr]
    clock.now += EVERY_S
    attachment.count()
    assert shown()["peek_waiting_requests"] == 1


def slowly(attachment: Any) -> Clock:
    """From now on the clock of the metrics stands still."""
    clock = attachment._metrics._clock = Clock()
    attachment.count(True)
    return clock


def test_while_requests_wait_the_series_are_written_four_times_a_second(shown: Any) -> None:
    engine, attachment = toy()
    clock = slowly(attachment)
    for i in range(20):
        engine.arrive(f"r{i}", [7, 7, i])
    seen = []
    for _ in range(12):
        engine.step(attachment)
        clock.now += EVERY_S / 4
        seen.append(shown()["peek_cycles_total"])
    assert seen == [0, 0, 0, 0, 5, 5, 5, 5, 9, 9, 9, 9]


@given(arrivals=st.lists(st.integers(0, 4), max_size=20))
def test_however_it_comes_to_rest_the_last_state_is_shown(
    arrivals: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Time stands still, and the engine makes no step more once nothing waits."""
    path = tmp_path_factory.mktemp("series")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(export.ENGINES_FOLDER, raising=False)
        patch.setenv(export.OUR_FOLDER, str(path))
        engine, attachment = toy()
    slowly(attachment)
    for step, number in enumerate(arrivals):
        for i in range(number):
            engine.arrive(f"r{step}.{i}", [7, 7, i])
        if engine.queue:
            engine.step(attachment)
        if not engine.queue:
            adapter: Any = attachment.adapter
            found = series(path)
            assert {
                f"{name}_total": value for name, value in snapshot(adapter).items()
            }.items() <= found.items()
            assert found["peek_waiting_requests"] == 0
            assert found["peek_position_gain_count"] == len(engine.admitted)
            assert found["peek_position_gain_bucket le=+Inf"] == len(engine.admitted)


def test_every_metric_of_the_table_is_shown(shown: Any) -> None:
    that_was_busy()
    names = {name.split()[0] for name in shown()}
    for metric in METRICS:
        endings = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
        for ending in endings[metric.kind]:
            assert metric.name + ending in names, metric.name
    assert len(names) >= 12
    assert {name for name in names if not name.startswith("peek_")} == set()


def test_series_carry_engine_model_and_rank(shown: Any, tmp_path: Path) -> None:
    toy_attachment(ToyEngine())
    samples = [s for m in export.FolderCollector(tmp_path / "series").collect() for s in m.samples]
    labels = {"engine": "toy", "model_name": "m", "dp_rank": "0", "tp_rank": "0"}
    assert samples
    assert all(sample.labels | labels == sample.labels for sample in samples)


def test_an_error_shows_and_counters_do_not_fall_with_a_new_adapter(
    shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shields, "FIRST_WAIT", 5)
    engine, attachment = that_was_busy()
    before = shown()
    engine.fails_in = {"plan"}
    engine.step(attachment)
    assert shown()["peek_fallbacks_total"] == 1
    engine.fails_in = set()
    engine.step(attachment)
    found = shown()
    assert (found["peek_active"], found["peek_state reason=on"]) == (0, 0)
    assert found["peek_state reason=internal error"] == 1
    for _ in range(20):
        engine.step(attachment)
    busy(engine, attachment)
    found = shown()
    assert found["peek_fallbacks_total"] == found["peek_retries_total"] == found["peek_recoveries_total"] == 1
    assert (found["peek_active"], found["peek_state reason=internal error"]) == (1, 0)
    assert found["peek_admitted_requests_total"] == 16
    for name, value in before.items():
        if name.endswith("_total"):
            assert found[name] >= value, name


def test_switched_off_after_an_error_it_is_off(shown: Any, tmp_path: Path) -> None:
    control = tmp_path / "control"
    engine, attachment = that_was_busy(control_file=str(control), control_every=1)
    engine.fails_in = {"plan"}
    for word in ("on", "on", "off"):
        control.write_text(word)
        engine.step(attachment)
    found = shown()
    assert (found["peek_state reason=internal error"], found["peek_state reason=off"]) == (0, 1)


def test_who_stands_aside_says_why(shown: Any) -> None:
    engine = ToyEngine()
    engine.aside = "prefix caching is off"
    toy_attachment(engine)
    found = shown()
    assert (found["peek_active"], found["peek_state reason=prefix caching is off"]) == (0, 1)


def test_the_same_series_after_a_restart(shown: Any) -> None:
    for _ in range(2):
        that_was_busy()
    found = shown()
    assert found["peek_admitted_requests_total"] == 16
    assert found["peek_active"] == 1


def test_one_exporter_of_each_tensor_parallel_group(shown: Any, tmp_path: Path) -> None:
    that_was_busy(info=EngineInfo("toy", speaks=False))
    assert not (tmp_path / "series").exists()


def test_not_configured_or_nobody_to_read_writes_nothing(
    shown: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_attachment(ToyEngine(), policy="fcfs+lru")
    assert not (tmp_path / "series").exists()
    monkeypatch.delenv(export.OUR_FOLDER)
    _, attachment = that_was_busy()
    assert snapshot(attachment.adapter)["peek_cycles"] == 8  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["peek.adapters.export.SeriesFiles", "peek.adapters.metrics.snapshot"])
def test_metrics_that_fail_do_not_stop_the_planning(
    where: str, shown: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(where, lambda *_: 1 / 0)
    _, attachment = that_was_busy()
    assert attachment.active
    assert attachment.adapter.reordered > 0  # type: ignore[union-attr]
    assert [r.getMessage() for r in caplog.records].count("peek: metrics are no longer passed on") == 1
    with pytest.raises(ZeroDivisionError):
        toy_attachment(ToyEngine(), strict=True)


# -- through processes --------------------------------------------------------------------------------------

PARENT = """
import multiprocessing, sys
from prometheus_client import REGISTRY, generate_latest
from peek.adapters.export import offer
for _ in range(2):
    offer()
assert b"peek_" not in generate_latest(REGISTRY)
child = multiprocessing.get_context(sys.argv[2]).Process(target=exec, args=(sys.argv[1], {}))
child.start()
child.join()
print(generate_latest(REGISTRY).decode())
"""

STARTER = """
import subprocess, sys
from peek.adapters.export import offer
offer()
subprocess.run([sys.executable, "-c", *sys.argv[1:]], check=True)
"""

WORK = """
from support.attached import ToyEngine, toy, toy_attachment
engine = ToyEngine()
attachment = toy_attachment(engine)
engine.arrive("a", [1, 2]); engine.arrive("b", [1, 2])
engine.step(attachment)
engine.step(attachment)
"""
CHILD = "from peek.adapters.export import offer; offer()" + WORK


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("starter", [[], [STARTER]], ids=["from a shell", "from a program with an engine"])
def test_from_the_process_of_the_scheduler_to_that_of_the_api(
    starter: list[str], method: str, tmp_path: Path
) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environ = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    for name in (export.ENGINES_FOLDER, export.OUR_FOLDER):
        environ.pop(name, None)
    command = [sys.executable, "-c", *starter, PARENT, CHILD, method]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    labels = 'dp_rank="0",engine="toy",model_name="m",tp_rank="0"'
    assert f"peek_cycles_total{{{labels}}} 2.0" in ran.stdout
    assert "# TYPE peek_plan_duration_seconds histogram" in ran.stdout
    assert len({line.split("{")[0] for line in ran.stdout.splitlines() if line.startswith("peek_")}) >= 12
    assert not list(tmp_path.glob("peek-metrics-*")), "the folder is gone with its process"


def test_where_no_file_can_be_written_nothing_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose file system is read-only; vLLM calls it in each process and would not start."""
    for name in (export.ENGINES_FOLDER, export.OUR_FOLDER):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    with pytest.raises(FileNotFoundError):
        tempfile.gettempdir()
    export.offer()
    assert export.OUR_FOLDER not in os.environ


FULL = """
mount -t tmpfs -o size=64k tmpfs "$1" || exit 77
head -c 57344 /dev/zero > "$1/other"
PEEK_METRICS_DIR="$1" exec "$2" -c "$3"
"""

ON_A_FULL_DISK = (
    WORK
    + """
from pathlib import Path
from peek.adapters.export import FolderCollector, folder
print(engine.admitted, attachment.active, list(FolderCollector(Path(folder())).collect()))
"""
)


def test_a_full_disk_ends_the_metrics_and_not_the_scheduler(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", FULL, "sh", str(tmp_path)]
    try:
        ran = subprocess.run(
            [*namespace, sys.executable, ON_A_FULL_DISK],
            env={**os.environ, "PYTHONPATH": path, export.ENGINES_FOLDER: ""},
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("needs unshare: install util-linux")
    if ran.returncode in (1, 77) and "Traceback" not in ran.stderr:
        pytest.skip(f"needs a disk of 64 kB: allow user namespaces to mount ({ran.stderr.strip()})")
    assert (ran.returncode, ran.stdout) == (0, "['a', 'b'] True []\n"), ran.stderr
    assert "peek: metrics are no longer passed on" in ran.stderr
    assert "No space left on device" in ran.stderr


def test_labels_that_do_not_fit_end_the_metrics_only(shown: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A file that grew would be as dangerous as one on a full disk."""
    _, attachment = that_was_busy(info=EngineInfo("toy", model="m" * 20_000))
    assert attachment.active
    assert "the labels of peek_" in caplog.text


# -- what is observed ---------------------------------------------------------------------------------------


@given(
    bounds=st.lists(st.integers(-50, 50), min_size=1, unique=True).map(sorted),
    values=st.lists(st.integers(-60, 60)),
)
def test_a_tally_against_its_definition(bounds: list[int], values: list[int]) -> None:
    tally = Tally(bounds)
    for value in values:
        tally.note(value)
    for i, bound in enumerate(bounds):
        assert sum(tally.counts[: i + 1]) == sum(value <= bound for value in values)
    assert (tally.total, sum(tally.counts), tally.sum) == (len(values), len(values), sum(values))


@given(data=st.data())
def test_gains_are_the_earlier_arrivals_that_still_wait(data: st.DataObject) -> None:
    planner = ObservedPlanner(Planner(), Observations())
    waiting: list[str] = []
    gains = []
    for i in range(data.draw(st.integers(1, 30))):
        if waiting and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(waiting) - 1))
            admitted = data.draw(st.booleans())
            planner.remove(waiting.pop(at), admitted, 2 if admitted else None)
            gains += [at] if admitted else []
        else:
            waiting.append(f"r{i}")
            planner.add(PendingRequest(waiting[-1], [5, i], float(i), num_tokens=2))
        if data.draw(st.booleans()):
            planner.plan(EmptyCache(), float(i))
        assert len(planner) == len(waiting)
    tally = planner._seen.gains
    assert (tally.total, tally.sum) == (len(gains), sum(gains))
    assert planner._seen.plan_s.total == planner.stats.plans
    assert planner._seen.surprises.total == len(gains)


def test_an_unknown_request_is_the_planners_error() -> None:
    planner = ObservedPlanner(Planner(), Observations())
    with pytest.raises(KeyError, match="nobody"):
        planner.remove("nobody")
    planner.add(PendingRequest("a", [1], 0.0))
    with pytest.raises(ValueError, match="a"):
        planner.add(PendingRequest("a", [1], 0.0))
    planner.remove("a", False)
    assert len(planner) == 0


def test_a_folder_that_is_gone_has_no_metrics(tmp_path: Path) -> None:
    assert list(export.FolderCollector(tmp_path / "gone").collect()) == []


@pytest.mark.parametrize("limits", [PLAN_SECONDS, PLACES, TOKENS])
def test_limits_of_buckets_ascend(limits: tuple[float, ...]) -> None:
    assert sorted(set(limits)) == list(limits)
