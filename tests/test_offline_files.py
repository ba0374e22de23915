"""What `peek reorder` and `peek restore` do to files: links, pipes, devices, full disks, damage, kills.

Every device, pipe and link is made in a temporary folder; the machine's own are left alone.
`FUZZ_FILES=1000 FUZZ_KILLS=200` damage and kill more than the suite does.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.batch_files import chat_rows, json_rows, lines, results_of, write
from support.fixtures import Capsys, Patch
from support.waiting import PATIENCE_S

import peek
from peek.cli import reading, writing
from peek.cli.main import main
from peek.cli.options import parse_source, parse_target
from peek.cli.writing import write_whole
from peek.offline.scale.duckdb_order import OutOfCoreOrder

HOME = Path(peek.__file__).resolve().parent.parent
COMMAND = [sys.executable, "-m", "peek"]
ENVIRON = {**os.environ, "PYTHONPATH": str(HOME), "OPENBLAS_NUM_THREADS": "1"}
WAYS = ["--in-memory", "--out-of-core"]
ROWS = json_rows(60)

resource = pytest.importorskip("resource", reason="limits the size of files")
needs_devices = pytest.mark.skipif(
    sys.platform != "linux" or os.getuid() != 0, reason="only root makes devices, with Linux's numbers here"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder with in.jsonl, where the test is; what is already there and must stay."""
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl", ROWS)
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes | str]:
    """Every file below, by name; links by where they lead."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def reorder(*words: object) -> int:
    return main(["reorder", *map(str, words), "--cache-tokens", "500"])


def restore(*words: object) -> int:
    return main(["restore", *map(str, words)])


def run(
    *words: object, cwd: Path, feed: bytes = b"", limit: int | None = None, memory: int | None = None,
    stdout: int = subprocess.PIPE, timeout_s: float = 60.0,
) -> subprocess.CompletedProcess[bytes]:  # fmt: skip
    """The command in a process of its own; bytes that fit into a file are limited, or its memory."""

    def confine() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        if memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    return subprocess.run(
        [*COMMAND, *map(str, words)], cwd=cwd, env=ENVIRON, input=feed, stdout=stdout,
        stderr=subprocess.PIPE, timeout=timeout_s, check=False, preexec_fn=confine
    )  # fmt: skip


def told(capsys: Capsys) -> str:
    """The one line on stderr; nothing is on stdout."""
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("peek: ")
    assert len(shown.err.splitlines()) == 1, shown.err
    return shown.err


class Drain(threading.Thread):
    """Reads a named pipe to its end."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self.found = b""
        self.start()

    def run(self) -> None:
        self.found = self._path.read_bytes()

    def text(self) -> list[str]:
        self.join(20)
        return self.found.decode().splitlines()


# -- what OUT is ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_link_is_followed(here: Path, way: str, exists: bool) -> None:
    (here / "far").mkdir()
    if exists:
        (here / "far" / "real.jsonl").write_text("old")
        (here / "far" / "real.jsonl").chmod(0o640)
    (here / "out.jsonl").symlink_to("far/real.jsonl")
    (here / "out.order").symlink_to("far/real.order")
    assert reorder("in.jsonl", "out.jsonl", way) == 0
    assert all((here / name).is_symlink() for name in ("out.jsonl", "out.order"))
    assert sorted(lines(here / "far" / "real.jsonl")) == sorted(ROWS)
    assert names(here) == ["far", "in.jsonl", "out.jsonl", "out.order"]
    assert names(here / "far") == ["real.jsonl", "real.order"]
    if exists:
        assert stat.S_IMODE((here / "far" / "real.jsonl").stat().st_mode) == 0o640
    (here / "back").symlink_to("far/back.jsonl")
    assert restore("out.jsonl", "back", "--order", "out.order") == 0
    assert (here / "back").is_symlink()
    assert lines(here / "far" / "back.jsonl") == ROWS


def test_a_new_file_has_the_mode_that_the_user_asks_for(here: Path) -> None:
    before = os.umask(0o027)
    try:
        assert reorder("in.jsonl", "out.jsonl") == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((here / "out.jsonl").stat().st_mode) == 0o640


