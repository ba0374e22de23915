"""The comparison on real servers: its arithmetic, commands and traffic.  The engines' suites run it."""

from __future__ import annotations

import csv
import itertools
import json
import os
import random
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pages import ROOT, launches

sys.path.append(str(ROOT))  # behind everything: `peek` stays the one that is tested

from bench.servers import table
from bench.servers.cells import CELLS, CHUNK, SESSIONS, TURNS, write_sessions
from bench.servers.engines import ENGINES, client, server
from bench.servers.matrix import COLUMNS, FEATURES, requests, up_to
from bench.servers.processes import Failed, Server, counted, free_port, seconds_of
from bench.servers.run import arms_of, in_turn, line, options
from bench.servers.shapes import SHAPES, configuration, tensors, tokenizer, write_model

PYTHON, MODEL = Path("env/bin/python"), Path("model")


def a_run(arm: str, turn: int, cell: str = "burst", **more: Any) -> table.Run:
    run: table.Run = dict.fromkeys(table.RATIOS, 10.0)
    run |= {"engine": "vllm", "version": "1", "peek": "0+a", "backend": "compiled", "device": "2 CPU cores"}
    run |= {
        "shape": "small",
        "manner": "in turns",
        "cell": cell,
        "arm": arm,
        "round": turn,
        "rate": None,
        "wall_s": 1.0,
    }
    run |= {"finished": 2, "failed": 0, "fallbacks": 0, "cached": 25, "prompts": 100, "answers": ["a", "b"]}
    return run | more


# -- the table ----------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=7),
    st.randoms(),
)
def test_each_round_of_peek_stands_against_the_same_round_of_each_other_arm(
    rounds: list[tuple[float, float, float]], shuffled: random.Random
) -> None:
    arms = ("fcfs", "lpm", "peek")
    runs = [
        a_run(arm, turn, ttft=ttft)
        for turn, times in enumerate(rounds)
        for arm, ttft in zip(arms, times, strict=True)
    ]
    shuffled.shuffle(runs)
    found = table.table(table.rows_of(runs), ["ttft"]).splitlines()[2:]
    for place, other in enumerate(arms[:2]):
        ratios = [times[2] / times[place] for times in rounds]
        said = f"{min(ratios):.2f}-{median(ratios):.2f}-{max(ratios):.2f}"
        assert f"| vLLM burst, `{other}` | {said} | 25→25 |" in found
    assert len(found) == 2


def test_a_round_that_lacks_an_arm_is_no_pair() -> None:
    runs = [a_run("fcfs", 0), a_run("peek", 0, ttft=5.0), a_run("peek", 1, ttft=1.0), a_run("fcfs", 2)]
    assert "| 0.50-0.50-0.50 |" in table.table(table.rows_of(runs), ["ttft"])


def test_the_rounds_of_a_second_measurement_are_rounds_of_their_own() -> None:
    """Both begin with round 0; a pair is of one round of one measurement."""
    first = [a_run("fcfs", 0, ttft=10.0), a_run("peek", 0, ttft=5.0)]
    second = [a_run("peek", 0, ttft=40.0), a_run("fcfs", 0, ttft=20.0)]
    assert "| 0.50-1.25-2.00 |" in table.table(table.rows_of(first, second), ["ttft"])


def test_where_a_second_measurement_says_something_else() -> None:
    """Of 0.5 and 0.6, then 0.55, either median is in the other's range; of 2 and 3 it is not."""
    first, second = (
        [
            a_run(arm, turn, cell, ttft=ours if arm == "peek" else 10.0)
            for cell, of in times.items()
            for turn, ours in enumerate(of)
            for arm in ("fcfs", "peek")
        ]
        for times in (
            {"burst": [5.0, 6.0], "below": [5.0, 6.0], "window": [5.0]},
            {"burst": [5.5], "below": [20.0, 30.0]},
        )
    )
    said = table.agreement(table.rows_of(first, second), ["ttft"])
    assert said == "1 of 2 figures, and not in all of vLLM below against `fcfs`"
    assert table.agreement(table.rows_of(first), ["ttft"]) == "0 of 0 figures"


def test_the_page_of_policies_has_the_table_of_other_orders_on_real_servers() -> None:
    page = (ROOT / "docs/policies.md").read_text()
    rows = table.read(ROOT / "docs/data/servers_orders.csv")
    assert table.table(rows, ["ttft", "ttft_p99", "e2e", "cpu_s"]) in page
    assert all(row["failed"] == row["fallbacks"] == 0 and row["same"] == row["finished"] for row in rows)


