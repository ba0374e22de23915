"""Cells, traces and the ideal hit ratio, against literals, independent draws and a naive twin."""

from __future__ import annotations

import gzip
import json
import lzma
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek.errors import InvalidConfig, WorkloadError
from peek.simulation import cells
from peek.simulation.cells import CELL_NAMES, LOADS, cell, draw_groups
from peek.simulation.trace import at_rate, iter_rows, read_mooncake
from peek.simulation.workload import (
    VOCABULARY,
    SimRequest,
    Workload,
    ideal_hit,
    pack_tokens,
    shared_symbols,
)
from peek.testing.twins import common_length

CONVERSATION = Path(__file__).resolve().parents[2] / "shared/data/mooncake/conversation_trace.jsonl.gz"
WITHOUT_TRACE = [name for name in CELL_NAMES if not name.startswith("w4")]
SEEDS = (42, 142, 242)


def tokens(request: SimRequest) -> list[int]:
    return np.frombuffer(request.key, dtype="<i4").tolist()


def naive_ideal_hit(workload: Workload, include_warmup: bool) -> float:
    """The definition, O(N^2): every request against every earlier one."""
    hit = total = 0
    for position, request in enumerate(workload.requests):
        if position < workload.warmup and not include_warmup:
            continue
        earlier = [r for r in workload.requests[:position] if r.namespace == request.namespace]
        held = [tokens(r) + np.frombuffer(r.answer, dtype="<i4").tolist() for r in earlier]
        symbols = max((common_length(each, tokens(request)) for each in held), default=0)
        hit += min(symbols * workload.unit_tokens, request.num_tokens - 1)
        total += request.num_tokens
    return hit / total if total else 0.0


def group_name(request: SimRequest) -> int:
    """Fourth token: the first one after the template, which stands for the group."""
    return int(np.frombuffer(request.key, dtype="<i4", count=4)[3])


# -- the shared-prefix cells -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_draws_come_in_the_stated_order(seed: int) -> None:
    rng = Random(seed)
    order = list(range(100))
    rng.shuffle(order)
    cumulative = list(accumulate(1 / (rank + 1) for rank in range(100)))
    groups = [order[bisect_right(cumulative, rng.random() * cumulative[-1])] for _ in range(1000)]
    requests = cell("w1c", "heavy", seed).requests
    assert [group_name(r) - 1000 for r in requests] == groups
    arrival, asked = 0.0, {}
    for request, group in zip(requests, groups, strict=True):
        question = rng.randrange(8)
        arrival += rng.expovariate(8)
        assert request.arrival_s == arrival
        assert asked.setdefault((group, question), request.key) == request.key
    assert len(set(asked.values())) == len(asked)  # other questions, other prompts


def test_first_draws_of_seed_42_stay_as_they_are() -> None:
    first = cell("w1c").requests[:4]
    assert [group_name(r) - 1000 for r in first] == [41, 53, 2, 91]
    assert [round(r.arrival_s, 6) for r in first] == [0.075577, 0.088633, 0.328122, 0.398402]
    assert [r.num_tokens for r in first] == [4136, 4121, 4124, 4127]


