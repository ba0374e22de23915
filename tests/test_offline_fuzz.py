"""Damaged files, archives that unpack to more than there is, and kills: nothing is lost, nothing is mixed.

`FUZZ_FILES=1000 FUZZ_KILLS=200` look as hard as was promised; the suite looks at fewer.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.batch_files import chat_rows, json_rows, lines, results_of, write
from support.fixtures import Capsys, Patch

import peek
from peek.cli import reading
from peek.cli.main import main

HOME = Path(peek.__file__).resolve().parent.parent
FILES = int(os.environ.get("FUZZ_FILES", "200"))
KILLS = int(os.environ.get("FUZZ_KILLS", "40"))
CACHE = ["--cache-tokens", "500"]
PIECES = [b"", b"\n", b"\r\n", b"\0", b"\xff", b'"', b"{", b"}", b"[", b"]", b":", b",", b"1e999", b"\\u0000"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: Patch) -> Path:
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


def test_damaged_batch_files(here: Path, capsys: Capsys) -> None:
    """Each line of a damaged file is in OUT, as it is, or named; a damaged archive is named."""
    rnd = random.Random(0)
    good = ["\n".join(rows).encode() + b"\n" for rows in (json_rows(12), chat_rows(12))]
    codes: Counter[int] = Counter()
    for number in range(FILES):
        plain = damaged(rnd.choice(good), rnd) if number % 4 else rnd.choice(good)
        packed = number % 4 == 0
        name = "in.jsonl.gz" if packed else "in.jsonl"
        (here / name).write_bytes(damaged(gzip.compress(plain, mtime=0), rnd) if packed else plain)
        for old in ("out.jsonl", "out.order"):
            (here / old).unlink(missing_ok=True)
        code = main(["reorder", name, "out.jsonl", *CACHE])
        codes[code] += 1
        said = complaint(capsys)
        assert code in (0, 1)
        if not (here / "out.jsonl").exists():
            assert code == 1
            assert said
            continue
        written = kept_lines((here / "out.jsonl").read_bytes())
        order = lines(here / "out.order")
        assert len(order) == written.total()
        if not packed:
            left_out = kept_lines(plain)
            assert not written - left_out
            left_out.subtract(written)
            named = sum(": line " in line for line in said)
            assert named == min(left_out.total(), 20)
            assert code == bool(named)
    assert codes[0] > FILES // 50
    assert codes[1] > FILES // 3


def test_damaged_results(here: Path, capsys: Capsys) -> None:
    """What is put back is a line of the results, and stands where its request stood."""
    rnd = random.Random(1)
    requests = json_rows(15)
    write(here / "in.jsonl", requests)
    assert main(["reorder", "in.jsonl", "out.jsonl", *CACHE]) == 0
    results = "\n".join(results_of(lines(here / "out.jsonl"))).encode() + b"\n"
    order = (here / "out.order").read_bytes()
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


def limited(cwd: Path, megabytes: int, *words: str) -> subprocess.CompletedProcess[bytes]:
    """The command in a process that has little memory."""
    resource = pytest.importorskip("resource")

    def confine() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    environ = {**os.environ, "PYTHONPATH": str(HOME), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "peek", *words], cwd=cwd, env=environ, capture_output=True, timeout=300,
        check=False, preexec_fn=confine,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("way", [[], ["--out-of-core"]])
def test_a_line_without_an_end(here: Path, way: list[str]) -> None:
    """Two gigabytes of one line in a file of a few hundred kilobytes."""
    pytest.importorskip("duckdb")
    bomb = zst(here / "in.jsonl.zst", b" " * (1 << 20), 2048)
    assert bomb.stat().st_size < 1 << 20
    done = limited(here, 1500, "reorder", "in.jsonl.zst", "out.jsonl", *way)
    assert done.returncode == 1
    assert done.stderr == b"peek: in.jsonl.zst: line 1 is longer than 256,000,000 bytes\n"
    assert [path.name for path in here.iterdir()] == ["in.jsonl.zst"]


def test_long_lines_are_refused_wherever_lines_are_read(
    here: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    monkeypatch.setattr(reading, "LONGEST_LINE", 100)
    good = '{"ts": 1, "prompt": "x"}\n'
    Path("in").write_text(good + "y" * 100 + "\n" + good)
    Path("o").write_text("[1, \"\"]\n")  # fmt: skip
    for words in (["reorder", "in", "out"], ["restore", "in", "out", "--order", "o"], ["trace", "in", "out"]):
        assert main(words) == 1
        assert complaint(capsys) == ["peek: in: line 2 is longer than 100 bytes"]
    assert sorted(path.name for path in here.iterdir()) == ["in", "o"]


def test_what_unpacks_to_more_than_fits_into_memory(here: Path, monkeypatch: Patch, capsys: Capsys) -> None:
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
        return ["reorder", f"in{turn % 2}.jsonl", "out.jsonl", "--cache-tokens", "500"]
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


def killed(here: Path, job: str) -> list[list[object]]:
    (here / "killer.py").write_text(KILLER)
    environ = {**os.environ, "PYTHONPATH": str(HOME)}
    command = [sys.executable, "killer.py", str(KILLS), job]
    done = subprocess.run(command, cwd=here, env=environ, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    states: list[list[object]] = json.loads(done.stdout)
    assert len(states) == KILLS
    return states


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_reorder_killed_at_any_moment(here: Path) -> None:
    """OUT and its order file are of one run, each whole; OUT may be missing, but never be another run's."""
    for turn in range(2):
        write(here / f"in{turn}.jsonl", run_rows(turn))
    states = killed(here, "reorder")
    assert sum(bool(was_killed) for was_killed, *_ in states) > 0
    for _, _, first, sizes in states:
        assert isinstance(first, dict)
        assert isinstance(sizes, dict)
        run_of_order = json.loads(first["out.order"])[1].partition("-")[0]
        assert sizes["out.order"] == 1500
        if first["out.jsonl"] is not None:
            assert sizes["out.jsonl"] == 1500
            assert json.loads(first["out.jsonl"])["custom_id"].partition("-")[0] == run_of_order
    assert main(["reorder", "in0.jsonl", "out.jsonl", *CACHE]) == 0
    assert sorted(lines(here / "out.jsonl")) == sorted(lines(here / "in0.jsonl"))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_restore_killed_at_any_moment(here: Path) -> None:
    for turn in range(2):
        write(here / "in.jsonl", run_rows(turn))
        assert main(["reorder", "in.jsonl", f"out{turn}.jsonl", *CACHE]) == 0
    for _, _, first, sizes in killed(here, "restore"):
        assert isinstance(first, dict)
        assert isinstance(sizes, dict)
        assert sizes["back.jsonl"] == 1500
        assert json.loads(first["back.jsonl"])["custom_id"] in ("run0-0", "run1-0")
    left = [path for path in here.iterdir() if path.name.startswith("back")]
    assert all(path.name == "back.jsonl" or path.suffix == ".partial" for path in left)