def test_answers_are_compared_with_another_arm_of_the_round() -> None:
    runs = [a_run("peek", 0, answers=["a", "x"]), a_run("fcfs", 0), a_run("peek", 1), a_run("fcfs", 1)]
    rows = table.rows_of(runs)
    assert [row["same"] for row in rows] == [1, 2, 2, 2]
    said = table.said(rows)
    assert "2 CPU cores, arms in turns; 6.3 M parameters, a pool of 8,192 tokens, 16 at once; 2 pairs" in said
    assert "Of 4 answers 3 are those" in said


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = table.rows_of([a_run("fcfs", 0), a_run("peek", 0, rate=2.5, cached=70)])
    table.write(tmp_path / "rows.csv", rows)
    assert table.read(tmp_path / "rows.csv") == rows
    assert "| 25→70 |" in table.table(table.read(tmp_path / "rows.csv"))


def test_what_the_clients_call_a_figure_is_found_by_either_name() -> None:
    common = {"completed": 3, "mean_ttft_ms": 1.0, "median_ttft_ms": 2.0, "p99_ttft_ms": 3.0, "duration": 5.0}
    common |= {"request_throughput": 4.0, "errors": ["", "refused", ""], "generated_texts": ["a", "", "b"]}
    for name in ("mean_e2el_ms", "mean_e2e_latency_ms"):
        found = table.figures_of({**common, name: 6.0})
        assert (found["e2e"], found["failed"], found["answers"]) == (6.0, 1, ["a", "", "b"])


# -- commands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_server_is_the_readmes(name: str, shape: Any) -> None:
    """Each word of it, sizes aside; and the stock arm is the same without `peek`."""
    (shown,) = (launch for launch in launches(name) if launch.where.startswith("README.md"))
    engine = ENGINES[name]
    arm = engine.arms[-1]
    command = server(name, arm, PYTHON, MODEL, shape, 1)
    assert dict(arm.environ) == shown.environ
    assert shlex.join(shown.flags) in shlex.join(command) or set(shown.flags) <= set(command)
    assert shown.program.split()[-1] in (*command[:4], "vllm", "sglang.launch_server")
    stock = server(name, engine.arms[0], PYTHON, MODEL, shape, 1)
    assert not any("peek" in word for word in stock)
    assert engine.arms[0].environ == ()
    assert set(stock) <= set(command)


@given(st.lists(st.text(), unique=True, min_size=1, max_size=5))
def test_every_arm_has_every_turn_equally_often(arms: list[str]) -> None:
    rounds = [in_turn(arms, turn) for turn in range(3 * len(arms))]
    assert all(sorted(turn) == sorted(arms) for turn in rounds)
    for place in range(len(arms)):
        assert set(Counter(turn[place] for turn in rounds).values()) == {3}


def test_options() -> None:
    chosen = options(["--python", "vllm=a=b", "--quick"])
    assert (chosen.python, chosen.pairs, chosen.cell) == ({"vllm": "a=b"}, 2, ["burst", "random"])
    assert options(["--quick", "--cell", "below"]).cell == ["below"]


def test_arms_are_the_usual_ones_or_those_that_were_asked_for() -> None:
    engine = ENGINES["sglang"]
    assert [arm.name for arm in arms_of(engine, None)] == ["fcfs", "lpm", "peek"]
    assert [arm.name for arm in arms_of(engine, ["peek", "hrrn"])] == ["hrrn", "peek"]


def test_an_engine_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(["--python", "tgi=x"])
    assert "--python names 'tgi', which is none of vllm, sglang" in capsys.readouterr().err


def test_a_run_is_said_in_a_line() -> None:
    said = line(a_run("peek", 3))
    assert said == "vllm burst 3 peek: TTFT 10 ms, p99 10 ms, 10.00 requests/s, CPU 10.0 s, cached 25 %"


# -- traffic and models -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_is_sent_fits(shape: Any) -> None:
    for name, cells in CELLS.items():
        for cell in cells:
            words = client(name, cell, shape, 1, 0, MODEL, Path("trace"), cell.load or None)
            given = dict(itertools.pairwise(words))
            lengths = [int(given[word]) for word in given if word.endswith(("-len",))]
            assert sum(lengths) * (4 if cell.name == "turns" else 1) < shape.context
            assert (given["--request-rate"] == "inf") == (not cell.load)
            assert ("--dataset-path" in given) == cell.replays


