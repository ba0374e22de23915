"""`peek check`: no gain is named that a flag of the engine beats; all that is said comes from one object."""

from __future__ import annotations

import csv
import json
import os
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.fixtures import Capsys

from peek.cli.main import main
from peek.cli.page import page
from peek.cli.report import change_text, said_of
from peek.simulation.answer import (
    ENGINES,
    FIGURES,
    OURS,
    Answer,
    Change,
    Engine,
    answer,
    busiest,
    changes,
    is_even,
    resampled,
)
from peek.simulation.cost import CostModel
from peek.simulation.simulate import simulate
from peek.simulation.workload import SimRequest, Workload, pack_tokens

LOGS = Path(__file__).resolve().parent / "logs"

UNIT = 16


def traffic(
    seed: int, requests: int, groups: int, head: int, rate: float, answers: int = 64, arena: int = 20_000
) -> Workload:
    """Prompts of shared heads of `head` blocks, as a Poisson process; no groups: nothing is shared."""
    rnd = random.Random(seed)
    at_s, made = 0.0, []
    for number in range(requests):
        group = rnd.randrange(groups) if groups else number
        symbols = [group * 1000 + i for i in range(head)] + [10**6 + 10 * number + i for i in range(4)]
        made.append(
            SimRequest(f"r{number}", at_s, pack_tokens(symbols), UNIT * len(symbols), rnd.randint(1, answers))
        )
        at_s += rnd.expovariate(rate)
    return Workload(
        name="t", load="trace", seed=0, requests=made, warmup=requests // 10, max_running=64,
        arena_tokens=arena, unit_tokens=UNIT,
    )  # fmt: skip


def timed(workload: Workload, gaps: list[float]) -> Workload:
    """The same requests, with these gaps between them."""
    requests = zip(workload.requests, accumulate(gaps, initial=0.0), strict=True)
    return replace(workload, requests=[replace(each, arrival_s=at_s) for each, at_s in requests])


TRACES: dict[str, Workload] = {
    "many groups, small cache": traffic(1, 220, 30, 100, 8.0),
    "few groups": traffic(2, 220, 4, 100, 12.0),
    "two groups that fit": traffic(3, 220, 2, 100, 12.0),
    "nothing shared": traffic(4, 200, 0, 60, 8.0),
    "nobody waits": traffic(5, 150, 10, 60, 0.2),
    "short heads": traffic(6, 300, 40, 6, 60.0),
    "long answers": traffic(7, 200, 20, 60, 6.0, answers=600),
    "nearly idle": traffic(8, 200, 20, 60, 2.0),
    "roomy cache": traffic(9, 220, 30, 100, 8.0, arena=400_000),
    "very busy": traffic(10, 300, 60, 80, 100.0),
}


@cache
def judged(name: str, engine: str, draws: int = 2) -> Answer:
    return answer(TRACES[name], ENGINES[engine], CostModel(), random.Random(7), draws)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TRACES)
def test_no_gain_is_named_that_a_stock_setting_beats(name: str, engine: str) -> None:
    """Against a direct simulation of every stock policy, on the same arrivals and resamples."""
    found = judged(name, engine)
    rng = random.Random(7)
    stock, kind = ENGINES[engine].stock, ENGINES[engine].cache
    for number in range(3):
        drawn = resampled(TRACES[name], rng) if number else TRACES[name]
        direct = {label: simulate(drawn, label, kind, cost=CostModel()) for label in (*stock, OURS)}
        for change in found.gains:
            ours = change.figure.value(direct[OURS])
            for label in stock:
                theirs = change.figure.value(direct[label])
                assert ours > theirs if change.figure.more_is_better else ours < theirs, (label, change)
    assert ("Nothing to gain from `peek`" in said_of(found)) == (found.verdict in ("nothing", "loss"))
    if found.advised != found.default:
        assert f"Turn on `{stock[found.advised]}`" in said_of(found)
        assert found.stock[0].low > 0.0


@pytest.mark.parametrize("name", TRACES)
def test_the_first_setting_that_is_as_good_as_any_is_the_best(name: str) -> None:
    found = judged(name, "sglang")
    means = [mean(runs[label]["ttft_s"]["mean"] for runs in found.draws) for label in found.engine.stock]
    good = [label for label, each in zip(found.engine.stock, means, strict=True) if each <= 1.03 * min(means)]
    assert found.best == good[0]