@pytest.mark.parametrize(
    ("name", "engine", "groups", "prefix", "count", "warmup", "caps", "rates"),
    [
        ("w1a", "sglang", 100, 1024, 1000, 200, (256, 256), (40, 60)),
        ("w1a", "vllm", 100, 1024, 1000, 200, (100, 210), (20, 30)),
        ("w1b", "sglang", 200, 1024, 2000, 400, (256, 256), (35, 80)),
        ("w1b", "vllm", 200, 1024, 2000, 400, (100, 210), (20, 30)),
        ("w1c", "sglang", 100, 4096, 1000, 200, (256, 256), (4, 8)),
        ("w1c", "vllm", 100, 4096, 1000, 200, (100, 210), (5, 10)),
        ("w1d", "sglang", 200, 4096, 2000, 400, (256, 256), (12, 24)),
        ("w1d", "vllm", 200, 4096, 2000, 400, (100, 210), (8, 15)),
        ("w2b", "sglang", 40, 8192, 1000, 100, (256, 256), (0.40, 0.45)),
        ("w2b", "vllm", 40, 8192, 500, 100, (256, 256), (0.15, 0.20)),
        *[("w3b", engine, 14, 4096, 500, 100, (180, 180), (0, 0)) for engine in ("sglang", "vllm")],
        *[("w3c", engine, 88, 1500, 1000, 200, (180, 180), (0, 0)) for engine in ("sglang", "vllm")],
    ],
)
def test_sizes_caps_and_rates(
    name: str, engine: str, groups: int, prefix: int, count: int, warmup: int, caps: tuple[int, int],
    rates: tuple[float, float],
) -> None:  # fmt: skip
    shortest, longest = (8, 14) if name in ("w2b", "w3b") else (10, 93)
    for load, cap, rate in zip(LOADS, caps, rates, strict=True):
        built = cell(name, load, 42, engine)
        assert (built.name, built.load, built.seed, built.unit_tokens) == (name, load, 42, 1)
        assert (len(built.requests), built.warmup, built.max_running) == (count, warmup, cap)
        assert len({r.request_id for r in built.requests}) == count
        assert 0.7 * groups < len({group_name(r) for r in built.requests}) <= groups
        assert cells._SHARED_PREFIX[name].groups == groups
        fixed = 3 + prefix + 5 + 5
        assert all(fixed + shortest <= r.num_tokens <= fixed + longest for r in built.requests)
        assert all(len(r.key) == 4 * r.num_tokens for r in built.requests)
        span = built.requests[-1].arrival_s
        assert span == pytest.approx(count / rate, rel=0.15) if rate else span == 0.0
        limits = (built.client_concurrency, built.arena_tokens)
        assert limits == ((None, 50_000) if rate else (cap, 28_000))


@pytest.mark.parametrize("name", ["w1a", "w1c", "w2b", "w3b", "w3c"])
def test_prompt_layout(name: str) -> None:
    prefix = {"w1a": 1024, "w1c": 4096, "w2b": 8192, "w3b": 4096, "w3c": 1500}[name]
    prompts = {r.key: tokens(r) for r in cell(name).requests}
    template = {tuple(p[:3]) for p in prompts.values()}
    before = {tuple(p[3 + prefix : 8 + prefix]) for p in prompts.values()}
    after = {tuple(p[-5:]) for p in prompts.values()}
    assert (len(template), len(before), len(after)) == (1, 1, 1)
    by_group: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for prompt in prompts.values():
        by_group.setdefault(tuple(prompt[3 : 3 + prefix]), set()).add(tuple(prompt[8 + prefix : -5]))
    assert len(by_group) == len({p[3] for p in prompts.values()})
    limit = 10 if name in ("w2b", "w3b") else 8
    assert max(len(questions) for questions in by_group.values()) == limit
    if limit == 10:  # ten fixed questions, the same for all groups
        assert len(set().union(*by_group.values())) == 10
    else:
        assert 18 < np.mean([len(q) for questions in by_group.values() for q in questions]) < 26


def test_question_lengths_have_the_stated_range_and_mean() -> None:
    lengths = [r.num_tokens - 1024 - 13 for r in {r.key: r for r in cell("w1b").requests}.values()]
    assert (min(lengths), max(lengths)) == (10, 93)
    assert np.mean(lengths) == pytest.approx(22, abs=2)
    assert np.median(lengths) < 18  # skewed


def test_questions_of_w2_have_every_length_of_their_range() -> None:
    sizes = {r.num_tokens for r in cell("w2b").requests}
    assert sorted(size - min(sizes) + 8 for size in sizes) == list(range(8, 15))


@pytest.mark.parametrize(
    ("name", "mix"),
    [
        ("w2b", {128: 4, 512: 10, 1024: 12, 2048: 10, 4096: 4}),
        ("w3b", {128: 1, 512: 4, 1024: 4, 2048: 4, 4096: 1}),
    ],
)
def test_decode_mix_is_fixed_per_group(name: str, mix: dict[int, int]) -> None:
    outputs = {(group_name(r), r.output_tokens) for seed in SEEDS for r in cell(name, seed=seed).requests}
    assert Counter(output for _, output in outputs) == mix


def test_other_cells_decode_128() -> None:
    for name in ("w1a", "w1b", "w1c", "w1d", "w3c"):
        assert {r.output_tokens for r in cell(name).requests} == {128}