@given(st.floats(0.1, 50), st.integers(0, 99))
def test_a_turn_begins_with_the_one_before(tmp_path_factory: Any, rate: float, seed: int) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    write_sessions(path, SHAPES["small"], rate, seed)
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    assert len(rows) == SESSIONS * TURNS
    assert [row["timestamp"] for row in rows] == sorted(row["timestamp"] for row in rows)
    assert all(row["input_length"] == CHUNK * len(row["hash_ids"]) for row in rows)
    turns: dict[int, list[list[int]]] = {}
    for row in rows:
        turns.setdefault(row["hash_ids"][-1] // 1_000, []).append(row["hash_ids"])
    assert len(turns) == SESSIONS
    for blocks in turns.values():
        assert len(blocks) == TURNS
        assert all(later[: len(one)] == one != later for one, later in itertools.pairwise(blocks))


def test_the_weights_are_those_of_the_configuration(tmp_path: Path) -> None:
    shape = SHAPES["small"]
    write_model(tmp_path, shape)
    assert json.loads((tmp_path / "config.json").read_text()) == configuration(shape)
    data = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = {name: told for name, told in json.loads(data[8 : 8 + length]).items() if name != "__metadata__"}
    assert {name: tuple(told["shape"]) for name, told in header.items()} == tensors(shape)
    ends = [told["data_offsets"] for told in header.values()]
    assert [begin for begin, _ in ends] == [0, *(end for _, end in ends[:-1])]
    assert 8 + length + ends[-1][1] == len(data)


def test_the_tokenizer_gives_a_text_its_tokens_again() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer.from_str(json.dumps(tokenizer(64)))
    ids = [*range(3, 64), 5, 5]
    text = " ".join(words.id_to_token(token) for token in ids)
    assert words.encode(text, add_special_tokens=False).ids == ids


# -- processes ----------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the servers run on Linux")
def test_a_process_is_of_its_session() -> None:
    sleeper = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", sleeper], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        session, used_s = seconds_of(Path(f"/proc/{child.pid}/stat").read_text())
        child.communicate()
    assert session == child.pid != os.getsid(0)
    assert used_s >= 0.0
    assert seconds_of("7 (a) b (c) R 1 2 33 " + "0 " * 7 + "150 50 9") == (33, 200 / os.sysconf("SC_CLK_TCK"))


def test_a_metric_is_not_one_whose_name_is_longer() -> None:
    page = '# TYPE a_total counter\na_total{x="1"} 2.0\na_total{x="2"} 3.5\na_total_created 9\nb 1\n'
    assert counted(page, "a_total") == 5.5
    assert counted(page, "c") == 0.0


def test_a_server_that_ends_is_named_with_its_log(tmp_path: Path) -> None:
    started = Server([sys.executable, "-c", "print('no such model')"], tmp_path, {}, free_port(), "/reset")
    with pytest.raises(Failed, match=r"server\.log: the server does not answer:\nno such model"):
        started.wait()
    started.close()


REFUSING = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
left = 3
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        global left
        left -= self.path == "/metrics"
        self.send_response(500 if self.path == "/metrics" and left >= 0 else 200)
        self.end_headers()
        self.wfile.write(b"a_total 2.0\\n")
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_metrics_are_asked_for_again_while_the_server_cannot_read_its_own_files(tmp_path: Path) -> None:
    port = free_port()
    started = Server([sys.executable, "-c", REFUSING, str(port)], tmp_path, {}, port, "/reset")
    try:
        started.wait()
        assert started.metrics("a_total") == [2.0]
        assert (tmp_path / "server.log").read_text().count('"GET /metrics HTTP/1.1" 500') == 3
    finally:
        started.close()


def test_a_port_is_none_that_the_kernel_gives_out() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 40
    assert all(1024 <= port < first for port in ports)


# -- features -----------------------------------------------------------------------------------------


def test_the_table_of_features_is_whole_and_says_what_the_pages_say() -> None:
    """docs/vllm.md and docs/sglang.md: which run, all answers alike, which predictions are right."""
    with (ROOT / "docs/data/engine_features.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert tuple(rows[0]) == COLUMNS
    named = [(engine, feature.name) for engine, features in FEATURES.items() for feature in features]
    assert [(row["engine"], row["feature"]) for row in rows] == named
    for engine, ran, right in (("vllm", 13, "480 of 480"), ("sglang", 13, "576 of 576")):
        mine = [row for row in rows if row["engine"] == engine and row["answers alike"]]
        assert [row["answers alike"] for row in mine] == ["48 of 48"] * ran
        assert {row["fallbacks"] for row in mine} == {"0"}
        pairs = [
            list(map(int, row["predictions right"].split(" of ")))
            for row in mine
            if "Connector" not in row["feature"]
        ]
        assert " of ".join(str(sum(column)) for column in zip(*pairs, strict=True)) == right


@pytest.mark.parametrize("feature", [*FEATURES["vllm"], *FEATURES["sglang"]], ids=lambda each: each.name)
def test_both_servers_of_a_row_get_the_same_requests(feature: Any) -> None:
    sent = requests(feature)
    assert sent == requests(feature)
    assert len(sent) == 48
    prompts = [each.get("prompt") or each["input"] for each in sent]
    assert len({tuple(each[:256]) for each in prompts}) == 6
    assert len({tuple(each) for each in prompts}) == 48


def test_a_bucket_is_counted_over_all_labels() -> None:
    page = 'a_bucket{le="0.0",x="1"} 3.0\na_bucket{le="0.0",x="2"} 2.0\na_bucket{le="+Inf",x="1"} 9.0\n'
    assert up_to(page, "a", "0.0") == 5.0
    assert up_to(page, "b", "0.0") == 0.0
