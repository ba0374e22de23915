"""`peek trace`: logs of every kind become one trace, which holds nothing of what was asked.

And what the simulator makes of recorded traffic: of a trace, and of sessions.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fixtures import Capsys

from peek import PRESETS, InvalidKey, WorkloadError
from peek.cli.main import main
from peek.offline.formats import Line
from peek.simulation.engines import Job
from peek.simulation.simulate import CACHES, simulate
from peek.simulation.trace import at_session_rate, iter_rows, read_mooncake, read_sessions
from peek.simulation.workload import SimRequest, ideal_hit, pack_tokens
from peek.traffic import Arrival, Ending, Event, Measured, Reader, RequestRows, Tracer
from peek.traffic.engines import CUT
from peek.traffic.times import bare_unit, doubt, seconds

IDS = [list(range(10, 50)), list(range(10, 42)) + [7] * 8, [3, 4, 5]]
"""Two prompts that share two blocks of 16 and part of a third, and one of its own."""


def reader() -> Reader:
    return Reader(RequestRows(), json.loads)


def events_of(log: Reader, line: str) -> list[Event]:
    lines = [Line(1, line.encode("utf-8", "surrogatepass"), b"\n")]
    return [event for _, events in log.file(lines) for event in events]


def rows_of(path: Path) -> list[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as stream:
        return [json.loads(line) for line in stream]


def shared_blocks(one: dict[str, Any], two: dict[str, Any]) -> int:
    pairs = list(zip(one["hash_ids"], two["hash_ids"], strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


def jsonl(rows: Iterable[Any]) -> str:
    return "\n".join(map(json.dumps, rows))


def trace(tmp_path: Path, text: str, *words: str, code: int = 0) -> list[dict[str, Any]]:
    (tmp_path / "in").write_text(text, encoding="utf-8")
    assert main(["trace", str(tmp_path / "in"), str(tmp_path / "out.jsonl"), *words]) == code
    return rows_of(tmp_path / "out.jsonl")


def taken(events: Iterable[Event], salt: bytes = b"salt", block: int = 16) -> list[dict[str, Any]]:
    """The rows of a trace of some events."""
    tracer = Tracer(salt, block, None)
    for event in events:
        tracer.take(event)
    return list(tracer.rows(1))


# -- hashes -----------------------------------------------------------------------------------------------

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8)


@given(PROMPTS, st.integers(1, 4))
def test_ids_are_equal_exactly_where_prefixes_are(prompts: list[list[int]], block: int) -> None:
    rows = taken((Arrival(str(at), float(at), prompt) for at, prompt in enumerate(prompts)), block=block)
    assert [row["input_length"] for row in rows] == [len(prompt) for prompt in prompts]
    assert [len(row["hash_ids"]) for row in rows] == [-(-len(prompt) // block) for prompt in prompts]
    chains = {}
    for row, prompt in zip(rows, prompts, strict=True):
        for number, found in enumerate(row["hash_ids"]):
            assert chains.setdefault(found, prompt[: (number + 1) * block]) == prompt[: (number + 1) * block]
    assert len(chains) == len({tuple(chain) for chain in chains.values()})


def sessions_of(prompts: Iterable[Sequence[int]], block: int) -> tuple[int, int]:
    """Sessions of two turns or more, and their turns: a prompt goes on from an open one's whole blocks."""
    open_ones: dict[tuple[int, ...], int] = {}
    turns: list[int] = []
    for prompt in prompts:
        whole = tuple(prompt[: len(prompt) // block * block])
        shorter = (whole[:end] for end in range(len(whole) - 1, 0, -1))
        before = next((each for each in shorter if each in open_ones), None)
        session = len(turns) if before is None else open_ones.pop(before)
        if before is None:
            turns.append(0)
        turns[session] += 1
        if whole:
            open_ones.setdefault(whole, session)
    return sum(each > 1 for each in turns), sum(each for each in turns if each > 1)


@given(PROMPTS, st.integers(1, 3))
def test_sessions_are_prompts_that_go_on_from_whole_blocks(prompts: list[list[int]], block: int) -> None:
    prompts = [prompt + prompts[0] for prompt in prompts] + [prompts[0] + prompt for prompt in prompts]
    tracer = Tracer(b"salt", block, None)
    for at, prompt in enumerate(prompts):
        tracer.take(Arrival(str(at), float(at), prompt))
    list(tracer.rows(1))
    assert (tracer.counts.sessions, tracer.counts.turns) == sessions_of(prompts, block)


def test_namespaces_and_kinds_of_prompt_share_nothing() -> None:
    prompts = [("abcd", ""), ("abcd", "lora"), ([0x64636261], ""), ("abcd", "")]
    arrivals = [Arrival(str(number), float(number), *each) for number, each in enumerate(prompts)]
    (a,), (b,), (c,), (d,) = (row["hash_ids"] for row in taken(arrivals, block=1))
    assert a == d
    assert len({a, b, c}) == 3


def test_another_salt_other_ids() -> None:
    found = []
    for salt in (b"one", b"two", b"two", b"x" * 200, b"x" * 199):
        (row,) = taken([Arrival("r", 0.0, IDS[0], tenant="me")], salt)
        found.append((*row["hash_ids"], row["tenant"]))
    assert found[1] == found[2]
    assert len(set(found)) == 4
    assert not set(found[0]) & set(found[1])


# -- rows of requests -------------------------------------------------------------------------------------

CHAT = {"model": "m", "messages": [{"role": "user", "content": "SECRET and more"}], "max_tokens": 70}


def test_a_log_of_requests(tmp_path: Path, capsys: Capsys) -> None:
    usage = {"prompt_tokens": 40, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 32}}
    lines = [
        {"timestamp": 12.5, "body": {"prompt": IDS[1]}, "usage": usage},
        {"timestamp": 10, "body": {"prompt": IDS[0]}, "response": {"body": {"usage": usage}}},
        {"timestamp": 11, "request": CHAT, "who": {"id": 7}},
        {"timestamp": 13, **CHAT, "who": {"id": 7}},
        {"timestamp": 14, "prompt": IDS[2], "who": {"id": 8}},
    ]
    rows = trace(tmp_path, jsonl(lines), "--tenant-field", "who.id", "--output-tokens", "33")
    assert [row["timestamp"] for row in rows] == [0.0, 1000.0, 2500.0, 3000.0, 4000.0]
    assert [row["output_length"] for row in rows] == [9, 70, 9, 70, 33]
    assert [row["input_length"] for row in rows] == [40, 6, 40, 6, 3]
    assert shared_blocks(rows[0], rows[2]) == 2
    assert rows[1]["hash_ids"] == rows[3]["hash_ids"]
    assert [row.get("tenant") for row in rows[:2]] == [None, rows[3]["tenant"]]
    assert rows[4]["tenant"] != rows[3]["tenant"]
    err = capsys.readouterr().err
    assert "5 requests, 95 tokens in blocks of 16 (four bytes" in err
    assert "2 told, 2 as long as allowed, 1 taken as 33" in err
    assert "80.0 % of 80 tokens were cached" in err


@given(st.text("SECRETab \n", min_size=30, max_size=200), st.integers(0, 2**32))
def test_nothing_of_the_content_is_in_the_trace(words: str, seed: int) -> None:
    row = {"body": {"messages": [{"role": "user", "content": words}], "model": words}, "ts": 1, "user": words}
    (found,) = taken(RequestRows(tenant="user").events(row, words), random.Random(seed).randbytes(32))
    assert set(found) == {"timestamp", "input_length", "output_length", "hash_ids", "block_tokens", "tenant"}
    assert re.fullmatch(r"[0-9a-f]{12}", found["tenant"])
    assert all(isinstance(found[name], (int, float)) for name in found if name not in ("hash_ids", "tenant"))


def test_fields_by_name(tmp_path: Path) -> None:
    row = {"at": {"start": "2026-11-22T05:40:00.25Z"}, "q": {"text": "x" * 64}, "a": ["y" * 40]}
    later = {"at": {"start": "2026-11-22T06:40:01+01:00"}, "q": {"text": [1, 2, 3]}, "a": [[5, 6]]}
    chat = {"at": {"start": 1795326001.5}, "q": {"text": CHAT["messages"]}, "a": [None]}
    words = ["--time-field", "at.start", "--prompt-field", "q.text", "--output-field", "a.0"]
    rows = trace(tmp_path, jsonl((row, later, chat)), *words)
    assert [row["timestamp"] for row in rows] == [0.0, 750.0, 1250.0]
    assert [row["input_length"] for row in rows] == [16, 3, 6]
    assert [row["output_length"] for row in rows] == [10, 2, 128]


SYSTEM = "You are kind. " * 200
ASKED = [{"role": "user", "content": "SECRET"}]
AS_MESSAGES = {"messages": [{"role": "system", "content": SYSTEM}, *ASKED]}


@pytest.mark.parametrize(
    "row",
    [
        {"system": SYSTEM, "messages": ASKED},
        {"request": {"system": [{"type": "text", "text": SYSTEM, "cache_control": {}}], "messages": ASKED}},
        {"custom_id": "r", "params": {"system": SYSTEM, "messages": ASKED, "max_tokens": 9}},
        {"body": {"instructions": SYSTEM, "input": ASKED}},
        {"call": {"chat": {"system": SYSTEM, "messages": ASKED}}},
        {"call": {"chat": {"input": ASKED}, "model": ""}, "params": {"seed": 1}, "body": AS_MESSAGES},
    ],
)
def test_a_system_prompt_beside_the_messages_is_part_of_the_prompt(row: dict[str, Any]) -> None:
    """The trace is the same as with a system message, wherever the system prompt stands."""
    field = "call.chat.messages" if "messages" in row.get("call", {}).get("chat", ()) else ""
    one, two = taken(
        event
        for number, (path, each) in enumerate([("", AS_MESSAGES), (field, row)])
        for event in RequestRows(prompt=path).events({"ts": number, **each}, f"{number}")
    )
    assert one["hash_ids"] == two["hash_ids"]
    assert one["input_length"] == two["input_length"] > 700


def test_a_rendered_prompt_that_is_named_is_taken_as_the_whole() -> None:
    row = {"rendered": "abcd", "tools": ["t"], "system": "s", "messages": ASKED}
    (arrival, _) = RequestRows(prompt="rendered").events({**row, "model": "m", "cache_salt": "x"}, "r")
    assert isinstance(arrival, Arrival)
    assert (arrival.prompt, "m" in arrival.namespace, "x" in arrival.namespace) == ("abcd", True, True)


def test_tools_and_salts_separate(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 640}}]
    salts = [{"cache_salt": salt} for salt in "abb"]
    more: list[dict[str, Any]] = [{}, {"tools": tools}, *salts, {"lora_path": "b"}]
    rows = trace(tmp_path, jsonl({"ts": at, **CHAT, **each} for at, each in enumerate(more)))
    found = [row["hash_ids"][0] for row in rows]
    assert found[3] == found[4]
    assert len(set(found)) == 5