# -- every cell ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITHOUT_TRACE)
def test_same_arguments_same_workload_sorted_and_in_the_vocabulary(name: str) -> None:
    once = cell(name, "moderate", 142, "vllm")
    assert once == cell(name, "moderate", 142, "vllm")
    assert once.requests != cell(name, "moderate", 42, "vllm").requests
    requests = cell(name).requests
    arrivals = [r.arrival_s for r in requests]
    assert arrivals == sorted(arrivals)
    for request in requests[:100]:
        ids = np.frombuffer(request.key, dtype="<i4")
        assert ids.min() >= 0
        assert ids.max() < VOCABULARY == 150_000
        assert (request.after, request.think_s, request.namespace) == (None, 0.0, "")


@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        ({"name": "w9"}, ("'w9'", *CELL_NAMES)),
        ({"name": "w1c", "load": "light"}, ("'light'", "moderate", "heavy")),
        ({"name": "w1c", "engine": "trt"}, ("'trt'", "sglang", "vllm")),
        ({"name": "w4", "client": "trt", "trace": "x"}, ("'trt'", "sglang", "vllm")),
        ({"name": "w1c", "seed": 1.5}, ("seed", "1.5")),
        ({"name": "w4"}, ("w4", "Mooncake conversation trace", "--trace-file")),
        ({"name": "w4-shared"}, ("w4-shared", "Mooncake conversation trace", "--trace-file")),
        ({"name": "w4", "trace": "no/such/file.jsonl"}, ("no/such/file.jsonl", "no such file")),
    ],
)
def test_bad_arguments_name_the_value_and_the_choices(
    arguments: dict[str, Any], mentioned: tuple[str, ...]
) -> None:
    with pytest.raises((InvalidConfig, WorkloadError)) as caught:
        cell(**arguments)
    assert all(word in str(caught.value) for word in mentioned)
    assert "\n" not in str(caught.value)


# -- W5 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "low", "high", "rates"), [("w5-long", 512, 4096, (15, 25)), ("w5-short", 32, 1024, (102, 120))]
)
def test_singletons(name: str, low: int, high: int, rates: tuple[float, float]) -> None:
    for load, rate in zip(LOADS, rates, strict=True):
        built = cell(name, load)
        assert (len(built.requests), built.warmup, built.max_running) == (1500, 100, 256)
        lengths = [r.num_tokens for r in built.requests]
        assert (min(lengths), max(lengths)) == (low, high)  # some are clipped
        assert np.median(lengths) == pytest.approx((low * high) ** 0.5, rel=0.1)
        outputs = [r.output_tokens for r in built.requests]
        assert (min(outputs), max(outputs)) == (64, 256)
        assert built.requests[-1].arrival_s == pytest.approx(1500 / rate, rel=0.05)
        assert ideal_hit(built) == 0.0


# -- W4 --------------------------------------------------------------------------------------------------


