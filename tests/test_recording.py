"""The trace from inside an engine: what was served, in bounded space, and nothing of what was asked."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from array import array
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.attached import ToyEngine, toy_attachment

from peek import InvalidConfig
from peek.adapters import recording
from peek.adapters.activation import Settings
from peek.adapters.lifecycle import Switch
from peek.adapters.recording import Asked, Recorder, Recording
from peek.offline.formats import lines_of
from peek.traffic import Measured, Reader, RequestRows
from peek.traffic.tracer import Hashing
from peek.trie.keys import pack

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=70), min_size=1, max_size=8)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@given(PROMPTS, st.randoms(use_true_random=False))
def test_a_row_for_each_request_that_ended(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]], rnd: Any
) -> None:
    """Lengths and times are exact, and ids are equal exactly where prompts begin alike."""
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    recorder = Recorder(str(path), 10**6)
    for number, prompt in enumerate(prompts):
        recorder.came(Asked(f"{number}", 1000.0 + number, prompt))
    ends = list(range(len(prompts)))
    rnd.shuffle(ends)
    for number in ends[1:]:
        recorder.ended(f"{number}", 7 + number)
    recorder.ended("unknown", 5)
    rows = rows_of(path)
    assert [row["timestamp"] for row in rows] == [1e6 + 1000 * number for number in ends[1:]]
    assert [row["input_length"] for row in rows] == [len(prompts[number]) for number in ends[1:]]
    assert [row["output_length"] for row in rows] == [7 + number for number in ends[1:]]
    chains: dict[int, list[int]] = {}
    for row, number in zip(rows, ends[1:], strict=True):
        for place, found in enumerate(row["hash_ids"]):
            prefix = prompts[number][: 16 * (place + 1)]
            assert chains.setdefault(found, prefix) == prefix
    assert len(chains) == len({tuple(each) for each in chains.values()})
    with path.open("rb") as file:
        reader = Reader(RequestRows(), json.loads)
        read = [event for _, events in reader.file(lines_of(file)) for event in events]
    assert [each.hash_ids for each in read if isinstance(each, Measured)] == [row["hash_ids"] for row in rows]


def test_namespaces_sessions_and_tenants_are_told_apart_and_not_named(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path / "t"), 10**6)
    prompt = list(range(32))
    asked = [("a", "", "", ""), ("b", "SECRET-lora", "", ""), ("c", "", "SECRET-talk", "SECRET-me")]
    for name, namespace, session, tenant in asked:
        recorder.came(Asked(name, 0.0, prompt, namespace, session, tenant))
        recorder.ended(name, 1)
    one, two, three = rows_of(tmp_path / "t")
    assert one["hash_ids"] == three["hash_ids"]
    assert not set(one["hash_ids"]) & set(two["hash_ids"])
    assert "session" not in one
    assert three["session"] != three["tenant"]
    assert "SECRET" not in (tmp_path / "t").read_text()


@given(st.lists(st.integers(0, 3), min_size=2, max_size=2), st.integers(0, 200))
def test_without_the_salt_no_token_is_found(
    tmp_path_factory: pytest.TempPathFactory, prompt: list[int], guess: int
) -> None:
    """Trying out every prompt there could be finds none of them, under salts that are guessed or none."""
    path = tmp_path_factory.mktemp("trace") / "t"
    recorder = Recorder(str(path), 10**6)
    recorder.came(Asked("r", 0.0, prompt))
    recorder.ended("r", 1)
    (row,) = rows_of(path)
    for salt in (b"", b"peek", bytes(32), guess.to_bytes(32, "little")):
        hashing = Hashing(salt, 16)
        tried = {hashing.ids(pack(list(each)), "/ids")[0] for each in product(range(4), repeat=2)}
        assert row["hash_ids"][0] not in tried


@given(st.lists(st.integers(1, 900), min_size=1, max_size=60))
def test_both_files_stay_below_the_bound(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    folder = tmp_path_factory.mktemp("trace")
    recorder = Recorder(str(folder / "t"), 4000)
    for number, size in enumerate(sizes):
        recorder.came(Asked(f"{number}", 0.0, [1] * size))
        recorder.ended(f"{number}", 1)
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 4000
        assert {path.name for path in folder.iterdir()} <= {"t", "t.1"}
    found = [folder / name for name in ("t.1", "t") if (folder / name).exists()]
    kept = [row["input_length"] for path in found for row in rows_of(path)]
    if max(sizes) < 400:  # each fits into half of it
        assert kept == sizes[-len(kept) :]
        assert len(kept) > 1 or len(sizes) == 1


def test_only_its_owner_reads_it_and_an_older_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for number in range(3):
        recorder = Recorder(str(path), 10**6)
        recorder.came(Asked("r", 0.0, [number]))
        recorder.ended("r", number)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [row["output_length"] for name in ("t.1", "t") for row in rows_of(tmp_path / name)] == [1, 2]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_only_a_file_makes_way(make: Callable[[Path], None], tmp_path: Path) -> None:
    """A folder, or a device such as /dev/null, is not a trace's predecessor."""
    make(tmp_path / "t")
    with pytest.raises(FileExistsError):
        Recorder(str(tmp_path / "t"), 10**6)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_requests_that_never_end_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_OPEN", 3)
    recorder = Recorder(str(tmp_path / "t"), 10**6)
    for number in range(5):
        recorder.came(Asked(f"{number}", 0.0, [number]))
    recorder.forget("4")
    for number in range(5):
        recorder.ended(f"{number}", number)
    assert [row["output_length"] for row in rows_of(tmp_path / "t")] == [2, 3]