# -- times ------------------------------------------------------------------------------------------------

SCALES = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}


@given(
    rate=st.floats(0.5, 500.0),
    unit=st.sampled_from(["ms", "us"]),
    gaps=st.lists(st.floats(0.5, 2.0), min_size=2, max_size=40),
    start=st.integers(0, 10**6),
)
def test_whole_numbers_are_read_in_the_unit_that_makes_a_load(
    rate: float, unit: str, gaps: list[float], start: int
) -> None:
    """From one request in two seconds to 30 a second the reading is right, at more it is questioned."""
    tracer = Tracer(b"salt", 16, None)
    times = [start + round(SCALES[unit] * sum(gaps[:i]) / rate) for i in range(len(gaps) + 1)]
    rows = RequestRows()
    for number, at in enumerate(times):
        for event in rows.events({"timestamp": at, "prompt": [1]}, f"{number}"):
            tracer.take(event)
    found = list(tracer.rows(1))
    span_s = (times[-1] - times[0]) / SCALES[unit]
    real = (len(times) - 1) / span_s
    said = tracer.counts.doubt
    if 0.05 < real < 31:
        assert tracer.counts.span_s == pytest.approx(span_s, abs=1.0)
        assert f"read as {unit}:" in said
    assert said, "always told: the log names no unit"
    assert found[-1]["timestamp"] == pytest.approx(1000 * tracer.counts.span_s, abs=1.0)


