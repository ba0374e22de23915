"""The evaluation's pages are what the stored runs say, no more and no longer; and how they are made."""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
pytest.importorskip("matplotlib")
sys.path.append(str(ROOT))  # behind everything: `peek` stays the one that is tested

from bench.evaluation import listing, loads, plans, report, results, tables, traffic, verdicts  # noqa: E402
from bench.evaluation.cells import LOADS, Cell, Results, title  # noqa: E402
from bench.evaluation.fit import nearest  # noqa: E402
from bench.evaluation.streams import build  # noqa: E402

PAGES = report.pages(results.RESULTS)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_stored_runs_say(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == PAGES[name], "run `make eval-report`"


def prose(text: str) -> int:
    """Words of a page without its tables, scripts and stored cells."""
    text = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    return len([word for line in text.splitlines() if not line.startswith("|") for word in line.split()])


def test_the_pages_can_be_read() -> None:
    assert len(PAGES["evaluation.md"].split()) <= 1200
    assert PAGES["evaluation.md"].count("![") == 4
    pages = [text for name, text in PAGES.items() if name.startswith("evaluation")]
    assert sum(map(prose, pages)) < 3500
    assert sum(len(text.split()) for text in pages) < 7000


def test_the_first_page_says_which_library_they_are_of() -> None:
    assert "Figures of `peek` are of the library `" in PAGES["evaluation.md"]


def test_every_loss_is_counted_on_the_page_and_listed_in_the_file() -> None:
    """The page has every kind with a loss and how many; the file has each."""
    page, _, default = PAGES["evaluation_losses.md"].partition("## Against what engines do by default")
    listed = list(csv.DictReader(io.StringIO(PAGES["data/losses.csv"])))
    for text, against in ((page, "best stock policy"), (default, "default")):
        counted = sum(int(number) for number in re.findall(r"\b[Ll]ost: (\d+) of", text))
        lost = [row for row in listed if row["against"] == against]
        assert counted == len(lost) > 0
        kinds = re.findall(r"^\| ([^|]*) \| \d+ of", text, re.MULTILINE)
        kinds += re.findall(r"[.;] ((?:(?![.;] ).)*) \(\d+ of", text)
        assert all(any(row["stream"].startswith(kind) for kind in kinds) for row in lost)
    assert f"**{len(listed) - len(lost)} of " in page


def test_a_whole_table_is_printed_and_words_select_its_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["listing", "losses", "sglang", "w1 a, client"])
    listing.main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["against", "stream", "engine"]
    assert rows
    assert all("W1 A, client" in row and "SGLang" in row for row in rows)


def test_two_libraries_are_both_named() -> None:
    runs = [{**a_run("peek", 1, 1.0), "peek": "1+b"}, {**a_run("fcfs+lru", 1, 2.0), "peek": "1+a"}]
    assert "`1+b` (those of the other policies of `1+a`)" in verdicts.made(Results(runs), 7)


# -- small results by hand ------------------------------------------------------------------------------


def a_run(policy: str, seed: int, ttft: float, p99: float = 10.0) -> results.Record:
    facts = {"engine": "sglang", "stream": "w1a:heavy", "version": "0", "peek": "1+a", "fit": "1/1"}
    return {**facts, "policy": policy, "seed": seed, "hit": 0.5, "ttft": ttft, "ttft_p99": p99}


def test_peek_stands_against_the_best_of_each_figure_over_common_seeds() -> None:
    cell = Cell("sglang", "w1a:heavy")
    for run in (
        *(a_run("peek", seed, 8.0 + seed, 33.0) for seed in (0, 2)),
        *(a_run("hrrn+lru", seed, 10.0, 40.0) for seed in (0, 2)),
        *(a_run("fcfs+lru", seed, 20.0, 30.0) for seed in (0, 2, 5)),
    ):
        cell.add(run)
    mean, tail = cell.against("ttft"), cell.against("ttft_p99")
    assert mean is not None
    assert tail is not None
    assert (mean.other, mean.ratio, mean.seeds) == ("hrrn+lru", 0.9, [0.8, 1.0])
    assert (tail.other, str(tail)) == ("fcfs+lru", "+10 % (+10 to +10)")
    found = Results(run for seeds in cell.runs.values() for run in seeds.values())
    said = tables.losses(tables.compared(found, ["w1a:heavy"], ["sglang"]))
    assert "| W1 A, load 7.4 / 3.6 | 0 of 1 | 1 of 1, +10 % | `fcfs+lru` |" in said
    assert "Lost: 1 of 2 figures." in said
    assert [row[3:] for row in listing.losses(found, found)][1] == [
        *("ttft_p99", "33", "30", "+10.0", "+10.0", "+10.0", "fcfs+lru")
    ]