def test_links_in_a_circle(here: Path, capsys: Capsys) -> None:
    (here / "out.jsonl").symlink_to("turn")
    (here / "turn").symlink_to("out.jsonl")
    write(here / "in.jsonl", ["{", *ROWS])  # not even read
    assert reorder("in.jsonl", "out.jsonl") == 1
    assert "out.jsonl: Too many levels" in told(capsys)
    assert reorder("in.jsonl", "new.jsonl", "--order", "turn") == 1
    assert "turn: Too many levels" in told(capsys)
    assert names(here) == ["in.jsonl", "out.jsonl", "turn"]


@pytest.mark.parametrize("way", WAYS)
def test_a_named_pipe_is_written_to(here: Path, way: str) -> None:
    os.mkfifo(here / "out.jsonl")
    os.mkfifo(here / "back")
    out = Drain(here / "out.jsonl")
    assert reorder("in.jsonl", "out.jsonl", "--order", "kept.order", way) == 0
    assert sorted(out.text()) == sorted(ROWS)
    back = Drain(here / "back")
    assert restore(write(here / "done", results_of(out.text())), "back", "--order", "kept.order") == 0
    assert back.text() == results_of(ROWS)
    assert stat.S_ISFIFO((here / "out.jsonl").stat().st_mode)
    assert stat.S_ISFIFO((here / "back").stat().st_mode)
    assert names(here) == ["back", "done", "in.jsonl", "kept.order", "out.jsonl"]


def test_named_pipes_are_read(here: Path) -> None:
    os.mkfifo(here / "pipe")
    feeder = threading.Thread(target=lambda: write(here / "pipe", json_rows(3000)), daemon=True)
    feeder.start()
    assert reorder("pipe", "out.jsonl") == 0
    assert sorted(lines(here / "out.jsonl")) == sorted(json_rows(3000))


def test_a_pipe_whose_reader_goes(here: Path) -> None:
    write(here / "in.jsonl", json_rows(4000))
    os.mkfifo(here / "out")
    result: list[subprocess.CompletedProcess[bytes]] = []
    job = threading.Thread(
        target=lambda: result.append(run("reorder", "in.jsonl", "out", "--order", "o", cwd=here)), daemon=True
    )
    job.start()
    os.close(os.open(here / "out", os.O_RDONLY))
    job.join(60)
    (done,) = result
    assert (done.returncode, done.stderr) == (1, b"peek: out: its reader has gone\n")
    assert names(here) == ["in.jsonl", "out"]


@needs_devices
@pytest.mark.parametrize("way", WAYS)
def test_a_device_is_written_to(here: Path, way: str) -> None:
    null = os.makedev(1, 3)
    try:
        for name in ("hole", "hole2"):
            os.mknod(here / name, stat.S_IFCHR | 0o666, null)
        (here / "hole").write_bytes(b"")
    except OSError as error:
        pytest.skip(f"no devices here: {error}")
    (here / "link").symlink_to("hole")
    assert reorder("in.jsonl", "hole", "--order", "kept.order", way) == 0
    assert reorder("in.jsonl", "link", "--order", "hole2", way) == 0
    assert restore("in.jsonl", "hole", "--order", "kept.order") == 0
    assert (here / "hole").stat().st_rdev == (here / "hole2").stat().st_rdev == null
    assert (here / "link").is_symlink()
    assert names(here) == ["hole", "hole2", "in.jsonl", "kept.order", "link"]


@needs_devices
def test_a_device_that_is_full(here: Path, capsys: Capsys) -> None:
    try:
        os.mknod(here / "full", stat.S_IFCHR | 0o666, os.makedev(1, 7))
        with pytest.raises(OSError, match="No space left"):
            (here / "full").write_bytes(b"x")
    except (PermissionError, pytest.fail.Exception) as error:
        pytest.skip(f"no devices here: {error}")
    assert reorder("in.jsonl", "full", "--order", "out.order") == 1
    assert told(capsys) == "peek: full: No space left on device\n"
    assert names(here) == ["full", "in.jsonl"]


@pytest.mark.parametrize("words", [["--replicas", "2", "--order", "o"], []])
def test_no_names_are_made_from_a_pipe(here: Path, capsys: Capsys, words: list[str]) -> None:
    os.mkfifo(here / "out")
    for target in ("out", "-"):
        assert reorder("in.jsonl", target, *words) == 2
        assert (words[0] if words else "--order") in told(capsys)
    assert names(here) == ["in.jsonl", "out"]