@given(rate=st.floats(0.001, 1000.0), count=st.integers(2, 40), whole=st.booleans())
def test_seconds_are_seconds_unless_there_would_be_no_load(rate: float, count: int, whole: bool) -> None:
    times = [at / rate for at in range(count)]
    times = [float(round(at)) for at in times] if whole else [at + 0.1 for at in times]
    unit, gap = bare_unit(times), (times[-1] - times[0]) / (count - 1)
    whole = all(at.is_integer() for at in times)
    assert unit == ("s" if not whole or gap < 31.6 else "ms")
    assert bool(doubt([at / SCALES[unit] for at in times], unit)) == (gap >= 1.0 if whole else gap > 31.7)


@pytest.mark.parametrize(
    ("times", "words", "last_ms", "said"),
    [
        ([0, 300, 900], [], 900.0,
         "read as ms: as seconds one request would come in 450 s (--time-unit s if"),
        ([0, 300, 900], ["--time-unit", "s"], 900_000.0, "over 15 min, 0.00333 requests a second"),
        ([0, 10, 20], [], 20_000.0,
         "read as s: one request in 10 s (--time-unit ms if they are 100 a second)"),
        ([0.5, 100.5, 200.5], [], 200_000.0, "one request in 100 s (--time-unit ms if they are 10 a second)"),
        ([1795326001, 1795329601], [], 3_600_000.0, "over 60 min, 0.000556 requests a second"),
        ([0, 1795329601], [], 1795329601000.0, "are all times of one clock and unit?"),
        ([7.5, 7.5], [], 0.0, "all at one time"),
    ],
)  # fmt: skip
def test_span_and_rate_are_told(
    tmp_path: Path, capsys: Capsys, times: list[float], words: list[str], last_ms: float, said: str
) -> None:
    rows = trace(tmp_path, jsonl({"ts": at, "prompt": [1, 2]} for at in times), *words)
    assert rows[-1]["timestamp"] == last_ms
    err = capsys.readouterr().err
    assert said in err
    assert ("without a unit" in err) == ("read as" in said or "one request in" in said)


@pytest.mark.parametrize(
    ("value", "unit", "found"),
    [
        (12, "", 12.0), ("12.5", "", 12.5), (1500, "ms", 1.5), (1795326001, "", 1795326001.0),
        (1795326001500, "", 1795326001.5), (1795326001500000, "", 1795326001.5),
        (1795326001500000000, "", 1795326001.5), ("2026-11-22 05:40:01.5", "", 1795326001.5),
        ("2026-11-22T05:40:01.500000000Z", "", 1795326001.5),
        ("2026-11-22T07:40:01.5+02:00", "s", 1795326001.5),
        ("2026-11-22 07:40:01.5+02", "", 1795326001.5), ("2026-11-22 05:40:01.5-00", "", 1795326001.5),
    ],
)  # fmt: skip
def test_times(value: object, unit: str, found: float) -> None:
    assert seconds(value, unit) == pytest.approx(found, abs=1e-6)


@pytest.mark.parametrize(
    "value", [True, None, [], {}, "", "soon", -1, float("nan"), float("inf"), "nan", 1e300]
)
def test_what_is_no_time(value: object) -> None:
    with pytest.raises(WorkloadError, match="not a time"):
        seconds(value)


def test_no_time_is_later_than_a_date_can_be() -> None:
    for value, unit in ((253_402_300_799.9, "s"), (253_402_300_799_999, "ms")):
        assert seconds(value, unit) <= seconds("9999-12-31T23:59:59.999999Z")
    with pytest.raises(WorkloadError) as caught:
        seconds(1795326001500, "s")  # milliseconds
    assert str(caught.value) == "time is 1795326001500, not a time in s of the years 1970 to 9999"


def test_bad_lines_are_named_and_the_rest_is_done(tmp_path: Path, capsys: Capsys) -> None:
    good = json.dumps({"ts": 1, "prompt": [1, 2]})
    bad = ["{", "[]", '{"ts": 1}', '{"ts": "soon", "prompt": "x"}', '{"ts": 1, "prompt": [9999999999]}']
    bad += ['{"ts": 1, "prompt": ""}', "[" * 100_000, '{"ts": 1e300, "prompt": "x"}']
    assert len(trace(tmp_path, "\n".join([good, *bad, good]), code=1)) == 2
    err = capsys.readouterr().err.splitlines()
    for number, said in enumerate(
        ("JSON", "list", "none of", "time", "2**31", "empty", "JSON", "1e+300"), start=2
    ):
        assert any(f"line {number}: " in line and said in line for line in err), (number, said, err)
    assert err[-1].endswith(": 8 bad lines left out")
    assert all(len(line) < 400 for line in err)