def test_runs_are_told_as_they_are_done() -> None:
    told: list[int] = []
    answer(TRACES["few groups"], ENGINES["vllm"], CostModel(), random.Random(7), 2, progress=told.append)
    assert told == [1, 2, 3, 4, 5, 6]


def test_the_ten_traces_have_answers_of_each_kind() -> None:
    kinds = {judged(name, engine).verdict for name in TRACES for engine in ENGINES}
    assert kinds >= {"gain", "nothing"}
    assert judged("nobody waits", "sglang", 0).verdict == "nothing"
    assert "hardly a queue" in said_of(judged("nobody waits", "vllm", 0))
    assert judged("many groups, small cache", "vllm").verdict in ("gain", "mixed")
    assert judged("many groups, small cache", "sglang").advised != "fcfs+lru"


def answer_of(engine: Engine, draws: list[dict[str, dict[str, Any]]], best: str) -> Answer:
    stock = list(engine.stock)
    advised, ours = changes(draws, best, stock[:1]), changes(draws, OURS, stock)
    return Answer(engine, TRACES["few groups"], draws, best, advised, ours)


def run_of(ttft: float, hit: float = 0.5) -> dict[str, Any]:
    both = {"mean": ttft, "p99": 2.0 * ttft}
    goodput = [{"ttft_s": target, "tpot_ms": 100.0, "share": 0.5} for target in (2.0, 10.0)]
    waits = {"p99": 5.0, "max": 6.0}
    return {"ttft_s": both, "e2e_s": both, "goodput": goodput, "throughput_rps": 1.0, "cache_hit": hit,
            "queue_wait_s": waits, "ideal_hit": 0.9}  # fmt: skip


@given(st.lists(st.tuples(*[st.floats(0.1, 50.0)] * 3), min_size=1, max_size=6))
def test_a_gain_stands_in_every_draw(times: list[tuple[float, float, float]]) -> None:
    draws = [dict(zip(("a", "b", OURS), map(run_of, each), strict=True)) for each in times]
    (mean, *_) = changes(draws, OURS, ["a", "b"])
    parts = [1.0 - ours / min(one, two) for one, two, ours in times]
    assert mean.gain == pytest.approx(parts[0])
    assert (mean.low, mean.high) == (pytest.approx(min(parts)), pytest.approx(max(parts)))
    assert mean.is_gain == (mean.gain > 0.03 and mean.low > 0.0)
    assert mean.is_loss == (mean.gain < -0.03 and mean.high < 0.0)
    assert mean.against == ("a" if times[0][0] <= times[0][1] else "b")


@pytest.mark.parametrize(
    ("stock", "ours", "verdict", "said"),
    [
        ([9.0, 3.0], 2.0, "gain", "Turn on `--set b`: the mean time to first token falls from 9.00 s to"),
        ([9.0, 3.0], 2.0, "gain", "Under `peek` the mean time to first token falls from 3.00 s under `b` to"),
        ([9.0, 3.0], 2.95, "nothing", "Nothing to gain from `peek`: `--set b` does as well."),
        ([9.0, 3.0], 4.0, "loss", "Nothing to gain from `peek`: the mean is 25 % shorter under `--set b`."),
        ([3.0, 9.0], 4.0, "loss", "the mean is 25 % shorter under It's default."),
        (
            [3.0, 9.0], 4.0, "loss",
            "But under `peek` the p99 time to first token rises from 6.00 s under the default to 8.00 s",
        ),
        ([3.05, 3.0], 3.0, "nothing", "what these requests share does not wait at the same time"),
        ([3.0, 3.0], 3.0, "nothing", "what these requests share does not wait at the same time"),
    ],
)  # fmt: skip
def test_what_is_said(stock: list[float], ours: float, verdict: str, said: str) -> None:
    engine = replace(ENGINES["sglang"], title="It", stock={"a": "", "b": "--set b"})
    runs = {"a": run_of(stock[0]), "b": run_of(stock[1]), OURS: run_of(ours)}
    best = "b" if 1.03 * stock[1] < stock[0] else "a"
    found = answer_of(engine, [runs] * 3, best)
    assert found.verdict == verdict
    assert said in said_of(found)


