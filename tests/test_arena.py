"""The arena: what is written is what runs, anybody's policy has a place, and the page is the stored table."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.arena import __main__ as arena
from bench.arena import drawn, kinds
from bench.arena.bounded import shortest_within
from bench.arena.cells import STOCK, Cell, row, run_cell
from bench.arena.traces import TRACES, Trace, WrongChecksum, fetch
from bench.arena.windows import run
from peek.simulation.workload import pack_tokens


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "REQUESTS", 60)


@pytest.mark.parametrize(
    ("table", "mark"),
    [(arena.TABLE, arena.MARK), (arena.LATER_TABLE, arena.LATER_MARK), (drawn.TABLE, drawn.MARK)],
)
def test_the_page_has_the_stored_tables(table: Path, mark: str) -> None:
    with table.open(newline="", encoding="utf-8") as stream:
        stored = list(csv.reader(stream))
    page = arena.PAGE.read_text(encoding="utf-8")
    assert arena.between(page, arena.leaderboard(stored), mark) == page


def test_the_page_has_the_figures_of_recorded_sessions() -> None:
    with arena.TABLE.with_name("policies_sessions.csv").open(newline="", encoding="utf-8") as stream:
        rows = {(line["cells"], line["policy"]): line for line in csv.DictReader(stream)}
    page = arena.PAGE.read_text(encoding="utf-8")
    shown = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in page.splitlines()
        if line.startswith(("| BFCL, ", "| ShareGPT, "))
    ]
    assert len(shown) == 3
    for cells, (_, count, mean, p99, e2e, job, over) in zip(dict(rows.keys()), shown, strict=True):
        ours = {
            name: float(value)
            for name, value in rows[cells, "peek"].items()
            if name not in ("cells", "policy")
        }
        arrival = float(rows[cells, "fcfs+lru"]["ttft"])
        assert cells.endswith(f"({count})")
        assert [mean, p99, e2e] == [f"{ours[name]:.2f}" for name in ("ttft", "p99", "e2e")]
        assert job in ("", f"{ours['jct']:.2f}")
        assert over == f"{ours['ttft'] / arrival:.2f}"


def test_the_page_has_the_figures_of_a_bound_known_beforehand() -> None:
    with arena.TABLE.with_name("policies_bounded.csv").open(newline="", encoding="utf-8") as stream:
        rows = [line for line in csv.DictReader(stream) if line["policy"] == "bounded by 1.1"]
    page = " ".join(arena.PAGE.read_text(encoding="utf-8").split())
    means = {line["kind"].split()[0]: float(line["ttft"]) for line in rows}
    assert (min(means, key=means.__getitem__), max(means, key=means.__getitem__)) == ("rag", "lora")
    assert "Its mean is {rag:.2f} (RAG) to {lora:.2f} times (LoRA) the best".format(**means) in page


def test_the_page_has_the_figures_of_drawn_mixes() -> None:
    with drawn.TABLE.open(newline="", encoding="utf-8") as stream:
        rows = [line for line in csv.DictReader(stream) if line["policy"] == "peek"]
    every, *shown = [(line["cells"], float(line["ttft"]), float(line["p99"])) for line in rows]
    sessions, single, little = shown
    page = " ".join(arena.PAGE.read_text(encoding="utf-8").split())
    assert f"{every[0].partition('(')[2].rstrip(')')} of {2 * drawn.MIXES} cells have a queue" in page
    assert "mean is {:.2f} times the best and its p99 {:.2f} times;".format(*sessions[1:]) in page
    assert "in the others they are {:.2f} and {:.2f}.".format(*single[1:]) in page
    assert f"In {little[0].partition('(')[2].rstrip(')')} cells no stock policy's mean" in page
    assert f"the default's p99 is {little[2]:.2f} times the best" in page


@pytest.mark.parametrize("number", [drawn.FIRST, drawn.FIRST + 1, drawn.FIRST + 5])
def test_a_drawn_mix_can_run_and_is_the_same_each_time(number: int) -> None:
    mix, again = (drawn.Mix(number, 40).workload() for _ in range(2))
    assert mix == again != drawn.Mix(number + 1, 40).workload()
    by_id = {each.request_id: each for each in mix.requests}
    assert 40 <= len(by_id) == len(mix.requests) < 60
    for each in mix.requests:
        assert each.num_tokens * 4 == len(each.key)
        assert each.num_tokens + each.output_tokens <= mix.arena_tokens // 2
        if each.after is not None:
            before = by_id[each.after]
            assert each.session == before.session
            assert each.key.startswith(before.key + before.answer)


def test_the_page_has_the_figures_of_clients_that_wait() -> None:
    with arena.TABLE.with_name("windows.csv").open(newline="", encoding="utf-8") as stream:
        rows = [line for line in csv.DictReader(stream) if line["engine"] == "radix"]
    page = " ".join(arena.PAGE.read_text(encoding="utf-8").split())
    alone, documents = (
        [
            [
                float(line[figure]) * (100 if figure == "in_2_s" else 1)
                for policy in ("fcfs+lru", "peek", "peek:objective=tail")
                for line in rows
                if (line["kind"], line["requests"], line["policy"]) == (kind, "6400", policy)
            ]
            for figure in ("mean_s", "p99_s", "in_2_s")
        ]
        for kind in ("alone", "documents")
    )
    told = (
        ("With nothing shared the mean is {:.1f}, {:.1f} and {:.1f} s, and p99", alone[0]),
        ("p99 {:.0f}, {:.0f} and {:.0f} s;", alone[1]),
        ("{:.0f}, {:.0f} and {:.0f} % of the first tokens come within 2 s", alone[2]),
        ("the mean is {:.1f}, {:.1f} and {:.1f} s, and p99", documents[0]),
        ("p99 {:.0f}, {:.0f} and {:.0f} s (", documents[1]),
    )
    for text, figures in told:
        assert text.format(*figures) in page


def test_a_window_is_as_long_and_as_wide_as_is_asked_for() -> None:
    short, long = (run(("alone", "blocks", requests, 12, "fcfs+lru")) for requests in (40, 160))
    wide = run(("alone", "blocks", 160, 40, "fcfs+lru"))
    assert (long.requests, long.outstanding) == (160, 12)
    assert short.mean_s != long.mean_s < wide.mean_s


JOBS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=9)


@given(jobs=JOBS, most=st.integers(0, 9))
def test_shortest_first_within_a_bound_makes_nobody_late(jobs: list[tuple[int, int]], most: int) -> None:
    work = [float(each) for each, _ in jobs]
    ends = list(accumulate(work))
    slack = list(accumulate((end + more for end, (_, more) in zip(ends, jobs, strict=True)), max))
    order = shortest_within(work, slack, most)
    assert sorted(order) == list(range(len(work)))
    done = accumulate(work[job] for job in order)
    assert all(end <= slack[job] for end, job in zip(done, order, strict=True))
    free = shortest_within(work, [1e9] * len(work), len(work))
    assert free == sorted(free, key=lambda job: (work[job], job)), "without a bound it is shortest first"
    tight = shortest_within(work, ends, len(work))
    assert tight == list(range(len(work))), "without slack it is the order of arrival"


def test_names_of_tenants_are_not_believed() -> None:
    cell = Cell("mixed", 1.5, 11, "blocks")
    found = run_cell((cell, ["fcfs+lru", "peek", "peek:tenant_lead=inf"]))
    assert found["peek"] == found["peek:tenant_lead=inf"] != found["fcfs+lru"]


def test_the_best_utility_stands_first() -> None:
    heads = ["cells", "policy", *arena.SHOWN.values()]
    lines = [heads, *(["all (2)", name, *["1.00"] * 5, utility, "0.50", "3"] for name, utility in
                      (("a", "1.301"), ("b+lru", "1.2"), ("c", "1.25")))]  # fmt: skip
    lines.append(["rag (1)", "a", *["1.00"] * 5, "0.1", "0.5", "0"])
    board = arena.leaderboard(lines).splitlines()
    assert [line.split("|")[1].strip() for line in board[2:]] == ["`b`", "`c`", "`a`"]
    assert board[2] == "| `b` | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 1.20 | 0.50 | 3 |"


@pytest.mark.parametrize("kind", ["agents", "lora"])
def test_what_is_written_is_what_runs(kind: str, tmp_path: Path) -> None:
    paths = list(arena.write(tmp_path / "traffic", [kind], [11]))
    assert [path.name for path in paths] == [f"{kind}-{load:g}-11.jsonl.gz" for load in kinds.LOADS]
    with gzip.open(paths[1], "rt", encoding="utf-8") as stream:
        lines = [json.loads(line) for line in stream]
    workload = kinds.at_load(kinds.build(kind, 11), kinds.LOADS[1], "blocks")
    for line, request in zip(lines, workload.requests, strict=True):
        assert pack_tokens(line["tokens"]) == request.key
        assert (line["id"], line["after"], line["output_length"]) == (
            request.request_id, request.after, request.output_tokens,
        )  # fmt: skip
        assert line["arrival_s"] == pytest.approx(request.arrival_s, abs=1e-6)
        assert (line["namespace"], line["session"]) == (request.namespace, request.session)
    known = {line["id"] for line in lines}
    assert all(line["after"] is None or line["after"] in known for line in lines)


def test_a_class_has_a_place_like_a_label() -> None:
    """The class behind a stock label does what the label does, and beats nobody."""
    cell = Cell("rag", 1.5, 11, "blocks")
    found = run_cell((cell, [*STOCK, "peek.policy.stock:FirstCome"]))
    assert found["peek.policy.stock:FirstCome"] == found["fcfs+lru"]
    line = row([found], "peek.policy.stock:FirstCome")
    assert line["ttft"] == found["fcfs+lru"]["ttft"] / min(found[stock]["ttft"] for stock in STOCK)
    assert line["utility"] >= 1.0


def published(tmp_path: Path, text: bytes) -> Trace:
    path = tmp_path / "published"
    path.write_bytes(text)
    return Trace(path.as_uri(), hashlib.sha256(b"as measured").hexdigest(), "MIT")


def test_a_trace_is_fetched_once(tmp_path: Path) -> None:
    trace = published(tmp_path, b"as measured")
    path = fetch("trace.csv", trace, tmp_path / "traces")
    assert path.read_bytes() == b"as measured"
    (tmp_path / "published").unlink()
    assert fetch("trace.csv", trace, tmp_path / "traces") == path
    path.write_bytes(b"torn")
    with pytest.raises(OSError, match="No such file"):
        fetch("trace.csv", trace, tmp_path / "traces")


def test_another_trace_than_the_measured_one_is_not_kept(tmp_path: Path) -> None:
    trace = published(tmp_path, b"something else")
    with pytest.raises(WrongChecksum, match=f"has sha256 .*, not {trace.sha256}"):
        fetch("trace.csv", trace, tmp_path / "traces")
    assert list((tmp_path / "traces").iterdir()) == []


def test_traces_are_of_one_commit_each() -> None:
    for trace in TRACES.values():
        assert trace.url.startswith("https://raw.githubusercontent.com/")
        assert len(trace.sha256) == len(trace.url.split("/")[5]) + 24 == 64


@pytest.mark.parametrize("kind", [*kinds.KINDS, *kinds.LATER])
def test_kinds_are_drawn_from_the_seed_alone(kind: str) -> None:
    first, again, other = (kinds.build(kind, seed) for seed in (11, 11, 12))
    assert first.requests == again.requests != other.requests
    assert list(accumulate((each.arrival_s for each in first.requests), max)) == [
        each.arrival_s for each in first.requests
    ]