def row(at_ms: float, length: int, output: int = 7, block: int = 512, first_id: int = 0) -> dict[str, Any]:
    ids = list(range(first_id, first_id - (-length // block)))
    return {"timestamp": at_ms, "input_length": length, "output_length": output, "hash_ids": ids}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in rows), encoding="utf-8")
    return path


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """130 usable rows, one second apart from t = 5 s, with a long and a tiny row in between."""
    rows = [row(5000 + 1000 * i, 100 + 30 * i, output=i + 1, first_id=20 * i) for i in range(130)]
    return write(tmp_path / "conversation.jsonl", [row(0, 6001), row(1, 3), *rows])


@pytest.mark.parametrize(("load", "count"), [("moderate", 30), ("heavy", 120)])
@pytest.mark.parametrize("name", ["w4", "w4-shared"])
def test_sessions_accumulate_their_prefix(sessions: Path, name: str, load: str, count: int) -> None:
    built = cell(name, load, trace=sessions)
    assert (len(built.requests), built.warmup) == (4 * count, 4 * count // 10)
    assert (built.arena_tokens, built.max_running) == (170_000, 256)
    arrivals = [r.arrival_s for r in built.requests]
    assert arrivals == sorted(arrivals)
    by_id = {r.request_id: r for r in built.requests}
    common = 1402 if name == "w4-shared" else 0
    for session in range(count):
        rounds = [by_id[f"{name}-{session}-{number}"] for number in (1, 2, 3, 4)]
        length = 100 + 30 * session
        assert [r.num_tokens for r in rounds] == [common + length * n // 4 for n in (1, 2, 3, 4)]
        assert all(len(r.key) == 4 * r.num_tokens for r in rounds)
        assert {r.output_tokens for r in rounds} == {session + 1}
        assert rounds[0].arrival_s == session
        for before, after in pairwise(rounds):
            assert after.key.startswith(before.key)
            assert 0.002 < after.arrival_s - before.arrival_s < 0.5
        assert shared_symbols(rounds[3].key, by_id[f"{name}-{(session + 1) % count}-4"].key) == common


def test_gaps_between_rounds_are_log_normal_around_50_ms(sessions: Path) -> None:
    rng = Random(42)
    expected = [rng.lognormvariate(np.log(0.050), 0.5) for _ in range(3)]
    waiting = [r for r in cell("w4", trace=sessions, client="vllm").requests if r.after]
    by_id = {r.request_id: r for r in waiting}
    assert [by_id[f"w4-0-{n}"].think_s for n in (2, 3, 4)] == pytest.approx(expected, rel=1e-12)
    assert np.median([r.think_s for r in waiting]) == pytest.approx(0.050, rel=0.15)


def test_client_form_decides_which_requests_wait(sessions: Path) -> None:
    free = cell("w4", trace=sessions)
    waits = cell("w4", trace=sessions, client="vllm")
    assert all(r.after is None and r.think_s == 0.0 for r in free.requests)
    assert [r.key for r in free.requests] == [r.key for r in waits.requests]
    assert [r.arrival_s for r in free.requests] == [r.arrival_s for r in waits.requests]
    for request in waits.requests:
        session, _, number = request.request_id.rpartition("-")
        assert request.after == (None if number == "1" else f"{session}-{int(number) - 1}")
        assert (request.think_s > 0) == (number != "1")
    assert cell("w4", engine="vllm", trace=sessions) == waits
    assert cell("w4", engine="vllm", trace=sessions, client="sglang") == free


def test_too_few_sessions(tmp_path: Path) -> None:
    short = write(tmp_path / "short.jsonl", [row(i, 600) for i in range(29)])
    with pytest.raises(WorkloadError, match=r"short\.jsonl: 29 rows .* needs 30"):
        cell("w4", "moderate", trace=short)


# -- the ideal hit ---------------------------------------------------------------------------------------

small_keys = st.lists(st.sampled_from([0, 1, 255, 256, 149_999]), max_size=6)


def by_hand(requests: Sequence[SimRequest], warmup: int, unit: int = 1) -> Workload:
    limits: dict[str, Any] = {"name": "small", "load": "trace", "seed": 0, "max_running": 1}
    return Workload(requests=requests, warmup=warmup, arena_tokens=100, unit_tokens=unit, **limits)


@st.composite
def small_workloads(draw: st.DrawFn) -> Workload:
    unit = draw(st.sampled_from([1, 4]))
    row = st.tuples(small_keys, st.integers(0, unit - 1), st.sampled_from("ab"), small_keys)
    rows = draw(st.lists(row, max_size=25))
    requests = [
        SimRequest(
            str(i), float(i), pack_tokens(key), max(1, len(key) * unit + tail), 1, namespace,
            answer=pack_tokens(answer),
        )
        for i, (key, tail, namespace, answer) in enumerate(rows)
    ]  # fmt: skip
    warmup = draw(st.integers(0, len(requests)))
    return by_hand(requests, warmup, unit)


@given(small_workloads(), st.booleans())
def test_ideal_hit_equals_its_naive_twin(workload: Workload, include_warmup: bool) -> None:
    assert ideal_hit(workload, include_warmup=include_warmup) == naive_ideal_hit(workload, include_warmup)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "published"), [("w1c", 0.90), ("w2b", 0.96)])
def test_published_ideal_hits_count_the_warmup(name: str, published: float, seed: int) -> None:
    built = cell(name, seed=seed)
    assert ideal_hit(built, include_warmup=True) == pytest.approx(published, abs=0.01)
    assert ideal_hit(built) > ideal_hit(built, include_warmup=True)  # most groups' first miss is warm-up


@pytest.mark.parametrize("seed", SEEDS)
def test_published_ideal_hit_of_w1d_stands_for_140_groups(seed: int) -> None:
    """Not for the 200 of the cell's own definition: .93 then lies between the two ways to count."""
    built = cell("w1d", seed=seed)
    assert ideal_hit(built, include_warmup=True) == pytest.approx(0.905, abs=0.01)
    assert ideal_hit(built) == pytest.approx(0.95, abs=0.01)
    distinct = len(set(draw_groups(Random(seed), 140, 2000)))
    assert 1 - distinct / 2000 == pytest.approx(0.93, abs=0.005)


# -- trace files -----------------------------------------------------------------------------------------


def test_rows_become_requests(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 1000, "input_length": 1024, "output_length": 5, "hash_ids": [900, 7]},
        {"timestamp": 1500, "input_length": 1025, "output_length": 0, "hash_ids": [900, 7, 2**40]},
        {"timestamp": 3000.5, "input_length": 511, "output_length": 9, "hash_ids": [4]},
        {"timestamp": 3001, "input_length": 513, "output_length": 9, "hash_ids": [2**40, 4]},
    ]
    path = write(tmp_path / "small.jsonl", rows)
    built = read_mooncake(path)
    assert [tokens(r) for r in built.requests] == [[0, 1], [0, 1], [], [2]]  # full blocks only
    assert [r.num_tokens for r in built.requests] == [1024, 1025, 511, 513]
    assert [r.output_tokens for r in built.requests] == [5, 1, 9, 9]  # an engine samples at least one
    assert [r.arrival_s for r in built.requests] == [0.0, 0.5, 2.0005, 2.001]
    assert (built.name, built.load, built.unit_tokens, built.max_running) == ("small", "trace", 512, 256)
    assert (built.warmup, built.arena_tokens) == (0, 50_176)  # 50,000 in whole blocks
    assert ideal_hit(built) == 1024 / 3073
    assert [r.arrival_s for r in at_rate(read_mooncake(path), 2.0).requests] == [0.0, 0.25, 1.00025, 1.0005]