def test_no_times(tmp_path: Path, capsys: Capsys) -> None:
    rows = trace(tmp_path, jsonl({"prompt": ids} for ids in IDS), "--rate", "4")
    assert [row["timestamp"] for row in rows] == [0.0, 250.0, 500.0]
    before = (tmp_path / "out.jsonl").read_bytes()
    assert main(["trace", str(tmp_path / "in"), str(tmp_path / "out.jsonl")]) == 1
    assert "no request has a time: name their place with --time-field, or" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.jsonl"]


def test_requests_of_one_second_are_spread_over_it(tmp_path: Path) -> None:
    rows = trace(tmp_path, jsonl({"created": at, "prompt": [at, 1]} for at in (5, 7, 7, 7, 7, 9)))
    assert [row["timestamp"] for row in rows] == [0.0, 2000.0, 2250.0, 2500.0, 2750.0, 4000.0]


@pytest.mark.parametrize("text", ["", "\n\n", "INFO started\nINFO stopped\n"])
def test_nothing_to_trace(tmp_path: Path, capsys: Capsys, text: str) -> None:
    (tmp_path / "in").write_text(text)
    assert main(["trace", str(tmp_path / "in"), str(tmp_path / "out.jsonl")]) == 1
    assert "holds no request that is understood" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


def test_salt_of_a_file_and_a_pressed_trace(tmp_path: Path) -> None:
    (tmp_path / "salt").write_text("tell nobody this\n")
    (tmp_path / "in").write_text(jsonl({"ts": 0.5, "prompt": ids} for ids in IDS))
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        words = [str(tmp_path / "in"), str(tmp_path / name), "--salt-file", str(tmp_path / "salt")]
        assert main(["trace", *words]) == 0
    assert rows_of(tmp_path / "a.jsonl.gz") == rows_of(tmp_path / "b.jsonl.gz")


# -- logs of engines --------------------------------------------------------------------------------------


ANSWER = "Generated response a (streaming delta) details: output_token_ids: [5, 6]"
OUTPUT = "Generated response a (streaming complete): output: 'Request', finish_reason: length"
PARAMS = "SamplingParams(n=1, max_tokens=20, min_tokens=0)"


def vllm_lines(name: str, ids: list[int], at: str, lora: str = "None") -> list[str]:
    """As vLLM 0.32 writes them."""
    where = f"{at} [entrypoints/.../utils/request_logger.py:55]"
    told = f"prompt: None, prompt_token_ids: {ids}, prompt_embeds shape: None."
    return [
        f"(APIServer pid=1) DEBUG {where} Request {name} details: {told}",
        f"(APIServer pid=1) INFO {where} Received request {name}: params: {PARAMS}, lora_request: {lora}.",
        f'(APIServer pid=1) INFO {where} 127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK',
    ]


def test_vllms_log(tmp_path: Path) -> None:
    coloured, *more = vllm_lines("a", IDS[1], "01-01 00:00:01")
    quoted = "Request d details: prompt: 'it\\'s \"4 b\"', prompt_token_ids: None, prompt_embeds shape: None."
    text = [
        "INFO 12-31 23:59:58 [core.py:1] Initializing",
        *vllm_lines("cmpl-1-0", IDS[0], "12-31 23:59:59"),
        "\x1b[0;36m" + coloured.replace("DEBUG", "\x1b[37mDEBUG\x1b[0m"),
        *more,
        f"DEBUG 01-01 00:00:01 [x.py:1] {ANSWER}",
        "DEBUG 01-01 00:00:02 [x.py:1] Generated response a (streaming delta) details: output_token_ids: [7]",
        f"INFO 01-01 00:00:02 [x.py:1] {OUTPUT}",
        *vllm_lines("b", IDS[0], "01-01 00:00:02", "LoRARequest(lora_name='en', lora_int_id=1)"),
        vllm_lines("c", IDS[0], "01-01 00:00:03")[0],  # the log ends before its second line
        f"DEBUG 01-01 00:00:03 [x.py:1] {quoted}",
    ]
    rows = trace(tmp_path, "\n".join(text))
    assert [row["timestamp"] for row in rows] == [0.0, 2000.0, 3000.0, 4000.0, 4500.0]
    assert [row["output_length"] for row in rows] == [20, 3, 20, 128, 128]
    assert [row["input_length"] for row in rows] == [40, 40, 40, 40, 3]
    assert [shared_blocks(rows[0], row) for row in rows] == [3, 2, 0, 3, 0]


@pytest.mark.parametrize(
    "prefix",
    [
        "vllm-7d9 engine ",  # stern
        "(ServeReplica:default:LLM pid=7) ",  # Ray Serve
        "Jan 01 00:00:09.123456 host vllm[7]: ",  # journalctl -o short-precise
        "<30>1 2026-01-01T00:00:09.5+00:00 host vllm 7 - - ",  # syslog
    ],
)
def test_vllms_own_time_is_read_behind_what_nobody_knows(tmp_path: Path, prefix: str) -> None:
    lines = vllm_lines("a", IDS[0], "01-01 00:00:01") + vllm_lines("b", IDS[1], "01-01 00:00:03")
    quoted = "Request c details: prompt: 'INFO 01-01 00:00:09 [x.py:1] ', prompt_token_ids: None, "
    lines.append(f"DEBUG 01-01 00:00:05 [x.py:1] {quoted}prompt_embeds shape: None.")
    rows = trace(tmp_path, "\n".join(prefix + line for line in lines))
    assert [row["timestamp"] for row in rows] == [0.0, 2000.0, 4000.0]


