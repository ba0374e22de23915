"""Whatever reads a file reads it compressed as well, and says the same of it."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batch_files import json_rows
from support.fixtures import Capsys, Patch

from peek.cli.main import main
from peek.compressed import damage, unpacked


def zstd(data: bytes) -> bytes:
    packed: bytes = pytest.importorskip("zstandard").ZstdCompressor().compress(data)
    return packed


PACKED: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstd}

ROW = {"timestamp": 0, "input_length": 1500, "output_length": 4, "hash_ids": [1, 2, 3]}
REQUESTS = "".join(f"{row}\n" for row in json_rows(30))
READERS = {
    # what holds: a command that reads it from IN and writes nothing that differs between runs
    "requests": ("reorder IN out.jsonl --cache-tokens 1000 --explain", REQUESTS),
    "results": ("restore IN out.jsonl --order some.order", REQUESTS),
    "log": ("trace IN out.jsonl --rate 1 --salt-file salt", REQUESTS),
    "checked": ("check IN --rate 1 --draws 0", REQUESTS),
    "trace": ("simulate --trace IN --policy fcfs+lru", "".join(f"{json.dumps(ROW)}\n" for _ in range(20))),
    "sessions": (
        "simulate --sessions IN --policy fcfs+lru",
        json.dumps({"session": "s", "turn": 0, "tokens": [1], "output_length": 2, "gap_s": 0}) + "\n",
    ),
}


def done(command: str, source: str, capsys: Capsys) -> tuple[int, str, bytes]:
    """Exit code, output and file of a command."""
    code = main(command.replace("IN", source).split())
    shown, written = capsys.readouterr(), Path("out.jsonl")
    return code, shown.out + shown.err, written.read_bytes() if written.exists() else b""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("salt").write_text("tell nobody this")
    ids = [json.loads(row)["custom_id"] for row in json_rows(30)]
    Path("some.order").write_text("".join(f"{json.dumps([n, name])}\n" for n, name in enumerate(ids, 1)))
    return tmp_path


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("what", READERS)
def test_a_compressed_file_is_read_as_the_plain_one(
    here: Path, capsys: Capsys, monkeypatch: Patch, what: str, kind: str
) -> None:
    """By its content, whatever its name says, and on standard input."""
    command, text = READERS[what]
    packed = PACKED[kind](text.encode())
    Path("same.jsonl").write_text(text)
    wanted = done(command, "same.jsonl", capsys)
    assert wanted[0] == 0
    for name in (f"same.jsonl.{kind}", "same.jsonl", *(f"same.jsonl.{other}" for other in PACKED)):
        Path(name).write_bytes(packed)
        code, said, written = done(command, name, capsys)
        assert (code, said.replace(name, "same.jsonl"), written) == (0, wanted[1], wanted[2])
    if what in ("requests", "results", "log"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
        assert done(command, "-", capsys)[2] == wanted[2]


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("what", READERS)
def test_a_file_that_is_not_what_its_name_says_is_damaged(
    here: Path, capsys: Capsys, what: str, kind: str
) -> None:
    command, text = READERS[what]
    name = f"in.jsonl.{kind}"
    Path(name).write_text(text)
    code, said, written = done(command, name, capsys)
    assert (code, written, len(said.splitlines())) == (1, b"", 1)
    assert said.startswith(f"peek: {name}: ")
    assert "damaged" in said or "bad " in said


@pytest.mark.parametrize("what", READERS)
def test_zstandard_that_is_not_installed_is_named(
    here: Path, capsys: Capsys, monkeypatch: Patch, what: str
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    command, text = READERS[what]
    Path("in.zst").write_text(text)
    said = "peek: in.zst needs zstandard: pip install 'peek-kv[offline]'\n"
    assert done(command, "in.zst", capsys) == (1, said, b"")


@pytest.mark.parametrize("kind", ["", *(f".{kind}" for kind in PACKED)])
def test_a_trace_is_written_as_it_is_read(here: Path, capsys: Capsys, kind: str) -> None:
    Path("in.jsonl").write_text(REQUESTS)
    assert main(["trace", "in.jsonl", f"out.jsonl{kind}", "--rate", "1", "--salt-file", "salt"]) == 0
    again = main(["simulate", "--trace", f"out.jsonl{kind}", "--policy", "fcfs+lru", "--json"])
    assert (again, "trace" in capsys.readouterr().out) == (0, True)


@given(
    rows=st.lists(st.integers(0, 999), min_size=1, max_size=400),
    cut=st.integers(1, 10_000),
    frames=st.integers(1, 3),
)
def test_an_archive_of_zstandard_that_is_cut_off_is_damaged(rows: list[int], cut: int, frames: int) -> None:
    text = "".join(f"{row}\n" for row in rows).encode()
    packed = zstd(text) * frames
    whole = unpacked(io.BytesIO(packed), Path("a.zst"))[1]
    assert whole.read() == text * frames
    end = 1 + cut % (len(packed) - 1)
    _, stream = unpacked(io.BytesIO(packed[:-end]), Path("a.zst"))
    kept = len(packed) - end
    if kept % (len(packed) // frames) == 0:  # between two frames
        assert stream.read() == text * (kept * frames // len(packed))
    else:
        with pytest.raises(damage()):
            stream.read()