def test_rows_out_of_order_are_sorted(tmp_path: Path) -> None:
    built = read_mooncake(write(tmp_path / "t.jsonl", [row(3000, 9), row(1000, 8), row(2000, 7)]))
    assert [(r.arrival_s, r.num_tokens) for r in built.requests] == [(0.0, 8), (1.0, 7), (2.0, 9)]


def test_limit_warmup_and_arena(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [row(i, 20_000 if i == 3 else 64, 100, 64) for i in range(25)])
    assert read_mooncake(path, block_tokens=64).warmup == 2
    assert read_mooncake(path, block_tokens=64).arena_tokens == 80_448  # 4 x 20,100 in whole blocks
    few = read_mooncake(path, block_tokens=64, limit=3)
    assert (len(few.requests), few.arena_tokens) == (3, 50_048)
    assert len(read_mooncake(path, block_tokens=64, limit=99).requests) == 25


def test_lines_beyond_the_limit_are_not_judged(tmp_path: Path) -> None:
    assert len(read_mooncake(write(tmp_path / "t.jsonl", [row(0, 9), "bad"]), limit=1).requests) == 1


GOOD = json.dumps(row(0, 600))


def changed(**fields: Any) -> str:
    return json.dumps(row(0, 600) | fields)


def refused(path: Path | str, **options: Any) -> str:
    """What is said of a trace that cannot be taken."""
    with pytest.raises(WorkloadError) as caught:
        read_mooncake(path, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "expected a JSON object, found list"),
        *[
            (json.dumps({k: v for k, v in row(0, 600).items() if k != field}), f"missing field '{field}'")
            for field in ("timestamp", "input_length", "output_length", "hash_ids")
        ],
        (changed(timestamp="0"), "timestamp is '0', not a number"),
        (changed(timestamp=True), "timestamp is True, not a number"),
        (changed(timestamp=-1), "timestamp is -1, outside"),
        (changed(timestamp=float("nan")), "timestamp is nan, outside"),
        (changed(timestamp=10**400), "timestamp is 1000"),
        (changed(input_length=-5), "input_length is -5, negative"),
        (changed(input_length=0, hash_ids=[]), "input_length is 0"),
        (changed(input_length=600.0), "input_length is 600.0, not an integer"),
        (changed(input_length=10**8 + 1), "input_length is 100000001, above 100000000"),
        (changed(hash_ids=[0, 2**53 + 1]), "hash_ids entry is 9007199254740993, above 2**53"),
        (changed(output_length=-1), "output_length is -1, negative"),
        (changed(output_length=[7]), "output_length is a list, not an integer"),
        (changed(hash_ids="ab"), "hash_ids is 'ab', not a list"),
        (changed(hash_ids={"a": 1}), "hash_ids is a dict, not a list"),
        (changed(hash_ids=[0]), "1 hash_ids, but input_length 600 makes 2 blocks of 512 tokens"),
        (changed(hash_ids=[0, 1, 2]), "3 hash_ids, but input_length 600 makes 2 blocks of 512 tokens"),
        (changed(hash_ids=[0, False]), "hash_ids entry is False, not an integer"),
        (changed(hash_ids=[0, -1]), "hash_ids entry is -1, negative"),
    ],
    ids=lambda text: text[:40],
)
def test_bad_row_names_file_line_and_reason(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n", encoding="utf-8")
    message = refused(path)
    assert message.startswith(f"{path}, line 3: ")
    assert reason in message
    assert "\n" not in message
    assert len(message) < len(str(path)) + 200


@pytest.mark.parametrize(
    ("content", "name", "reason"),
    [
        (b"", "t.jsonl", "empty trace"),
        (b"\n \n", "t.jsonl", "empty trace"),
        (gzip.compress(b""), "t.jsonl.gz", "empty trace"),
        (GOOD.encode(), "t.jsonl.gz", "bad gzip data, in line 1 or later"),
        (b"\x1f\x8bjunk", "t.jsonl", "bad gzip data"),
        (gzip.compress(f"{GOOD}\n".encode() * 99)[:-20], "t.jsonl.gz", "bad gzip data"),
        (gzip.compress(f"{GOOD}\n".encode())[:-8] + bytes(8), "t.jsonl.gz", "bad gzip data"),
        (b"{}", "t.xz", "bad xz data, in line 1 or later: Input format not supported by decoder"),
        (lzma.compress(b"{}")[:-20], "t", "bad xz data, in line 1 or later: Compressed file ended before"),
        (GOOD.encode() + b"\n\xff\xfe\n", "t.jsonl", "not UTF-8 text"),
    ],
    ids=["empty", "blank", "gzip-empty", "not-gzip", "gzip-header", "gzip-cut", "gzip-crc", "not-xz",
         "xz-cut", "bytes"],
)  # fmt: skip
def test_bad_file_is_named(tmp_path: Path, content: bytes, name: str, reason: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    said = refused(path)
    assert said.startswith(str(path))
    assert reason in said


def test_unreadable_places(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "absent.jsonl")
    assert "cannot read: Is a directory" in refused(tmp_path)
    assert "cannot read: embedded null" in refused("a\0b")


def test_blocks_and_rates_that_a_trace_does_not_have(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [row(0, 600), row(9, 600)])
    assert "makes 38 blocks of 16 tokens" in refused(path, block_tokens=16)
    with pytest.raises(WorkloadError, match="arrival times grow"):
        at_rate(read_mooncake(path), 1e-320)


# -- the recorded conversation trace, where the data folder is there ---------------------------------------

needs_trace = pytest.mark.skipif(
    not CONVERSATION.is_file(), reason="no Mooncake conversation trace in shared/data next to the checkout"
)


@needs_trace
def test_conversation_trace() -> None:
    built = read_mooncake(CONVERSATION)
    assert (built.name, len(built.requests), built.warmup) == ("conversation_trace", 12_031, 1203)
    assert built.requests[-1].arrival_s == 3536.999
    assert max(r.num_tokens for r in built.requests) == 126_195
    assert built.arena_tokens == 506_368
    assert ideal_hit(built, include_warmup=True) == pytest.approx(0.373, abs=0.001)
    assert ideal_hit(built) == pytest.approx(0.391, abs=0.001)
    first = [tokens(r)[:1] for r in built.requests]
    assert sum(head == [0] for head in first) > 0.5 * len(first)  # the universal first block


@needs_trace
def test_w4_on_the_conversation_trace() -> None:
    lengths = [r.input_tokens for r in iter_rows(CONVERSATION) if r.input_tokens <= 6000][:120]
    built = cell("w4", trace=CONVERSATION)
    assert sorted(r.num_tokens for r in built.requests if r.request_id.endswith("-4")) == sorted(lengths)
    assert ideal_hit(built) == pytest.approx(0.60, abs=0.01)  # as published for LPM+LRU: 60.4 %