@pytest.mark.parametrize("engine", plans.REAL)
def test_the_default_of_both_engines_is_arrival_order(engine: str) -> None:
    """What the paper calls stock on SGLang, longest prefix match, is what SGLang does on request only."""
    seconds = {"peek": 2.0, "lpm+lru": 6.0, "fcfs+lru": 10.0}
    found = Results({**a_run(policy, 1, ttft), "engine": engine} for policy, ttft in seconds.items())
    assert "| 5.0 |" in tables.summary(found, [engine])
    assert plans.stock_of(engine) == {"sglang": "lpm+lru", "vllm": "fcfs+lru"}[engine]


def test_the_summary_has_jobs_and_the_share_in_time_where_all_were_measured() -> None:
    """A stock policy without the figure counts for nothing; without any the place stays empty."""
    runs = [
        a_run("peek", 1, 2.0) | {"e2e": 5.0, "job": 10.5, "in_time": 0.75},
        a_run("fcfs+lru", 1, 2.0) | {"e2e": 4.0, "job": 10.0, "in_time": 0.5},
        a_run("lpm+lru", 1, 2.0) | {"e2e": 8.0},
    ]
    assert "| W1, open loop | +0 | +0 | +25 | +5 | +25 | 1.0 |" in tables.summary(Results(runs), ["sglang"])
    for run in runs:
        run.pop("job", None)
        run.pop("in_time", None)
    assert "| W1, open loop | +0 | +0 | +25 |  |  | 1.0 |" in tables.summary(Results(runs), ["sglang"])
    assert tables.spread([-1.0, 3.0, 2.0]) == "-1/+2/+3"


POINTS = np.array([(mfu, mbu) for mfu in (0.4, 0.5, 0.6) for mbu in (0.7, 0.8)])


def ratios(*laws: tuple[float, float, float]) -> np.ndarray:
    """Ratios at `POINTS` of figures that go as mfu^a mbu^b and are 1 at (0.47, 0.72), or off by a factor."""
    return np.array(
        [[off * (mfu / 0.47) ** a * (mbu / 0.72) ** b for a, b, off in laws] for mfu, mbu in POINTS]
    )


def test_the_fit_finds_the_constants_of_exact_power_laws() -> None:
    found = nearest(POINTS, [ratios((0.7, 0.1, 1.0), (0.0, 0.9, 1.0)), ratios((0.2, 0.5, 1.0))])
    assert found == pytest.approx([0.47, 0.72])


def test_sources_that_contradict_each_other_meet_half_way_however_many_figures_one_has() -> None:
    few, many = ratios((1.0, 0.0, 1.1), (0.0, 1.0, 1.0)), ratios(*[(1.0, 0.0, 1 / 1.1), (0.0, 1.0, 1.0)] * 5)
    assert nearest(POINTS, [few, many]) == pytest.approx([0.47, 0.72])


def test_a_fit_outside_of_the_grid_is_refused() -> None:
    with pytest.raises(SystemExit, match="outside of the grid"):
        nearest(POINTS, [ratios((1.0, 0.0, 2.0), (0.0, 1.0, 1.0))])


def test_a_run_comes_back_from_its_line(tmp_path: Path) -> None:
    run = {**a_run("fcfs+lru, reordered", 42, 1.25), "e2e": 123.456}
    results.write(tmp_path / "runs.csv", [run])
    assert results.read(tmp_path / "runs.csv") == [{**run, "e2e": 123.46}]
    assert (
        results.missing(
            [run], [plans.Sweep(("w1a:heavy",), (run["policy"],), ("sglang",), (42,))], {"sglang": "1/1"}
        )
        == []
    )
    assert results.missing(
        [run], [plans.Sweep(("w1a:heavy",), (run["policy"],), ("sglang",), (42,))], {"sglang": "2/1"}
    )


def test_every_stream_of_the_plan_has_a_title_of_its_own_and_can_be_built() -> None:
    streams = list(dict.fromkeys(stream for sweep in plans.FULL for stream in sweep.streams))
    named = [title(stream) for stream in streams if plans.parts_of(stream)[2] != "rate"]
    assert len(set(named)) == len(named)
    drawn = [stream for stream in streams if stream.partition(":")[0] in traffic.TRAFFIC]
    for stream in drawn:
        workload = build(stream, 611, "vllm", None)[0]
        assert [r.arrival_s for r in workload.requests] == sorted(r.arrival_s for r in workload.requests)
        watched = traffic.TRAFFIC[workload.name].watched
        assert any(r.request_id.startswith(watched) for r in workload.requests)


def test_the_papers_cells_are_named_by_their_loads() -> None:
    workload = build("w1c:moderate", plans.SEEDS[0], "vllm", None)[0]
    assert loads.load_of(workload, "blocks") == LOADS["w1c:moderate"][1]
    assert title("w1c:moderate") == "W1 C, load 2.6 / 2.9"
    assert {stream for stream in plans.HEADLINE if loads.is_open(stream)} <= LOADS.keys()


def test_every_policy_of_the_plan_is_in_the_listing() -> None:
    assert {policy for sweep in plans.FULL for policy in sweep.policies} <= set(plans.POLICIES)
    assert set(listing.MEANS) <= set(results.FIGURES)