def test_a_gain_within_the_spread_is_none() -> None:
    engine = replace(ENGINES["vllm"], stock={"a": ""})
    draws = [{"a": run_of(3.0), OURS: run_of(ours)} for ours in (2.0, 3.5)]
    found = answer_of(engine, draws, "a")
    assert found.verdict == "nothing"
    assert "33 % shorter than under vLLM's default, which is within the spread" in said_of(found)


def test_the_one_setting_of_an_engine_is_its_default() -> None:
    engine = replace(ENGINES["vllm"], stock={"a": ""})
    draws = [{"a": run_of(3.0), OURS: run_of(2.0)}] * 3
    found = answer_of(engine, draws, "a")
    assert found.verdict == "gain"
    assert said_of(found).startswith("Under `peek`, beside vLLM's default, the mean time")


def test_what_one_draw_lacks_is_no_change() -> None:
    gain = Change(FIGURES[0], "a", 4.0, 2.0, 0.5, 0.0, 0.6)
    assert not gain.is_gain
    assert replace(gain, low=0.01).is_gain
    loss = Change(FIGURES[0], "a", 2.0, 3.0, -0.5, -0.6, 0.0)
    assert not loss.is_loss
    assert replace(loss, high=-0.01).is_loss


def test_sizes_in_words() -> None:
    def text(name: str, before: float, after: float) -> str:
        figure = next(each for each in FIGURES if each.name == name)
        gain = figure.gain(before, after)
        return change_text(Change(figure, "a", before, after, gain, gain, gain), ranged=True)

    assert text("ttft_s.mean", 9.0, 3.0).endswith("falls from 9.00 s to 3.00 s (x3.0; x3.0 to x3.0)")
    assert text("ttft_s.mean", 3.0, 9.0).endswith("rises from 3.00 s to 9.00 s (x3.0; x3.0 to x3.0)")
    assert text("throughput_rps", 4.0, 5.0).endswith("rises from 4.00 to 5.00 (25 %; 25 to 25 %)")
    figure = FIGURES[0]
    worse = Change(figure, "a", 3.0, 4.0, -1 / 3, -0.5, -0.25)
    assert change_text(worse, ranged=True).endswith("rises from 3.00 s to 4.00 s (33 %; 25 to 50 %)")
    doubled = replace(worse, low=-1.5)
    assert change_text(doubled, ranged=True).endswith("rises from 3.00 s to 4.00 s (x1.3; x1.2 to x2.5)")
    assert text("cache_hit", 0.4, 0.65).endswith("rises from 40.0 % to 65.0 % (+25 to +25 points)")


def test_what_the_advised_flag_costs_is_said() -> None:
    """The flag's p99 is worse than the default's, that of `peek` worse than another's."""
    engine = replace(ENGINES["sglang"], title="It", stock={"a": "", "b": "--set b", "c": "--set c"})
    runs = {"a": run_of(9.0), "b": run_of(3.0), "c": run_of(5.0), OURS: run_of(2.9)}
    for label, p99 in (("a", 18.0), ("b", 30.0), ("c", 10.0), (OURS, 20.0)):
        runs[label]["ttft_s"]["p99"] = p99
    said = said_of(answer_of(engine, [runs] * 3, "b"))
    assert "But the p99 time to first token rises from 18.0 s to 30.0 s (67 %; 67 to 67 %)." in said
    lost = "rises from 10.0 s under `c` to 20.0 s (x2.0; x2.0 to x2.0; `b` has 30.0 s)."
    assert f"But under `peek` the p99 time to first token {lost}" in said


# -- resamples ----------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.0, 9.0), min_size=1, max_size=60), st.integers(0, 99))
def test_a_resample_has_the_same_requests_at_other_gaps(gaps: list[float], seed: int) -> None:
    workload = timed(traffic(0, len(gaps) + 1, 3, 2, 1.0), gaps)
    drawn = resampled(workload, random.Random(seed))
    assert [replace(each, arrival_s=0.0) for each in drawn.requests] == [
        replace(each, arrival_s=0.0) for each in workload.requests
    ]
    assert drawn.requests[0].arrival_s == 0.0
    exact = [later.arrival_s - sooner.arrival_s for sooner, later in pairwise(workload.requests)]
    for sooner, later in pairwise(drawn.requests):
        gap = later.arrival_s - sooner.arrival_s
        assert any(gap == pytest.approx(each, abs=1e-6) for each in exact)