# -- standard input and output ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_standard_input_and_output(here: Path, way: str) -> None:
    feed = (here / "in.jsonl").read_bytes()
    words = ["--cache-tokens", 500, way]
    done = run("reorder", "-", "-", "--order", "o.order", "--explain", *words, cwd=here, feed=feed)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.decode().splitlines()) == sorted(ROWS)
    assert b"60 requests" in done.stderr
    results = "\n".join(results_of(done.stdout.decode().splitlines())).encode()
    back = run("restore", "-", "-", "--order", "o.order", cwd=here, feed=results)
    assert (back.returncode, back.stderr) == (0, b"")
    assert back.stdout.decode().splitlines() == results_of(ROWS)
    order = (here / "o.order").read_bytes()
    (here / "done").write_bytes(results)
    assert run("restore", "done", "-", "--order", "-", cwd=here, feed=order).stdout == back.stdout
    told_order = run("reorder", "in.jsonl", "out.jsonl", "--order", "-", *words, cwd=here)
    assert told_order.stdout == order
    assert names(here) == ["done", "in.jsonl", "o.order", "out.jsonl"]


def test_a_batch_gives_standard_output_nothing_but_results(here: Path) -> None:
    runner = "import shutil, sys; print('starting', flush=True); shutil.copy(sys.argv[1], sys.argv[2])"
    words = ["--explain", "--cache-tokens", 500, "--", sys.executable, "-c", runner, "{in}", "{out}"]
    done = run("batch", "-", "-", *words, cwd=here, feed=(here / "in.jsonl").read_bytes())
    assert (done.returncode, done.stdout.decode().splitlines()) == (0, ROWS)
    assert b"60 requests" in done.stderr
    assert b"starting" in done.stderr
    done = run("batch", "in.jsonl", "out.jsonl", *words, cwd=here)
    assert b"60 requests" in done.stdout
    assert b"starting" in done.stdout
    assert (done.returncode, done.stderr) == (0, b"")


SLOW_TO_STOP = """
import signal, sys, time
def stop(*_):
    time.sleep(1.0)  # saves what it has
    with open(sys.argv[1]) as asked, open(sys.argv[2], "w") as out:
        out.writelines(asked.readlines()[:20])
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
signal.pause()
"""


