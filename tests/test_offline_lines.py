"""Batch files and results as people have them: line ends, byte order marks, repeated and missing ids."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batch_files import json_row, json_rows, lines, results_of, write
from support.fixtures import Capsys, Patch

from peek import WorkloadError
from peek.cli.main import main
from peek.offline.formats import (
    BOM,
    EXCERPT_BYTES,
    as_text,
    end_swap,
    excerpt,
    excerpt_of,
    find_repeated,
    lines_of,
    match_results,
    order_line,
    read_order,
    split_end,
)

WAYS = ["--in-memory", "--out-of-core"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: Patch) -> Path:
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reorder(*words: object) -> int:
    return main(["reorder", "in.jsonl", "out.jsonl", "--cache-tokens", "500", *map(str, words)])


def restore(source: str = "out.jsonl") -> int:
    return main(["restore", source, "back.jsonl", "--order", "out.order"])


# -- line ends --------------------------------------------------------------------------------------------

ends = st.sampled_from([b"\n", b"\r\n"])


@given(st.lists(ends, min_size=1, max_size=8), st.booleans(), st.randoms(use_true_random=False))
def test_any_order_and_back_byte_for_byte(found: list[bytes], is_bare: bool, rnd: random.Random) -> None:
    raw = [b"line %d" % i + end for i, end in enumerate(found)]
    if is_bare:
        raw[-1] = split_end(raw[-1])[0]

    def arranged(given: list[bytes], order: list[int]) -> list[bytes]:
        bare = len(given) - 1 if not split_end(given[-1])[1] else -1
        swap = end_swap(bare, order[-1], given[order[-1]])
        return [swap.apply(index, given[index]) for index in order]

    order = rnd.sample(range(len(raw)), len(raw))
    there = arranged(raw, order)
    assert [split_end(line)[0] for line in there] == [split_end(raw[i])[0] for i in order]
    assert all(split_end(line)[1] for line in there[:-1])
    assert bool(split_end(there[-1])[1]) is not is_bare
    back = sorted(range(len(raw)), key=order.__getitem__)
    assert arranged(there, back) == raw


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("mark", [b"", BOM])
@pytest.mark.parametrize("end", ["\n", "\r\n", "mixed"])
@pytest.mark.parametrize("way", WAYS)
def test_there_and_back_byte_for_byte(here: Path, way: str, end: str, mark: bytes, bare: bool) -> None:
    rnd = random.Random(2)
    rows = json_rows(40)
    data = "".join(row + (rnd.choice(["\n", "\r\n"]) if end == "mixed" else end) for row in rows).encode()
    data = data.rstrip(b"\r\n") if bare else data
    (here / "in.jsonl").write_bytes(mark + data)
    assert reorder(way) == 0
    out = (here / "out.jsonl").read_bytes()
    assert out != data
    assert [json.loads(line)["custom_id"] for line in out.splitlines()] == [
        json.loads(line)[1] for line in lines(here / "out.order")
    ]
    assert sorted(map(bytes.strip, out.splitlines())) == sorted(row.encode() for row in rows)
    assert restore() == 0
    assert (here / "back.jsonl").read_bytes() == data


@pytest.mark.parametrize("way", WAYS)
def test_of_several_files_each_line_has_an_end(here: Path, way: str) -> None:
    """They may be put one behind the other."""
    rows = json_rows(40)
    (here / "in.jsonl").write_bytes("\r\n".join(rows).encode())
    assert reorder("--replicas", 3, way) == 0
    parts = [(here / f"out.{i}.jsonl").read_bytes() for i in range(3)]
    assert all(part.endswith(b"\r\n") for part in parts)
    assert sorted(b"".join(parts).decode().splitlines()) == sorted(rows)


def test_lines_of_a_stream() -> None:
    stream = [BOM + b'{"a": 1}\r\n', b"\n", b"  \r\n", BOM + b"x\r\r\n", b"y\r"]
    assert list(lines_of(stream)) == [(1, b'{"a": 1}', b"\r\n"), (4, BOM + b"x\r", b"\r\n"), (5, b"y\r", b"")]
    assert list(lines_of([BOM])) == list(lines_of([])) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_file_of_one_line_without_an_end(here: Path, way: str) -> None:
    (here / "in.jsonl").write_text(json_rows(1)[0])
    assert reorder(way) == 0
    assert lines(here / "out.jsonl") == json_rows(1)
    assert restore() == 0
    assert (here / "back.jsonl").read_bytes() == (here / "in.jsonl").read_bytes()


@pytest.mark.parametrize("way", WAYS)
def test_an_empty_file(here: Path, way: str) -> None:
    (here / "in.jsonl").write_bytes(BOM + b"\n\n")
    assert reorder(way, "--explain") == 0
    assert restore() == 0
    assert [(here / name).read_bytes() for name in ("out.jsonl", "out.order", "back.jsonl")] == [b""] * 3


# -- ids --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("custom_id", ["r-3", "ä", "\ud800", 'a"\n\0', "same " * 400])
def test_two_requests_with_one_id_are_refused(
    here: Path, capsys: Capsys, monkeypatch: Patch, way: str, custom_id: str
) -> None:
    monkeypatch.setitem(sys.modules, "orjson", None)  # it takes no lone surrogates
    rows = json_rows(30)
    for at in (3, 17, 20):
        rows[at] = json.dumps({**json.loads(rows[at]), "custom_id": custom_id})
    (here / "out.jsonl").write_text("old")
    write(here / "in.jsonl", rows)
    assert reorder(way) == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(
        f"peek: in.jsonl: line 18: custom_id {excerpt_of(custom_id)} is that of line 4, too"
    )
    assert (here / "out.jsonl").read_text() == "old"
    assert sorted(each.name for each in here.iterdir()) == ["in.jsonl", "out.jsonl"]


@pytest.mark.parametrize("way", WAYS)
def test_requests_without_ids_are_restored_by_position(here: Path, way: str) -> None:
    rows = [json.dumps({"body": json.loads(row)["body"]}) for row in json_rows(30)]
    write(here / "in.jsonl", rows)
    assert reorder(way) == 0
    write(here / "done.jsonl", [str(len(line)) for line in lines(here / "out.jsonl")])
    assert restore("done.jsonl") == 0
    assert lines(here / "back.jsonl") == [str(len(row)) for row in rows]


results = st.sampled_from([None, "", "a", "b", "c", "d", 7, ["a"], {"a": 1}])


@given(
    st.lists(results, max_size=8), st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=6), st.booleans()
)
def test_an_answer_never_goes_to_a_request_that_is_not_its_own(
    found: list[object], ids: list[str], by_position: bool
) -> None:
    found = [each or None for each in found]
    numbers = random.Random(len(ids)).sample(range(1, 20), len(ids))
    try:
        placed, faults = match_results(found, numbers, ids, by_position)
    except WorkloadError:
        assert not any(found)
        assert len(found) != len(ids) or (any(ids) and not by_position)
        return
    assert len(set(placed.values())) == len(placed)
    if not any(found):
        assert by_position or not any(ids), "nothing says that they are in that order"
        assert (placed, faults) == (dict(enumerate(numbers)), [])
        return
    for index, number in placed.items():
        assert ids[numbers.index(number)] == found[index]
        assert ids.count(str(found[index])) == 1
        assert found.index(found[index]) == index
    told = "\n".join(faults)
    for index in set(range(len(found))) - set(placed):
        assert f"result {index + 1}: " in told
    unanswered = [(n, i) for n, i in zip(numbers, ids, strict=True) if n not in placed.values()]
    for number, custom_id in unanswered:
        assert f"line {number}: " in told or repr(custom_id) in told or custom_id == ""
    assert bool(faults) == (len(placed) < max(len(found), len(ids)))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda rows: rows[:5] + rows[6:], ["no result for custom_id 'r-5'", "line 6"]),
        (lambda rows: [*rows, '{"custom_id": "foreign"}'], ["result 13", "no request", "'foreign'"]),
        (lambda rows: [*rows, rows[2]], ["result 13", "'r-2' again", "result 3"]),
        (lambda rows: [*rows[:-1], "{}"], ["result 12: has no custom_id", "'r-11'"]),
        (lambda rows: [*rows[:-1], '{"custom_id": 11}'], ["result 12: custom_id is 11", "'r-11'"]),
    ],
)
def test_results_that_do_not_match_are_named(
    here: Path, capsys: Capsys, change: object, named: list[str]
) -> None:
    assert callable(change)
    rows = json_rows(12)
    write(here / "in.jsonl", rows)
    assert reorder() == 0
    write(here / "done.jsonl", change(results_of(rows)))
    assert restore("done.jsonl") == 1
    shown = capsys.readouterr().err
    for text in named:
        assert text in shown
    assert shown.splitlines()[-1].startswith("peek: done.jsonl: ")
    right = {json.loads(line)["custom_id"]: line for line in results_of(rows)}
    back = lines(here / "back.jsonl")
    assert back == [line for line in right.values() if line in back]
    assert len(back) >= 11


def test_an_order_file_of_old_with_one_id_twice(here: Path, capsys: Capsys) -> None:
    write(here / "out.order", ['[2, "same"]', '[1, "same"]', '[3, "own"]'])
    write(here / "done.jsonl", ['{"custom_id": "same"}', '{"custom_id": "own"}', '{"custom_id": "same"}'])
    assert restore("done.jsonl") == 1
    shown = capsys.readouterr().err
    assert "result 1: custom_id 'same' is that of lines 2, 1" in shown
    assert lines(here / "back.jsonl") == ['{"custom_id": "own"}']


@given(st.lists(st.tuples(st.integers(1, 10**9), st.text(max_size=5)), unique_by=lambda each: each[0]))
def test_order_files_come_back(rows: list[tuple[int, str]]) -> None:
    written = [order_line(number, as_text(custom_id)) for number, custom_id in rows]
    assert [line.decode("ascii") for line in written] == [json.dumps(list(row)) + "\n" for row in rows]
    assert read_order(lines_of(written), json.loads) == ([n for n, _ in rows], [i for _, i in rows])


@pytest.mark.parametrize("line", [b"{", b"7", b"[1]", b'["1", "a"]', b"[1, 2]", b'[0, "a"]', b'[true, "a"]'])
def test_what_is_no_order_file(line: bytes) -> None:
    with pytest.raises(WorkloadError, match="line 2: not a line of an order file"):
        read_order(lines_of([b'[1, "a"]\n', line]), json.loads)


def test_a_line_number_twice() -> None:
    with pytest.raises(WorkloadError, match="twice"):
        read_order(lines_of([b'[1, "a"]\n', b'[1, "b"]\n']), json.loads)


def test_the_first_that_repeats() -> None:
    assert find_repeated([1, 2, 3, 4, 5], ["a", "b", "b", "a", "b"]) == (2, 3, "b")
    assert find_repeated([1, 2, 3], ["", "", "a"]) is None


# -- what is told of it -----------------------------------------------------------------------------------


@given(st.text(max_size=400))
def test_echoes_are_short(text: str) -> None:
    for shown in (excerpt_of(text), excerpt(text), excerpt_of([text])):
        assert len(shown.encode()) <= EXCERPT_BYTES
    if len(repr(text).encode()) <= EXCERPT_BYTES:
        assert excerpt_of(text) == repr(text)
    else:
        assert excerpt_of(text).endswith("...")


LONG = "secret ä " * 1000

LEAKS = [
    json.dumps({"custom_id": [LONG], "body": {"prompt": "x"}}),
    json.dumps({"custom_id": "a", "body": {"messages": [LONG]}}),
    json.dumps({"custom_id": "a", "body": {"prompt": [1, LONG]}}),
    json.dumps({"custom_id": "a", "body": {"prompt": [LONG, 1]}}),
    json.dumps({"custom_id": "a", "body": {"prompt": [1, 10**999]}}),
    json.dumps({"custom_id": "a", "body": LONG}),
    json.dumps(LONG),
    LONG,
    '{"' + LONG,
    "[" * 100_000,
    '{"body": {"prompt": ' + "[" * 3000 + "]" * 3000 + "}}",
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parser", ["orjson", "json"])
@pytest.mark.parametrize("line", LEAKS, ids=range(len(LEAKS)))
def test_bad_lines_are_not_echoed_in_full(
    here: Path, capsys: Capsys, monkeypatch: Patch, line: str, parser: str, way: str
) -> None:
    if parser == "json":
        monkeypatch.setitem(sys.modules, "orjson", None)
    write(here / "in.jsonl", [*json_rows(5), line])
    assert reorder(way) == 1
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("peek: in.jsonl: line 6: ")
    assert len(first.encode()) <= EXCERPT_BYTES + 80
    assert last == "peek: in.jsonl: 1 bad line left out"
    assert sorted(lines(here / "out.jsonl")) == sorted(json_rows(5))


def test_long_ids_of_results_are_not_echoed_in_full(here: Path, capsys: Capsys) -> None:
    rows = [json_row(0, {"prompt": "x"}), json.dumps({"custom_id": LONG, "body": {"prompt": "y"}})]
    write(here / "in.jsonl", rows)
    assert reorder() == 0
    write(here / "done.jsonl", [json.dumps({"custom_id": LONG + "?"}), json.dumps({"custom_id": "r-0"})])
    assert restore("done.jsonl") == 1
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 3
    assert all(len(line.encode()) <= EXCERPT_BYTES + 80 for line in shown)