def test_images_are_told_apart_and_end_no_trace(tmp_path: Path) -> None:
    """SGLang puts an image into a prompt as a run of one value of up to 62 bits."""
    kept = Recording(str(tmp_path / "t"), 1, strict=True)
    images = [2**61 + 5, 2**61 + 7, 2**61 + 5]
    for number, image in enumerate(images):
        tokens = array("q", [*range(16), *[image] * 16])
        kept.tell(lambda to, n=number, it=tokens: to.came(Asked(f"{n}", 0.0, it)))  # type: ignore[misc]
        kept.tell(lambda to, n=number: to.ended(f"{n}", n))  # type: ignore[misc]
    first, second, third = (row["hash_ids"] for row in rows_of(tmp_path / "t"))
    assert first == third
    assert (first[0], len(first)) == (second[0], 2)
    assert first[1] != second[1]


def test_what_goes_wrong_is_logged_once_and_ends_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Recorder] = []
    kept = Recording(str(tmp_path / "nowhere" / "t"), 1)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            kept.tell(told.append)
    assert [record.getMessage() for record in caplog.records] == ["peek: the trace is no longer written"]
    assert not kept
    assert told == []
    strict = Recording(str(tmp_path / "nowhere" / "t"), 1, strict=True)
    with pytest.raises(FileNotFoundError):
        strict.tell(told.append)


FULL = """
import sys
from resource import RLIM_INFINITY, RLIMIT_FSIZE, setrlimit
from peek.adapters.recording import Asked, Recording
setrlimit(RLIMIT_FSIZE, (2000, RLIM_INFINITY))
kept = Recording(sys.argv[1], 1)
for number in range(99):
    if number == 60:  # there is room again
        setrlimit(RLIMIT_FSIZE, (RLIM_INFINITY, RLIM_INFINITY))
    kept.tell(lambda to: to.came(Asked("r", 0.0, [number])))
    kept.tell(lambda to: to.ended("r", number))
"""


def test_a_full_disk_leaves_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "t"
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    kept = [row["output_length"] for row in rows_of(path)]
    assert kept == list(range(len(kept)))
    assert 10 < len(kept) < 60
    assert path.stat().st_size <= 2000
    assert ran.stderr.count("peek: the trace is no longer written") == 1


def test_its_bound_is_in_mebibytes(tmp_path: Path) -> None:
    def came_and_went(recorder: Recorder) -> None:
        recorder.came(Asked("r", 0.0, range(100_000)))
        recorder.ended("r", 1)

    kept = Recording(str(tmp_path / "t"), 2)
    for _ in range(60):
        kept.tell(came_and_went)
    assert 2**20 < sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2**21


def test_it_is_switched_and_without_a_name_never_on(tmp_path: Path) -> None:
    told: list[Recorder] = []
    kept = Recording(str(tmp_path / "t"), 1)
    kept.wanted = False
    kept.tell(told.append)
    assert (bool(kept), told, list(tmp_path.iterdir())) == (False, [], [])
    kept.wanted = True
    kept.tell(told.append)
    assert (bool(kept), len(told)) == (True, 1)
    none = Recording("", 1)
    none.wanted = True
    none.tell(told.append)
    assert (bool(none), len(told)) == (False, 1)


@pytest.mark.parametrize(
    ("word", "mode", "traces"),
    [
        ("on", "on", None),
        ("off trace\n", "off", True),
        ("SHADOW  no-trace", "shadow", False),
        ("on tracee", "shadow", None),
        ("trace", "shadow", None),
    ],
)
def test_the_control_file_switches_it(tmp_path: Path, word: str, mode: str, traces: bool | None) -> None:
    (tmp_path / "control").write_text(word)
    switch = Switch("shadow", str(tmp_path / "control"), 1)
    assert (switch.look(), switch.traces) == (mode, traces)
    (tmp_path / "control").unlink()
    assert (switch.look(), switch.traces) == ("shadow", None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trace_file": 3}, "trace_file is 3; need the name of a file"),
        ({"trace_file": "a\0"}, "trace_file is 'a\\x00'; need the name of a file"),
        ({"trace_mib": 0}, "trace_mib is 0; need a whole number from 1 to 1000000"),
        ({"trace_mib": True}, "trace_mib is True; need a whole number from 1 to 1000000"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        Settings.from_dict({"policy": "peek", **options})
    assert str(caught.value) == said


def test_a_trace_needs_no_policy() -> None:
    settings = Settings.from_dict({"policy": "off", "trace_file": "t", "trace_mib": 3, "explain": 4})
    assert (settings.trace_file, settings.trace_mib, settings.explain) == ("t", 3, 0)
    assert settings.config.is_stock


@pytest.mark.parametrize("policy", ["peek", "off"])
def test_an_operator_stops_it_while_the_engine_runs(tmp_path: Path, policy: str) -> None:
    """With a policy and without one; the mode stays what it is."""
    control, path = tmp_path / "control", tmp_path / "t"
    engine = ToyEngine()
    options = {"trace_file": str(path), "control_file": str(control), "control_every": 1}
    attachment = toy_attachment(engine, policy=policy, **options)
    mode = attachment.mode
    seen = []
    for word in ("", f"{mode} no-trace", f"{mode} trace", f"{mode} no-trace", ""):
        control.write_text(word) if word else control.unlink(missing_ok=True)
        attachment.working  # noqa: B018 - the look
        seen.append((bool(attachment.recording), attachment.mode))
    assert seen == [(found, mode) for found in (True, False, True, False, True)]