def test_bursts_stay_bursts() -> None:
    """Successive gaps come together, as many as the root of their number."""
    workload = timed(traffic(0, 402, 3, 2, 1.0), [float(i) for i in range(401)])
    drawn = resampled(workload, random.Random(1)).requests
    found = [round(later.arrival_s - sooner.arrival_s) for sooner, later in pairwise(drawn)]
    steps = [(later - sooner) % 401 == 1 for sooner, later in pairwise(found)]
    assert 1 - 22 / 400 <= sum(steps) / len(steps) < 1


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5]), min_size=1, max_size=9), st.integers(0, 99))
def test_where_gaps_are_alike_a_resample_is_the_workload_again(gaps: list[float], seed: int) -> None:
    workload = timed(traffic(0, len(gaps) + 1, 3, 2, 1.0), gaps)
    assert is_even(workload) == (len(set(gaps)) == 1)
    assert not is_even(workload) or resampled(workload, random.Random(seed)) == workload


@given(st.lists(st.floats(0.0, 9.0), max_size=30), st.integers(1, 40))
@example([9.0, 1.0], 2)  # the last two
def test_the_busiest_stretch_is_the_shortest(gaps: list[float], limit: int) -> None:
    workload = timed(traffic(0, len(gaps) + 1, 3, 2, 1.0), gaps)
    times = [each.arrival_s for each in workload.requests]
    kept = busiest(workload, limit).requests
    size = min(limit, len(times))
    assert len(kept) == size
    spans = [times[i + size - 1] - times[i] for i in range(len(times) - size + 1)]
    assert kept[-1].arrival_s - kept[0].arrival_s == pytest.approx(min(spans))
    assert kept[0].arrival_s == 0.0


@pytest.mark.slow
def test_the_range_holds_what_further_arrivals_bring() -> None:
    """Nineteen resamples hold a further one in 9 of 10 cases."""
    inside = total = 0
    for name, workload in list(TRACES.items())[::4]:
        for engine in ENGINES.values():
            labels = [*engine.stock, OURS]
            found = answer(workload, engine, CostModel(), random.Random(len(name)))
            rng = random.Random(99)
            for _ in range(6):
                drawn = resampled(workload, rng)
                runs = {label: simulate(drawn, label, engine.cache, cost=CostModel()) for label in labels}
                for known, fresh in zip(found.ours, changes([runs], OURS, list(engine.stock)), strict=True):
                    inside += known.low - 1e-9 <= fresh.gain <= known.high + 1e-9
                    total += 1
    assert inside / total >= 0.9, inside / total


# -- the command --------------------------------------------------------------------------------------------