def test_the_files_of_a_vllms_log_may_come_newest_first(tmp_path: Path) -> None:
    """`vllm.log vllm.log.1`, as a shell lists them; the lines have no year."""
    new, old = vllm_lines("b", IDS[0], "01-01 00:00:02"), vllm_lines("a", IDS[1], "12-31 23:59:58")
    rows = trace(tmp_path, "\n".join([*new, *old]))
    assert [row["timestamp"] for row in rows] == [0.0, 4000.0]


def test_the_end_of_february_is_read_in_any_year(tmp_path: Path) -> None:
    days = [f"{day} 23:59:59" for day in ("12-31", "02-28", "02-29", "03-01")]
    lines = [line for at, day in enumerate(days) for line in vllm_lines(f"r{at}", IDS[0], day)]
    assert len(trace(tmp_path, "\n".join(lines))) == 4


def test_vllms_log_as_json(tmp_path: Path) -> None:
    text = []
    for number, ids in enumerate(IDS[:2]):
        for line in vllm_lines(f"r{number}", ids, "01-01 00:00:00"):
            message = line.split("] ", 1)[1]
            at = f"2026-01-01 00:00:0{number},250"
            text.append(json.dumps({"asctime": at, "levelname": "DEBUG", "message": message}))
    rows = trace(tmp_path, "\n".join(text))
    assert [row["timestamp"] for row in rows] == [0.0, 1000.0]
    assert shared_blocks(*rows) == 2