def test_a_runner_that_is_interrupted_may_save_what_it_has(here: Path) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        pytest.skip("this run ignores Ctrl-C, and so would the command")
    words = ["batch", "in.jsonl", "out.jsonl", "--", sys.executable, "-c", SLOW_TO_STOP, "{in}", "{out}"]
    with subprocess.Popen(
        [*COMMAND, *words], cwd=here, env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    (kept,) = here.glob("out.jsonl.*.work")
    assert f"kept in {kept / 'results.jsonl'}" in err.decode()
    assert restore(kept / "results.jsonl", "out.jsonl", "--order", kept / "ordered.order") == 1
    assert len(lines(here / "out.jsonl")) == 20


def test_a_file_that_is_called_like_a_stream(here: Path) -> None:
    (here / "-").mkdir()
    assert run("reorder", "in.jsonl", "-", "--order", "o", cwd=here).returncode == 0
    (here / "-").rmdir()
    assert parse_source("-") == Path("-")
    assert parse_source("./-") == here / "-"
    assert reorder("in.jsonl", "./-", "--order", "o") == 0
    assert sorted(lines(here / "-")) == sorted(ROWS)
    assert restore("./-", "back", "--order", "o") == 0
    assert lines(here / "back") == ROWS


def test_a_link_to_standard_output(here: Path) -> None:
    """What is written to it comes behind what stands there, and nothing is replaced."""
    (here / "link").symlink_to("said")
    with (here / "said").open("ab") as said:
        said.write(b"before\n")
        said.flush()
        done = run("reorder", "in.jsonl", "link", "--order", "o", cwd=here, stdout=said.fileno())
    assert (done.returncode, done.stderr) == (0, b"")
    first, *rest = lines(here / "said")
    assert first == "before"
    assert sorted(rest) == sorted(ROWS)
    assert parse_target("link") == Path("link")


@pytest.mark.parametrize("words", [["in.jsonl", "-", "--order", "o"], ["out", "-", "--order", "in.jsonl"]])
def test_standard_output_may_be_a_file_that_is_needed(here: Path, words: list[str]) -> None:
    before = contents(here)
    command = "reorder" if words[0] == "in.jsonl" else "restore"
    with (here / "in.jsonl").open("ab") as same:
        done = run(command, *words, cwd=here, stdout=same.fileno())
    assert done.returncode == 2
    assert b"is the same file as" in done.stderr
    assert contents(here) == before


# -- files that are one -----------------------------------------------------------------------------------

CLASHES = [
    "reorder in.jsonl in.jsonl",
    "reorder in.jsonl ./in.jsonl",
    "reorder in.jsonl soft",
    "reorder soft in.jsonl",
    "reorder in.jsonl hard",
    "reorder in.jsonl out.jsonl --order in.jsonl",
    "reorder in.jsonl out.jsonl --order out.jsonl",
    "reorder in.jsonl new.jsonl --order new.jsonl",
    "reorder in.jsonl new.jsonl --order deep/../new.jsonl",
    "reorder in.jsonl out.jsonl --order hard",
    "reorder in.0.jsonl in.jsonl --replicas 2",
    "reorder in.jsonl new.jsonl --replicas 2 --order new.1.jsonl",
    "reorder in.jsonl tokenizer.json --tokenizer tokenizer.json",
    "reorder in.jsonl out.jsonl --tokenizer . --order tokenizer.json",
    "reorder in.jsonl tokenizer.jsonl --tokenizer . --order tokenizer.json",
    "reorder in.order in.jsonl",
    "reorder in.jsonl in.jsonl/out",
    "reorder in.jsonl new.jsonl --order new.jsonl/order",
    "reorder in.jsonl - --order -",
    "reorder in.jsonl pipe --order pipe",
    "restore out.jsonl in.order --order in.order",
    "restore out.jsonl out.jsonl --order in.order",
    "restore out.jsonl soft --order in.jsonl",
    "restore in.jsonl hard --order in.order",
    "restore in.jsonl new --order in.jsonl",
    "restore - new --order -",
]


@pytest.mark.parametrize("command", CLASHES)
def test_files_that_are_one_are_refused_before_anything_is_touched(
    here: Path, capsys: Capsys, command: str
) -> None:
    write(here / "in.0.jsonl", ROWS)
    (here / "out.jsonl").write_text("old")
    (here / "in.order").write_text('[1, "r-0"]\n')
    (here / "tokenizer.json").write_text("{}")
    (here / "soft").symlink_to("in.jsonl")
    os.link(here / "in.jsonl", here / "hard")
    os.mkfifo(here / "pipe")
    (here / "deep").mkdir()
    before = contents(here)
    assert main(command.split()) == 2
    shown = told(capsys)
    assert "is the same file as" in shown or "cannot lie in" in shown
    assert contents(here) == before


@pytest.mark.parametrize("way", WAYS)
def test_foreign_files_with_our_old_names_stay(here: Path, way: str) -> None:
    """Also when the batch file lies where a working folder once was."""
    (here / "out.jsonl.work").mkdir()
    os.rename(here / "in.jsonl", here / "out.jsonl.work" / "in.jsonl")
    for name in ("out.jsonl.partial", "out.order.partial", "out.jsonl.work/batch.duckdb"):
        (here / name).write_text("mine")
    before = contents(here)
    assert reorder("out.jsonl.work/in.jsonl", "out.jsonl", way) == 0
    after = contents(here)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"out.jsonl", "out.order"}
    assert sorted(lines(here / "out.jsonl")) == sorted(ROWS)


def test_long_names(here: Path) -> None:
    name = "ä" * 120 + ".jsonl"
    assert reorder("in.jsonl", name, "--out-of-core") == 0
    assert names(here) == ["in.jsonl", "ä" * 120 + ".jsonl", "ä" * 120 + ".order"]