def checked(capsys: Capsys, *words: object) -> dict[str, Any]:
    """What the command says as JSON."""
    assert main(["check", *map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SGLang's JSON log of a queue that is long."""
    rnd = random.Random(0)
    path = tmp_path_factory.mktemp("log") / "sglang.log"
    heads = [[rnd.randrange(1000) for _ in range(1600)] for _ in range(20)]
    with path.open("w") as stream:
        stream.write("[2026-11-22 05:40:00] server_args=ServerArgs(schedule_policy='fcfs')\n")
        stream.write("[2026-11-22 05:40:00] max_total_num_tokens=20000, max_running_requests=16\n")
        for number in range(150):
            ids = rnd.choice(heads) + [rnd.randrange(1000) for _ in range(50)]
            asked = {"rid": f"r{number}", "input_ids": ids, "sampling_params": {"max_new_tokens": 16}}
            at = f"2026-11-22T05:40:{number // 20:02d}.{50 * (number % 20) + number % 7:03d}"
            row = {"timestamp": at, "event": "request.received", "rid": f"r{number}", "obj": asked}
            stream.write(f"[{at[:10]} {at[11:19]}] {json.dumps(row)}\n")
            if number == 70:
                stream.write("SECRET of nobody's format\n")
    return path


def test_a_log_is_answered(log: Path, capsys: Capsys) -> None:
    assert main(["check", str(log), "--draws", "3"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    found = checked(capsys, log, "--draws", 3)
    assert found["sentence"] in shown
    for said in (
        "SGLang's log: 152 lines, 150 requests",
        "150 requests, 247,500 tokens of prompts",
        "over 7.45 s, 20.1 requests a second",
        f"{100 * found['log']['shared']:.1f} % of the tokens have come before in the same place",
        "1 line of no known format, first line 74: SECRET of nobody's format",
        "150 as long as allowed",
        "arena of 20,000 tokens, radix cache (SGLang-like engine)",
    ):
        assert said in shown
    assert (found["engine"], found["arena_tokens"], found["max_running"]) == ("SGLang", 20_000, 16)
    assert [run["policy"] for run in found["runs"]] == [*ENGINES["sglang"].stock, OURS]
    assert found["draws"] == 3
    assert {each["figure"] for each in found["changes"]} == {figure.name for figure in FIGURES}
    for run in found["runs"]:
        low, high = run["spread"]["ttft_s.mean"]
        assert low <= run["ttft_s"]["mean"] <= high
    best = min(run["ttft_s"]["mean"] for run in found["runs"] if run["policy"] != OURS)
    assert found["changes"][0]["before"] == best
    assert found["changes"][0]["after"] == found["runs"][-1]["ttft_s"]["mean"]


class Seen(HTMLParser):
    """Tags in order, and whether they are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "rect", "line"):
            self.open.append(tag)
        self.links += [name for name, _ in attrs if name in ("src", "href", "onclick")]
        assert tag not in ("script", "link", "img", "iframe")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_one_file_without_a_prompt(log: Path, tmp_path: Path, capsys: Capsys) -> None:
    target = tmp_path / "page.html"
    found = checked(capsys, log, "--draws", 2, "--html", target)
    text = target.read_text()
    seen = Seen()
    seen.feed(text)
    assert seen.open == []
    assert seen.links == []
    assert "http" not in text
    assert "url(" not in text
    assert "SECRET" not in text
    assert found["sentence"].replace("`", "") in " ".join(seen.text.split())
    for run in found["runs"]:
        assert run["policy"].removesuffix("+lru") in seen.text
    assert text.count("<svg") == 3
    assert text.count("<rect") == 3 * len(found["runs"])
    for panel in text.split("<svg")[1:]:
        rows = [int(y) for y in re.findall(r'<rect x="\d+" y="(\d+)"', panel)]
        assert rows == list(range(34, 34 + 30 * len(rows), 30)), "one bar below the other"


def test_names_on_the_page_are_escaped(log: Path, capsys: Capsys) -> None:
    found = checked(capsys, log, "--draws", 0)
    made = page({**found, "log": {**found["log"], "files": ["<script>x"]}, "notes": ["<b>"]})
    seen = Seen()
    seen.feed(made)
    assert "<script>x" in seen.text
    assert "<line" not in made, "no range without resamples"


def test_several_logs_are_one(log: Path, tmp_path: Path, capsys: Capsys) -> None:
    lines = log.read_text().splitlines(keepends=True)
    parts = [tmp_path / "a.log", tmp_path / "b.log"]
    for path, part in zip(parts, (lines[:60], lines[60:]), strict=True):
        path.write_text("".join(part))
    one, two = checked(capsys, log, "--draws", 1), checked(capsys, *parts, "--draws", 1)
    assert one["changes"] == two["changes"]
    assert one["log"]["formats"] == two["log"]["formats"]


def test_the_busiest_requests_are_simulated(log: Path, capsys: Capsys) -> None:
    found = checked(capsys, log, "--draws", 0, "--limit", 40, "--engine", "vllm")
    assert found["simulated"] == 40
    assert found["log"]["requests"] == 150
    assert found["engine"] == "vLLM"
    assert [run["policy"] for run in found["runs"]] == ["fcfs+lru", "peek"]
    assert busiest(TRACES["few groups"], 40).warmup == 4


@pytest.mark.parametrize(
    ("given", "assumed"),
    [
        ([], "one H100 (--card), qwen2.5-32b (--model)"),
        (["--cards", 2], "2 H100 (--card), qwen2.5-32b (--model)"),
        (["--card", "h100", "--model", "qwen2.5-32b"], ""),
    ],
)
def test_only_what_nobody_told_is_assumed(
    log: Path, capsys: Capsys, given: list[object], assumed: str
) -> None:
    assert checked(capsys, log, "--draws", 0, *given)["assumed"] == assumed


@pytest.mark.parametrize("level", ["body", "json", "text"])
def test_priorities_are_seen_and_said_not_to_be_heeded(level: str, tmp_path: Path, capsys: Capsys) -> None:
    if level == "body":
        lines = [json.dumps({"ts": n, "prompt": [1, 2, n], "priority": n % 2}) for n in range(4)]
    else:
        name = f"sglang-0.5.23-{level}-level3.log"
        lines = (LOGS / name).read_text().replace("priority=None", "priority=-1").splitlines()
        lines = [each.replace('"priority": null', '"priority": -1') for each in lines]
    (tmp_path / "some.log").write_text("\n".join(lines) + "\n")
    found = checked(capsys, tmp_path / "some.log", "--draws", 0)
    asked = 2 if level == "body" else found["log"]["requests"]
    said = f"priorities, which the model does not heed, on {asked} requests; "
    assert any(note.startswith(said) for note in found["notes"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vllm-0.32.0-info.log", "VLLM_LOGGING_LEVEL=DEBUG"),
        ("sglang-0.5.23-text-level0.log", "--log-requests-level 3"),
    ],
)
def test_a_log_without_prompts_is_refused_with_a_hint(name: str, said: str, capsys: Capsys) -> None:
    assert main(["check", str(LOGS / name)]) == 1
    err = capsys.readouterr().err
    assert f"{name}: holds no request that is understood" in err
    assert said in err


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([0, 4000, 9000], "read as ms: as seconds one request would come in 4,500 s"),
        ([0.0, 0.0001, 0.0002], "more than a thousand requests a second: is the unit of times right"),
    ],
)
def test_implausible_times_are_questioned(
    tmp_path: Path, capsys: Capsys, times: list[float], said: str
) -> None:
    rows = [json.dumps({"ts": at, "prompt": [1, 2, 3]}) + "\n" for at in times]
    (tmp_path / "in.jsonl").write_text("".join(rows))
    assert main(["check", str(tmp_path / "in.jsonl"), "--draws", "0"]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


def test_lengths_without_prompts_are_said_to_be_that(tmp_path: Path, capsys: Capsys) -> None:
    rows = "".join(f"2023-11-16 18:15:{10 + i}.5,374,44\n" for i in range(40))
    (tmp_path / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    assert main(["check", str(tmp_path / "azure.csv"), "--draws", "0"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "lengths without prompts, taken as sharing nothing: 40 requests" in shown


# -- logs as they are ---------------------------------------------------------------------------------------


START = 1_795_326_000


def asked(number: int, **fields: Any) -> dict[str, Any]:
    """A request of some 500 tokens, four a second; half of it shared."""
    prompt = [*range(256), *range(1000 * number, 1000 * number + 244)]
    return {"timestamp": START + number / 4, "prompt": prompt, "completion_tokens": 50, **fields}


def written(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_requests_longer_than_the_cache_are_left_out_and_counted(tmp_path: Path, capsys: Capsys) -> None:
    rows = [asked(number) for number in range(120)]
    rows[7]["prompt"] = list(range(3000))
    path = written(tmp_path / "log.jsonl", rows)
    found = checked(capsys, path, "--draws", 0, "--arena-tokens", 2000)
    assert found["simulated"] == 119
    assert any(
        note.startswith("1 request longer than the 2,000 tokens of KV cache") for note in found["notes"]
    )
    assert main(["check", str(path), "--arena-tokens", "500"]) == 1
    assert "no request fits into 500 tokens of KV cache (--arena-tokens, or a larger --card" in (
        capsys.readouterr().err
    )


def test_a_row_without_a_time_or_of_an_absurd_length_costs_itself_only(
    tmp_path: Path, capsys: Capsys
) -> None:
    rows = [asked(number) for number in range(120)]
    del rows[3]["timestamp"]
    rows[5]["completion_tokens"] = 10**9
    rows[6]["max_tokens"] = 2**40
    found = checked(capsys, written(tmp_path / "log.jsonl", rows), "--draws", 0)
    assert found["simulated"] == found["log"]["requests"] == 119
    assert found["log"]["answers"] == {"told": 118, "allowed": 0, "unknown": 1}
    assert "requests without a time, left out: 1" in found["notes"]


@pytest.mark.parametrize("tell", [str, float, lambda tokens: f"{tokens}.0"])
def test_lengths_of_answers_may_be_text_or_floats(tell: Any, tmp_path: Path, capsys: Capsys) -> None:
    rows = [asked(number) for number in range(120)]
    told = [{**row, "completion_tokens": tell(row["completion_tokens"])} for row in rows]
    plain = checked(capsys, written(tmp_path / "log.jsonl", rows), "--draws", 0)
    assert plain["log"]["answers"]["told"] == 120
    assert checked(capsys, written(tmp_path / "log.jsonl", told), "--draws", 0)["runs"] == plain["runs"]
    table = tmp_path / "log.csv"
    with table.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["timestamp", "prompt", "n"])
        writer.writerows([row["timestamp"], row["prompt"], row["completion_tokens"]] for row in told)
    assert checked(capsys, table, "--draws", 0, "--output-field", "n")["runs"] == plain["runs"]


def test_a_field_of_answers_that_no_request_has_is_an_error(tmp_path: Path, capsys: Capsys) -> None:
    path = written(tmp_path / "log.jsonl", [asked(number) for number in range(3)])
    assert main(["check", str(path), "--output-field", "completion_tokns"]) == 1
    assert f"{path}: no request has 'completion_tokns' (--output-field)" in capsys.readouterr().err


def test_what_makes_an_answer_doubtful_is_said(tmp_path: Path, capsys: Capsys) -> None:
    usage = {"prompt_tokens": 500, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 0}}
    rows = [asked(number, timestamp=START + number / 200, usage=usage) for number in range(150)]
    for row in rows:
        del row["completion_tokens"]
    path = written(tmp_path / "a.b.jsonl", rows)
    found = checked(capsys, path, "--draws", 0, "--card", "h100", "--model", "qwen2.5-32b")
    assert any(note.startswith("the model serves ") for note in found["notes"])
    assert any(note.endswith("of the tokens cached, the log says 0 %") for note in found["notes"])
    few = [{**row, "usage": None} for row in rows[:20]]
    found = checked(capsys, written(path, few), "--draws", 0)
    assert "20 requests: too few for more than a hint" in found["notes"]
    assert "the lengths of 20 answers are limits or guesses (--output-field)" in found["notes"]
    assert main(["check", str(path), "--draws", "0"]) == 0
    assert "trace a.b:" in capsys.readouterr().out


@pytest.mark.parametrize("spaced", [["--rate", 30], []])
def test_a_range_is_claimed_only_where_resamples_differ(
    spaced: list[object], tmp_path: Path, capsys: Capsys
) -> None:
    """At a given rate, or all in one second, each resample would be the log again."""
    path = written(tmp_path / "log.jsonl", [asked(number, timestamp=START) for number in range(150)])
    found = checked(capsys, path, "--draws", 2, *spaced)
    assert found["draws"] == 0
    assert any(note.endswith("there are no ranges") for note in found["notes"])
    assert "Ranges are over" not in found["sentence"]


def test_the_page_says_what_part_was_simulated_and_how_fast(tmp_path: Path, capsys: Capsys) -> None:
    path = written(tmp_path / "log.jsonl", [asked(number) for number in range(150)])
    target = tmp_path / "page.html"
    found = checked(capsys, path, "--draws", 0, "--rate-scale", 2, "--limit", 100, "--html", target)
    said = (
        "simulated: the busiest 100 of them, 2 times as fast as recorded, over 12.4 s, 8.08 requests a second"
    )
    assert found["summary"][-1].startswith(said)
    assert found["rate_scale"] == 2.0
    assert said in target.read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_no_answer_stands_above_the_error_of_a_page(tmp_path: Path, capsys: Capsys) -> None:
    path = written(tmp_path / "log.jsonl", [asked(number) for number in range(3)])
    assert main(["check", str(path), "--draws", "0", "--html", "/dev/full"]) == 1
    assert capsys.readouterr() == ("", "peek: /dev/full: No space left on device\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere: run as another user")
def test_a_folder_that_takes_no_page_is_refused_before_the_work(tmp_path: Path, capsys: Capsys) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    path = written(tmp_path / "log.jsonl", [asked(0)])
    assert main(["check", str(path), "--html", str(folder / "a.html")]) == 1
    assert f"{folder / 'a.html'}: no file can be written into {folder}" in capsys.readouterr().err