@given(
    texts=st.lists(st.text("abc ", min_size=1, max_size=60), min_size=4, max_size=12),
    width=st.integers(1, 4),
    most=st.integers(3, 12),
    is_told=st.booleans(),
)
def test_prompts_that_vllm_has_cut_are_noticed(
    texts: list[str], width: int, most: int, is_told: bool
) -> None:
    """Nothing is said of a log as it is, but of a cut one with the server's arguments or two cut prompts.

    A token is `width` characters; with one character to a token, lengths alone show little.
    """
    logs = reader(), reader()
    if is_told:
        told = f"INFO non-default args: {{'enable_log_requests': True, 'max_log_len': {most}}}"
        assert not events_of(logs[1], told)
    longest = 0
    for number, text in enumerate(texts):
        ids = list(range(-(-len(text) // width)))
        longest += len(ids) >= most
        for log, end in zip(logs, (None, most), strict=True):
            told = f"prompt: {text[:end]!r}, prompt_token_ids: {ids[:end]}, prompt_embeds shape: None."
            events_of(log, f"DEBUG 01-01 00:00:01 [x.py:1] Request {number} details: {told}")
    if width > 1:
        tiny = sum(len(text) == 1 for text in texts)  # of one character and one token, cut or not
        assert not logs[0].cut() or tiny > 1
        if longest > max(1, tiny):
            assert logs[1].cut()
    if is_told:
        assert bool(logs[1].cut()) == (longest > 0)


def test_a_cut_log_is_traced_and_fails(tmp_path: Path, capsys: Capsys) -> None:
    text = []
    for number in range(3):
        told = f"prompt: '{'x' * 100}', prompt_token_ids: {list(range(100))}, prompt_embeds shape: None."
        text.append(f"DEBUG 01-01 00:00:0{number} [x.py:1] Request {number} details: {told}")
    assert len(trace(tmp_path, "\n".join(text), code=1)) == 3
    assert "vLLM's --max-log-len has cut prompts at 100" in capsys.readouterr().err


def sglang_asked(**more: Any) -> dict[str, Any]:
    fields = {"session_id": None, "text": None, "input_ids": None, "image_data": None}
    return fields | {"sampling_params": {"max_new_tokens": 30, "stop": None}, "lora_path": None} | more


def sglang_lines(as_json: bool, rid: Any, answers: list[str], **more: Any) -> list[str]:
    """As SGLang 0.5.23 writes them."""
    asked = {"rid": rid, **sglang_asked(**more)}
    meta = {"id": "x", "prompt_tokens": 40, "completion_tokens": 6, "cached_tokens": 32}
    if as_json:
        at = "2026-11-22T05:46:56.500000"
        head = {"timestamp": at, "event": "request.received", "rid": rid, "obj": asked}
        end = {"event": "request.finished", "out": {"meta_info": meta}}
        lines = [json.dumps(row) for row in (head, *({**head, **end, "rid": one} for one in answers))]
    else:
        fields = "GenerateReqInput(" + ", ".join(f"{name}={value!r}" for name, value in asked.items()) + ")"
        out = {"text": "'meta_info': {'completion_tokens': 99}", "meta_info": meta}
        lines = [f"Receive: obj={fields}"]
        lines += [f"Finish: obj={fields.replace(repr(rid), repr(one))}, out={out}" for one in answers]
    return [f"[2026-11-22 05:46:56] {line}" for line in lines]


@pytest.mark.parametrize("as_json", [True, False])
def test_sglangs_log(tmp_path: Path, capsys: Capsys, as_json: bool) -> None:
    spoof = "it's \"\n rid='x', input_ids=[1, 2], sampling_params={'max_new_tokens': 4}"
    text = [
        "[2026-11-22 05:46:50] server_args=ServerArgs(log_requests=True)",
        *sglang_lines(as_json, "late", ["gone"], text="abcd" * 40, lora_path="en"),
        *sglang_lines(as_json, "a", ["a"], input_ids=IDS[0]),
        *sglang_lines(as_json, "b", [], input_ids=IDS[1]),
        *sglang_lines(as_json, ["c", "d"], ["d", "c"], text=["one two", spoof]),
        *sglang_lines(as_json, "e", [], input_ids=None),
    ]
    rows = trace(tmp_path, "\n".join(text))
    assert [row["input_length"] for row in rows] == [40, 40, 40, 2, -(-len(spoof) // 4)]
    assert [row["output_length"] for row in rows] == [30, 6, 30, 6, 6]
    assert [shared_blocks(rows[1], row) for row in rows] == [0, 3, 2, 0, 0]
    err = capsys.readouterr().err
    assert "80.0 % of 120 tokens were cached" in err
    assert "answers to requests that are not in the log: 1" in err


@pytest.mark.parametrize("odd", [None, "x", True, -1, [], 10**25])
def test_an_odd_count_in_sglangs_log_is_as_good_as_none(tmp_path: Path, capsys: Capsys, odd: Any) -> None:
    asked, ended = sglang_lines(True, "a", ["a"], input_ids=IDS[0], sampling_params={"max_new_tokens": odd})
    end = json.loads(ended.partition("] ")[2])
    end["out"]["meta_info"] = dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens"), odd)
    (row,) = trace(tmp_path, f"{asked}\n{json.dumps(end)}\n")
    assert (row["input_length"], row["output_length"]) == (40, 128)
    assert "were cached" not in capsys.readouterr().err


def test_a_log_that_has_cut_prompts_says_so() -> None:
    half = list(range(1024))
    cut = [
        sglang_lines(True, "r", [], input_ids=[*half, "...", *half])[0],
        sglang_lines(True, "r", [], text="x" * 1024 + "..." + "y" * 1024)[0],
        sglang_lines(False, "r", [], text="X")[0].replace("'X'", f"{'x' * 1024!r} ... {'y' * 1024!r}"),
        sglang_lines(False, "r", [], input_ids=[9])[0].replace("[9]", f"{half} ... {half}"),
    ]
    for line in cut:
        with pytest.raises(WorkloadError, match=CUT):
            events_of(reader(), line)


LOGGED = [
    *vllm_lines("v", IDS[2], "01-01 00:00:01"),
    f"DEBUG 01-01 00:00:01 [x.py:1] {ANSWER}",
    *sglang_lines(True, "s", ["s"], input_ids=IDS[2]),
    *sglang_lines(False, "t", ["t"], text="q"),
]
ODD = st.one_of(st.text(max_size=60), st.sampled_from(LOGGED))


@given(ODD, st.integers(0, 400), st.integers(0, 30), st.text("'[]{}\\\"\n:,0", max_size=3))
def test_a_damaged_line_is_an_error_of_ours_or_nothing(line: str, at: int, size: int, other: str) -> None:
    damaged = line[:at] + other + line[at + size :]
    log, tracer = reader(), Tracer(b"s", 4, None)
    try:
        for event in [*events_of(log, damaged), *log.rest()]:
            assert isinstance(event, (Arrival, Ending))
            tracer.take(event)
    except (WorkloadError, InvalidKey) as caught:
        said = str(caught)
        assert len(said) < 500


# -- from a trace to an answer ----------------------------------------------------------------------------


def talk(path: Path, requests: int = 200, groups: int = 5) -> Path:
    """Requests of a few shared prompts, in a queue that is always long."""
    rnd = random.Random(0)
    heads = [[rnd.randrange(1000) for _ in range(1600)] for _ in range(groups)]
    with path.open("w") as stream:
        for number in range(requests):
            prompt = rnd.choice(heads) + [rnd.randrange(1000) for _ in range(50)]
            row = {"ts": number / 50, "prompt": prompt, "max_tokens": 16}
            stream.write(json.dumps(row) + "\n")
    return path


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    path = tmp_path / "talk.jsonl"
    assert main(["trace", str(talk(tmp_path / "requests.jsonl")), str(path)]) == 0
    return path


def test_the_simulator_reads_what_was_traced(traced: Path) -> None:
    rows = list(iter_rows(traced))
    workload = read_mooncake(traced)
    assert workload.unit_tokens == rows[0].block_tokens == 16
    assert ideal_hit(workload, include_warmup=True) == pytest.approx(195 * 1600 / (200 * 1650))
    assert all(one.arrival_s <= two.arrival_s for one, two in pairwise(workload.requests))
    with pytest.raises(WorkloadError, match="line 1: block_tokens is 16, not 512"):
        read_mooncake(traced, block_tokens=512)


def test_would_it_help_me(traced: Path, tmp_path: Path, capsys: Capsys) -> None:
    words = ["simulate", "--trace", str(traced), "--arena-tokens", "5000", "--cache", "blocks"]
    words += ["--policy", "fcfs+lru", "--policy", "clpm+gm", "--max-running", "4"]
    assert main([*words, "--per-request", str(tmp_path / "each.csv")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Under clpm+gm instead of fcfs+lru the mean time to first token falls from" in out
    assert "the cache hit rises from" in out
    header, *lines = (tmp_path / "each.csv").read_text().splitlines()
    assert header == (
        "request_id,tenant,arrival_s,admitted_s,first_token_s,finished_s,prompt_tokens,cached_tokens,"
        "output_tokens,policy,seed,session"
    )
    assert len(lines) == 400
    assert {line.split(",")[-3] for line in lines} == {"fcfs+lru", "clpm+gm"}
    times = [[float(cell) for cell in line.split(",")[2:6]] for line in lines]
    assert all(times_s == sorted(times_s) for times_s in times)


def test_rates_and_verdicts(traced: Path, capsys: Capsys) -> None:
    words = ["simulate", "--trace", str(traced), "--json", "--policy", "fcfs+lru", "--policy", "clpm"]
    words += ["--rate-scale", "0.01", "--rate-scale", "1", "--card", "h200", "--model", "qwen2.5-7b"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["rate_scale"] for run in found["runs"]] == [0.01, 0.01, 1.0, 1.0]
    assert {run["hardware"] for run in found["runs"]} == {"H200-SXM-141GB"}
    assert {run["arena_tokens"] for run in found["runs"]} == {2_047_000}
    lazy, busy = found["verdicts"]
    assert lazy.startswith("Nothing changes under clpm: 99 of 100 requests wait less than 1 ms")
    assert busy


def test_every_policy(traced: Path, capsys: Capsys) -> None:
    assert main(["simulate", "--trace", str(traced), "--limit", "20", "--json", "--policy", "all"]) == 0
    assert [run["policy"] for run in json.loads(capsys.readouterr().out)["runs"]] == list(PRESETS)


# -- recorded sessions ------------------------------------------------------------------------------------

AGENTS = Path(__file__).resolve().parents[2] / "shared/data/agents"


def turn(session: object, number: Any, tokens: Any, gap_s: Any = 0.5, **more: Any) -> dict[str, Any]:
    row = {"session": session, "turn": number, "tokens": tokens, "output_length": 2, "gap_s": gap_s}
    return row | more


def timed(session: str, number: int, at_ms: float, blocks: int, **more: Any) -> dict[str, Any]:
    """Blocks of 4 tokens, the last one with 3."""
    row: dict[str, Any] = {"session": session, "turn": number, "gap_s": 2, "timestamp": at_ms}
    row |= {"input_length": 4 * blocks - 1, "output_length": 9, "block_tokens": 4}
    return row | {"hash_ids": list(range(7, 7 + blocks))} | more


TALKS = [
    turn("b", 1, [1, 2, 3, 8, 9, 5], 0.25),  # what was answered to [1, 2, 3] was [8, 9]
    turn(5, 0, [7], output_length=0, tenant="me"),
    turn("b", 0, [1, 2, 3], 99),
    turn("b", 2, [1, 2, 4], 4),
]
"""Turns of two sessions, out of order."""


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def refused(path: Path, rate: float = 1.0) -> str:
    """What is said of a file of sessions that cannot be taken."""
    with pytest.raises(WorkloadError) as caught:
        read_sessions(path, rate=rate, seed=0)
    return str(caught.value)


def test_turns_become_requests_that_wait(tmp_path: Path) -> None:
    built = read_sessions(written(tmp_path / "talk.sessions.jsonl", TALKS), rate=4.0, seed=7)
    draws = random.Random(7)
    first = draws.expovariate(4.0)
    second = first + draws.expovariate(4.0)
    assert list(built.requests) == [
        SimRequest("b/0", first, pack_tokens([1, 2, 3]), 3, 2, session="b", answer=pack_tokens([8, 9])),
        SimRequest("b/1", first, pack_tokens([1, 2, 3, 8, 9, 5]), 6, 2, "", "b/0", 0.25, session="b"),
        SimRequest("b/2", first, pack_tokens([1, 2, 4]), 3, 2, "", "b/1", 4.0, session="b"),
        SimRequest("5/0", second, pack_tokens([7]), 1, 1, tenant="me", session="5"),
    ]
    assert (built.name, built.load, built.seed, built.session_rate) == ("talk", "sessions", 7, 4.0)
    assert (built.warmup, built.max_running, built.arena_tokens, built.unit_tokens) == (0, 256, 50_000, 1)
    assert at_session_rate(at_session_rate(built, 1.0, 8), 4.0, 7) == built


def test_turns_with_times_begin_when_they_began(tmp_path: Path) -> None:
    rows = [
        timed("late", 0, 5000, 2),
        timed("early", 0, 1000, 1),
        timed("late", 1, 9000, 6),
        timed("early", 1, 3000, 3, tenant="me"),
    ]
    built = read_sessions(written(tmp_path / "talk.jsonl", rows), rate=1.0, seed=7)
    assert list(built.requests) == [
        SimRequest("early/0", 0.0, b"", 3, 9, session="early", answer=pack_tokens([0, 1])),
        SimRequest("early/1", 0.0, pack_tokens([0, 1]), 11, 9, "", "early/0", 2.0, "me", session="early"),
        SimRequest("late/0", 4.0, pack_tokens([0]), 7, 9, session="late", answer=pack_tokens([1, 2, 3])),
        SimRequest("late/1", 4.0, pack_tokens([0, 1, 2, 3, 4]), 23, 9, "", "late/0", 2.0, session="late"),
    ]
    assert (built.name, built.load, built.seed, built.session_rate) == ("talk", "sessions", 0, None)
    assert (built.warmup, built.arena_tokens, built.unit_tokens) == (0, 50_000, 4)
    one = read_sessions(written(tmp_path / "one", [timed("s", 0, 0, 5000)]), rate=1.0, seed=0)
    assert one.arena_tokens == 4 * (4 * 5000 - 1 + 9)


@pytest.mark.parametrize("cache", CACHES)
def test_a_turn_comes_its_gap_after_the_answer_before(tmp_path: Path, cache: str) -> None:
    jobs: list[Job] = []
    built = read_sessions(written(tmp_path / "talk", TALKS), rate=4.0, seed=7)
    run = simulate(built, "peek", cache, watch=jobs.extend)
    found = {job.request_id: job for job in jobs}
    assert found["b/0"].arrival_s == built.requests[0].arrival_s
    assert found["5/0"].arrival_s == built.requests[3].arrival_s
    assert found["b/1"].arrival_s == pytest.approx(found["b/0"].finished_s + 0.25, abs=1e-9)
    assert found["b/2"].arrival_s == pytest.approx(found["b/1"].finished_s + 4.0, abs=1e-9)
    begin_and_end = (("b/0", "b/2"), ("5/0", "5/0"))
    spans = [found[last].finished_s - found[first].arrival_s for first, last in begin_and_end]
    assert run["job_s"]["mean"] == pytest.approx(sum(spans) / 2)


def test_the_first_sessions_of_a_file(tmp_path: Path) -> None:
    rows = [*TALKS, turn("c", 0, [1]), turn("d", 5, [], -1)]
    path = written(tmp_path / "talk", rows)
    for limit, names in [(1, "bbb"), (2, "bbb5"), (3, "bbb5c")]:
        built = read_sessions(path, rate=1.0, seed=0, limit=limit)
        assert "".join(each.session for each in built.requests) == names
    with pytest.raises(WorkloadError, match="line 6: gap_s is -1"):
        read_sessions(path, rate=1.0, seed=0, limit=4)


def without(row: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != field}


GOOD, GOOD_TIMED = turn("a", 0, [1, 2]), timed("a", 0, 0, 2)
NEEDED = ("timestamp", "input_length", "output_length", "hash_ids", "session", "turn", "gap_s")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "not JSON: Expecting property name enclosed in double quotes: line 2 column 1 (char 2)"),
        ("[1]", "expected a JSON object, found list"),
        *[(without(GOOD, field), f"missing field '{field}'") for field in GOOD],
        (turn(True, 0, [1]), "session is True, not a string or an integer"),
        (turn(1.5, 0, [1]), "session is 1.5, not a string or an integer"),
        (turn("", 0, [1]), "session is '', no name"),
        (turn("b", "0", [1]), "turn is '0', not an integer"),
        (turn("b", -1, [1]), "turn is -1, negative"),
        (turn("b", 0, [1], -0.5), "gap_s is -0.5, outside 0..2**53 s"),
        (turn("b", 0, [1], False), "gap_s is False, not a number"),
        (turn("b", 0, [1], output_length=-1), "output_length is -1, negative"),
        (turn("b", 0, [1], tenant=3), "tenant is 3, not a string"),
        (turn("b", 0, []), "tokens is empty: an empty prompt cannot be served"),
        (turn("b", 0, "ab"), "tokens is 'ab', not a list"),
        (turn("b", 0, [1, True]), "tokens entry is True, not an integer"),
        (turn("b", 0, [1, -1]), "tokens entry is -1, negative"),
        (turn("b", 0, [2**31 - 1, 2**31]), "tokens entry is 2147483648, above 2**31 - 1"),
        (turn("a", 0, [1]), "turn 0 of session 'a' is there twice, first in line 1"),
        (turn("b", 1, [1]), "turn 1 of session 'b' is there without turn 0"),
        (turn("a", 2, [1]), "turn 2 of session 'a' is there without turn 1"),
        (GOOD_TIMED | {"turn": 1}, "missing field 'tokens'"),
    ],
    ids=lambda each: str(each)[:60],
)
def test_a_bad_turn_names_file_line_and_reason(tmp_path: Path, row: Any, reason: str) -> None:
    path = written(tmp_path / "bad", [GOOD, "", row, turn("z", 0, [1])])
    assert refused(path) == f"{path}, line 3: {reason}"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        *[(without(GOOD_TIMED, field), f"missing field '{field}'") for field in NEEDED],
        (timed("b", 0, -1, 1), "timestamp is -1, outside 0..2**53 ms"),
        (timed("b", 0, 0, 1, block_tokens=3), "block_tokens is 3, not 4"),
        (timed("b", 0, 0, 1, block_tokens=0), "block_tokens is 0, not above 0"),
        (timed("b", 0, 0, 2, hash_ids=[1]), "1 hash_ids, but input_length 7 makes 2 blocks of 4 tokens"),
        (timed("a", 0, 0, 1), "turn 0 of session 'a' is there twice, first in line 1"),
        (timed("a", 2, 0, 1), "turn 2 of session 'a' is there without turn 1"),
        (turn("a", 1, [1]), "missing field 'timestamp'"),
    ],
    ids=lambda each: str(each)[:60],
)
def test_a_bad_turn_with_a_time_names_them_too(tmp_path: Path, row: Any, reason: str) -> None:
    path = written(tmp_path / "bad", [GOOD_TIMED, row])
    assert refused(path) == f"{path}, line 2: {reason}"


@pytest.mark.skipif(not AGENTS.is_dir(), reason="no agents' sessions in shared/data next to the checkout")
def test_tool_calling_agents() -> None:
    path = AGENTS / "bfcl_multi_turn.sessions.jsonl.xz"
    built = read_sessions(path, rate=2.0, seed=42)
    assert (built.name, len(built.requests), built.arena_tokens) == ("bfcl_multi_turn", 3336, 50_000)
    assert len({each.session for each in built.requests}) == 800
    assert sum(each.after is not None for each in built.requests) == 2536
    assert sum(each.num_tokens for each in built.requests) == 17_433_397
    assert ideal_hit(built) == pytest.approx(0.985, abs=0.001)
    few = read_sessions(path, rate=2.0, seed=42, limit=60)
    run = simulate(few, "peek")
    assert run["finished"] == len(few.requests)
    assert 0.5 < run["cache_hit"] <= run["ideal_hit"]
    assert run["job_s"]["mean"] > run["e2e_s"]["mean"]


def test_what_an_event_does_not_say_is_counted_as_unknown() -> None:
    tracer = Tracer(b"salt", 1, None)
    tracer.take(Arrival("a", 1.0, [1, 2, 3]))
    tracer.take(Ending("a", 2, prompt_tokens=3))
    counts = tracer.counts
    assert (counts.requests, counts.prompt_tokens, counts.answered) == (1, 3, 1)
    assert (counts.ranked, counts.bare_times, counts.allowed) == (0, 0, 0)
    assert (counts.engine_prompt_tokens, counts.engine_cached_tokens) == (0, 0)
    tracer.take(Measured("b", 1.0, 3, 0))
    assert (counts.requests, counts.bare_times, counts.alone) == (2, 0, 1)