# -- full disks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.xz", ".jsonl.zst"])
@pytest.mark.parametrize("way", WAYS)
def test_a_full_disk(here: Path, suffix: str, way: str) -> None:
    pytest.importorskip("zstandard")
    write(here / f"in{suffix}", json_rows(4000))
    (here / f"out{suffix}").write_text("old")
    (here / "out.order").write_text("old order")
    before = contents(here)
    done = run("reorder", f"in{suffix}", f"out{suffix}", way, cwd=here, limit=40_000)
    assert done.returncode == 1
    assert done.stderr.startswith(b"peek: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert b"internal error" not in done.stderr
    assert contents(here) == before
    assert names(here) == sorted(before)
    if way == "--in-memory":
        assert b"File too large" in done.stderr


def test_a_full_disk_while_restoring(here: Path) -> None:
    rows = json_rows(4000)
    write(here / "in.jsonl", rows)
    assert reorder("in.jsonl", "out.jsonl") == 0
    (here / "back").write_text("old")
    before = contents(here)
    done = run("restore", "out.jsonl", "back", "--order", "out.order", cwd=here, limit=40_000)
    assert (done.returncode, done.stderr) == (1, b"peek: back: File too large\n")
    assert contents(here) == before


def test_a_full_disk_for_the_database(here: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    duckdb = pytest.importorskip("duckdb")

    def fail(*_: object) -> None:
        raise duckdb.IOException("IO Error: could not write\n" + "secret" * 100)

    monkeypatch.setattr(OutOfCoreOrder, "arrange", fail)
    assert reorder("in.jsonl", "out.jsonl", "--out-of-core") == 1
    assert told(capsys) == "peek: --out-of-core: IO Error: could not write\n"
    assert names(here) == ["in.jsonl"]


def test_ctrl_c_while_the_database_works(here: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    pytest.importorskip("duckdb")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        pytest.skip("this run ignores Ctrl-C, and so would the command")

    def endless(order: OutOfCoreOrder, replicas: int) -> None:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            order._db.execute("SELECT max(hash(range)) FROM range(10000000)")

    monkeypatch.setattr(OutOfCoreOrder, "arrange", endless)
    assert reorder("in.jsonl", "out.jsonl", "--out-of-core") == 130
    assert told(capsys) == "peek: interrupted\n"
    assert names(here) == ["in.jsonl"]


def test_what_fails_in_the_middle_leaves_nothing(here: Path) -> None:
    (here / "a").write_text("old")
    with suppress(KeyError), write_whole([here / "a", here / "b.gz"]) as (first, second):
        first.write(b"new")
        second.write(b"new")
        raise KeyError
    assert contents(here) == {"a": b"old", "in.jsonl": (here / "in.jsonl").read_bytes()}


def test_the_second_file_cannot_be_opened(here: Path) -> None:
    with pytest.raises(FileNotFoundError), write_whole([here / "a", here / "nowhere" / "b"]):
        raise AssertionError("not reached")
    assert names(here) == ["in.jsonl"]


# -- two runs at a time -----------------------------------------------------------------------------------


def test_two_runs_keep_apart_while_they_write(here: Path) -> None:
    paths = [here / "order", here / "out"]
    with write_whole(paths) as (order, out):
        with write_whole(paths) as (second_order, second_out):
            order.write(b"1" * 200_000)
            second_order.write(b"2")
            second_out.write(b"2")
        assert (here / "order").read_bytes() == (here / "out").read_bytes() == b"2"
        out.write(b"1" * 200_000)
    assert (here / "order").read_bytes() == (here / "out").read_bytes() == b"1" * 200_000
    assert names(here) == ["in.jsonl", "order", "out"]


def test_the_files_of_a_run_are_renamed_together(here: Path, monkeypatch: Patch) -> None:
    """A second run that is done while the first is between its two files waits for it."""
    paths = [here / "order", here / "out"]
    between, go_on = threading.Event(), threading.Event()
    publish = writing._Output.publish

    def pausing(output: writing._Output) -> None:
        publish(output)
        if threading.current_thread() is first and not between.is_set():
            between.set()
            assert go_on.wait(20)

    monkeypatch.setattr(writing._Output, "publish", pausing)

    def write_both(text: bytes) -> None:
        with write_whole(paths) as streams:
            for stream in streams:
                stream.write(text)

    first, second = [threading.Thread(target=write_both, args=(text,), daemon=True) for text in (b"1", b"2")]
    first.start()
    assert between.wait(20)
    second.start()
    second.join(0.3)
    assert second.is_alive()
    assert (here / "order").read_bytes() == b"1"
    go_on.set()
    for thread in (first, second):
        thread.join(20)
    assert (here / "order").read_bytes() == (here / "out").read_bytes() == b"2"


@pytest.mark.slow
def test_processes_that_write_one_file(here: Path) -> None:
    """Whichever comes last: output and order file are of the same run."""
    commands = []
    for number in range(4):
        rows = [line.replace('"r-', f'"run{number}-') for line in json_rows(400, seed=number)]
        write(here / f"in{number}.jsonl", rows)
        commands.append([*COMMAND, "reorder", f"in{number}.jsonl", "out.jsonl", WAYS[number % 2]])
    processes = [subprocess.Popen(command, cwd=here, env=ENVIRON) for command in commands]
    assert [process.wait(60) for process in processes] == [0] * 4
    ids = [json.loads(line)["custom_id"] for line in lines(here / "out.jsonl")]
    assert ids == [json.loads(line)[1] for line in lines(here / "out.order")]
    assert len({each.partition("-")[0] for each in ids}) == 1
    assert len(ids) == 400
    assert not [name for name in names(here) if name.endswith((".partial", ".work"))]


@pytest.mark.parametrize("fails_at", [0, 1])
@pytest.mark.parametrize("exist", [["order", "out"], ["out"], ["order"], []])
def test_a_rename_that_fails_brings_the_old_files_back(
    here: Path, monkeypatch: Patch, fails_at: int, exist: list[str]
) -> None:
    paths = [here / "order", here / "out"]
    for name in exist:
        (here / name).write_text("old")
    before = contents(here)
    publish = writing._Output.publish
    number = count()

    def failing(output: writing._Output) -> None:
        if next(number) == fails_at:
            raise OSError(28, "No space left on device")
        publish(output)

    monkeypatch.setattr(writing._Output, "publish", failing)
    with pytest.raises(OSError, match="No space left"), write_whole(paths) as (first, _):
        first.write(b"new")
    assert contents(here) == before


FILES = int(os.environ.get("FUZZ_FILES", "200"))
KILLS = int(os.environ.get("FUZZ_KILLS", "40"))
CACHE = ["--cache-tokens", "500"]
PIECES = [b"", b"\n", b"\r\n", b"\0", b"\xff", b'"', b"{", b"}", b"[", b"]", b":", b",", b"1e999", b"\\u0000"]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def damaged(data: bytes, rnd: random.Random) -> bytes:
    """Cut, overwritten, doubled or stuffed in one to four places."""
    for _ in range(rnd.randrange(1, 5)):
        at, size = rnd.randrange(len(data) + 1), rnd.choice([0, 1, 2, 30, 400])
        kind = rnd.randrange(4)
        if kind == 0:
            data = data[:at] + data[at + size :]
        elif kind == 1:
            data = data[:at] + rnd.randbytes(size) + data[at + size :]
        elif kind == 2:
            data = data[: at + size] + data[at:]
        else:
            data = data[:at] + rnd.choice(PIECES) + data[at:]
    return data


def complaint(capsys: Capsys) -> list[str]:
    shown = capsys.readouterr()
    said = shown.err.splitlines()
    assert all(line.startswith("peek: ") and len(line) < 500 for line in said), said
    assert "internal error" not in shown.err
    assert "Traceback" not in shown.err
    return said


def kept_lines(data: bytes) -> Counter[bytes]:
    """What is a line of a file, without ends and blank ones."""
    text = data.removeprefix(b"\xef\xbb\xbf")
    found = (line.removesuffix(b"\n").removesuffix(b"\r") for line in text.split(b"\n"))
    return Counter(line for line in found if line.strip())


def test_damaged_batch_files(empty: Path, capsys: Capsys) -> None:
    """Each line of a damaged file is in OUT, as it is, or named; a damaged archive is named."""
    rnd = random.Random(0)
    good = ["\n".join(rows).encode() + b"\n" for rows in (json_rows(12), chat_rows(12))]
    codes: Counter[int] = Counter()
    for number in range(FILES):
        plain = damaged(rnd.choice(good), rnd) if number % 4 else rnd.choice(good)
        packed = number % 4 == 0
        name = "in.jsonl.gz" if packed else "in.jsonl"
        (empty / name).write_bytes(damaged(gzip.compress(plain, mtime=0), rnd) if packed else plain)
        for old in ("out.jsonl", "out.order"):
            (empty / old).unlink(missing_ok=True)
        code = main(["reorder", name, "out.jsonl", *CACHE])
        codes[code] += 1
        said = complaint(capsys)
        assert code in (0, 1)
        if not (empty / "out.jsonl").exists():
            assert code == 1
            assert said
            continue
        written = kept_lines((empty / "out.jsonl").read_bytes())
        order = lines(empty / "out.order")
        assert len(order) == written.total()
        if not packed:
            left_out = kept_lines(plain)
            assert not written - left_out
            left_out.subtract(written)
            named = Counter(" not understood, " in line for line in said[:-1])
            assert named[False] == min(left_out.total(), 20)
            assert code == bool(named[False])
    assert codes[0] > FILES // 50
    assert codes[1] > FILES // 3


def test_damaged_results(empty: Path, capsys: Capsys) -> None:
    """What is put back is a line of the results, and stands where its request stood."""
    rnd = random.Random(1)
    requests = json_rows(15)
    write(empty / "in.jsonl", requests)
    assert main(["reorder", "in.jsonl", "out.jsonl", *CACHE]) == 0
    results = "\n".join(results_of(lines(empty / "out.jsonl"))).encode() + b"\n"
    order = (empty / "out.order").read_bytes()
    places = {json.loads(row)["custom_id"]: place for place, row in enumerate(requests)}
    capsys.readouterr()
    for number in range(FILES):
        Path("results").write_bytes(damaged(results, rnd) if number % 3 else results)
        Path("order").write_bytes(order if number % 3 else damaged(order, rnd))
        Path("back").unlink(missing_ok=True)
        code = main(["restore", "results", "back", "--order", "order"])
        said = complaint(capsys)
        assert code in (0, 1)
        assert bool(said) == bool(code)
        if not Path("back").exists():
            continue
        back = Path("back").read_bytes()
        assert not kept_lines(back) - kept_lines(Path("results").read_bytes())
        if number % 3:  # the order file is whole, so its ids are true
            found = [places[json.loads(line)["custom_id"]] for line in back.splitlines()]
            assert found == sorted(set(found))


# -- archives that unpack to more than there is -------------------------------------------------------------


def zst(path: Path, piece: bytes, times: int) -> Path:
    zstandard = pytest.importorskip("zstandard")
    with path.open("wb") as raw, zstandard.ZstdCompressor(level=1).stream_writer(raw) as stream:
        for _ in range(times):
            stream.write(piece)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("way", [[], ["--out-of-core"]])
def test_a_line_without_an_end(empty: Path, way: list[str]) -> None:
    """Two gigabytes of one line in a file of a few hundred kilobytes."""
    pytest.importorskip("duckdb")
    bomb = zst(empty / "in.jsonl.zst", b" " * (1 << 20), 2048)
    assert bomb.stat().st_size < 1 << 20
    words = ["reorder", "in.jsonl.zst", "out.jsonl", *way]
    done = run(*words, cwd=empty, memory=1500 << 20, timeout_s=300.0)
    assert done.returncode == 1
    assert done.stderr == b"peek: in.jsonl.zst: line 1 is longer than 256,000,000 bytes\n"
    assert [path.name for path in empty.iterdir()] == ["in.jsonl.zst"]


def test_long_lines_are_refused_wherever_lines_are_read(
    empty: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    monkeypatch.setattr(reading, "LONGEST_LINE", 100)
    good = '{"ts": 1, "prompt": "x"}\n'
    Path("in").write_text(good + "y" * 100 + "\n" + good)
    Path("o").write_text("[1, \"\"]\n")  # fmt: skip
    for words in (["reorder", "in", "out"], ["restore", "in", "out", "--order", "o"], ["trace", "in", "out"]):
        assert main(words) == 1
        assert complaint(capsys) == ["peek: in: line 2 is longer than 100 bytes"]
    assert sorted(path.name for path in empty.iterdir()) == ["in", "o"]


def test_what_unpacks_to_more_than_fits_into_memory(empty: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    monkeypatch.setattr("peek.cli.reorder.OUT_OF_CORE_BYTES", 20_000)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as stream:
        for number in range(2000):
            stream.write(f'{{"prompt": "{"x" * 80}", "custom_id": "{number}"}}\n'.encode())
    Path("in.gz").write_bytes(packed.getvalue())
    Path("small.gz").write_bytes(gzip.compress(b'{"prompt": "x"}\n' * 200))
    assert 5 * Path("in.gz").stat().st_size > 20_000  # goes out of core by its size
    monkeypatch.setattr("peek.cli.reorder._is_large", lambda source: False)
    assert main(["reorder", "in.gz", "out"]) == 1
    (said,) = complaint(capsys)
    assert said == "peek: in.gz: holds more than 20,000 bytes: choose --out-of-core"
    assert main(["reorder", "in.gz", "out", "--in-memory"]) == 0
    assert main(["reorder", "small.gz", "out2"]) == 0


# -- kills ------------------------------------------------------------------------------------------------

KILLER = """
import json, os, random, signal, sys, time
from pathlib import Path
from peek.cli.main import main

kills, job = int(sys.argv[1]), sys.argv[2]
rnd = random.Random(job)

def played(words):
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main(words))
    return pid

def words(turn):
    if job == "reorder":
        way = ["--in-memory", "--out-of-core"][turn // 2 % 2]
        return ["reorder", f"in{turn % 2}.jsonl", "out.jsonl", "--cache-tokens", "500", way]
    return ["restore", f"out{turn % 2}.jsonl", "back.jsonl", "--order", f"out{turn % 2}.order"]

begun = time.monotonic()
os.waitpid(played(words(0)), 0)
span = time.monotonic() - begun
states = []
for turn in range(kills):
    pid = played(words(turn))
    time.sleep(rnd.random() * 1.2 * span)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    found = {name: Path(name).read_text() if Path(name).exists() else None
             for name in ("out.jsonl", "out.order", "back.jsonl")}
    first = {name: text and text[: text.index(chr(10))] for name, text in found.items()}
    sizes = {name: text and text.count(chr(10)) for name, text in found.items()}
    states.append([os.WIFSIGNALED(status), turn % 2, first, sizes])
print(json.dumps(states))
"""


def run_rows(turn: int) -> list[str]:
    return [row.replace('"r-', f'"run{turn}-') for row in json_rows(1500, seed=turn)]


def killed(empty: Path, job: str) -> list[list[Any]]:
    (empty / "killer.py").write_text(KILLER)
    command = [sys.executable, "killer.py", str(KILLS), job]
    done = subprocess.run(command, cwd=empty, env=ENVIRON, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    states: list[list[Any]] = json.loads(done.stdout)
    assert len(states) == KILLS
    return states


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_reorder_killed_at_any_moment(empty: Path) -> None:
    """OUT and its order file are of one run, each whole; OUT may be missing, but never be another run's.

    The next run is not led astray by what is left.
    """
    pytest.importorskip("duckdb")
    for turn in range(2):
        write(empty / f"in{turn}.jsonl", run_rows(turn))
    states = killed(empty, "reorder")
    assert sum(bool(was_killed) for was_killed, *_ in states) > 0
    for _, _, first, sizes in states:
        run_of_order = json.loads(first["out.order"])[1].partition("-")[0]
        assert sizes["out.order"] == 1500
        if first["out.jsonl"] is not None:
            assert sizes["out.jsonl"] == 1500
            assert json.loads(first["out.jsonl"])["custom_id"].partition("-")[0] == run_of_order
    for way in WAYS:
        assert main(["reorder", "in0.jsonl", "out.jsonl", *CACHE, way]) == 0
        assert sorted(lines(empty / "out.jsonl")) == sorted(lines(empty / "in0.jsonl"))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_restore_killed_at_any_moment(empty: Path) -> None:
    for turn in range(2):
        write(empty / "in.jsonl", run_rows(turn))
        assert main(["reorder", "in.jsonl", f"out{turn}.jsonl", *CACHE]) == 0
    for _, _, first, sizes in killed(empty, "restore"):
        assert sizes["back.jsonl"] == 1500
        assert json.loads(first["back.jsonl"])["custom_id"] in ("run0-0", "run1-0")
    left = [path for path in empty.iterdir() if path.name.startswith("back")]
    assert all(path.name == "back.jsonl" or path.suffix == ".partial" for path in left)
