"""Every form of log that is read: what is taken is what was written, and what is not taken is counted.

`tests/logs` holds what the engines' own loggers wrote for the three requests of `IDS`.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek import InvalidKey, WorkloadError
from peek.cli.reading import json_loads
from peek.offline.formats import _listed, lines_of
from peek.traffic import Arrival, Ending, Event, Measured, Reader, RequestRows, Tracer
from peek.traffic.wrapped import Unwrapping, documents

LOGS = Path(__file__).resolve().parent / "logs"

IDS = [list(range(10, 50)), list(range(10, 42)) + [7] * 8, [3, 4, 5]]
"""Two prompts that share two blocks of 16, and one of its own; the engines gave the second a LoRA adapter."""

START = 1_795_326_000
TIMES = [START + 0.25, START + 1.5, START + 3.0]
ISO = ["2026-11-22T05:40:00.250000Z", "2026-11-22T05:40:01.500000Z", "2026-11-22T05:40:03.000000Z"]
LOCAL = [each[:-1].replace("T", " ") for each in ISO]

TEXT = ["S" * 128 + "a" * 32, "S" * 128 + "b" * 32, "xyz xyz xyz"]
"""As long as `IDS` in units of four bytes, and they share as much."""

CHATS = [
    [{"role": "system", "content": "S" * 400}, {"role": "user", "content": f"{place} x" * 10}]
    for place in "abc"
]


class Read(NamedTuple):
    """What came of a log."""

    arrivals: list[Arrival | Measured]
    endings: list[Ending]
    reader: Reader
    broken: list[str]
    tracer: Tracer

    @property
    def names(self) -> set[str]:
        return {each.name for each in self.reader.formats if each.lines}

    @property
    def bare(self) -> int:
        return sum(each.bare for each in self.reader.formats)

    @property
    def shared(self) -> list[int]:
        """Blocks of 16 that each request shares with the first."""
        rows = list(self.tracer.rows(1, rate=1.0))
        pairs = [list(zip(rows[0]["hash_ids"], row["hash_ids"], strict=False)) for row in rows]
        return [next((i for i, (a, b) in enumerate(each) if a != b), len(each)) for each in pairs]


def read(*contents: str | bytes, **fields: Any) -> Read:
    """Read files."""
    reader, tracer = Reader(RequestRows(**fields), json.loads), Tracer(b"salt", None, None)
    arrivals: list[Arrival | Measured] = []
    endings: list[Ending] = []
    broken = []

    def take(events: Iterator[Event]) -> None:
        for event in events:
            tracer.take(event)
            if isinstance(event, Ending):
                endings.append(event)
            else:
                arrivals.append(event)

    for content in contents:
        raw = content if isinstance(content, bytes) else content.encode()
        for _, events in reader.file(lines_of(io.BytesIO(raw))):
            try:
                take(events)
            except (WorkloadError, InvalidKey) as error:
                broken.append(str(error))
    take(reader.rest())
    return Read(arrivals, endings, reader, broken, tracer)


# -- the forms --------------------------------------------------------------------------------------------


def jsonl(rows: Sequence[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def rows(**fields: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Three rows, each field a function of the number."""
    return [{name: make(i) for name, make in fields.items()} for i in range(3)]


def docker(text: str) -> str:
    """As Docker's json-file driver writes it: lines of more than 16 KiB in parts."""
    found = []
    for number, line in enumerate(text.splitlines(keepends=True)):
        parts = [line[at : at + 16_384] for at in range(0, len(line), 16_384)]
        at = f"2026-11-22T05:40:{number // 10:02d}.{number % 10}00000000Z"
        found += [{"log": part, "stream": "stdout", "time": at} for part in parts]
    return jsonl(found)


def cri(text: str) -> str:
    """As containerd writes it under Kubernetes: long lines in parts."""
    found = []
    for number, line in enumerate(text.splitlines()):
        parts = [line[at : at + 1000] for at in range(0, len(line), 1000)]
        marks = ["P"] * (len(parts) - 1) + ["F"]
        at = f"2026-11-22T05:40:{number:02d}.5+00:00"
        found += [f"{at} stdout {mark} {part}\n" for mark, part in zip(marks, parts, strict=True)]
    return "".join(found)


def each_line(text: str, prefix: str) -> str:
    return "".join(prefix + line for line in text.splitlines(keepends=True))


def as_csv(header: Sequence[str], cells: Sequence[Sequence[Any]]) -> str:
    stream = io.StringIO()
    csv.writer(stream).writerows([header, *cells])
    return stream.getvalue()


def old_vllm(params: str, tail: str, ids: bool = True) -> str:
    """vLLM before 0.19: one line, at level INFO."""
    told = [f"prompt: {TEXT[i]!r}, {params}, {tail.format(ids=IDS[i] if ids else None)}" for i in range(3)]
    return "".join(
        f"INFO 11-22 05:40:0{i} logger.py:39] Received request cmpl-{i}: {told[i]}.\n" for i in range(3)
    )


PARAMS = "params: SamplingParams(n=1, stop=['lora_request: x.'], max_tokens=20)"
VLLM = (LOGS / "vllm-0.32.0-debug.log").read_text()
SGLANG = (LOGS / "sglang-0.5.23-text-level3.log").read_text()
SGLANG_JSON = (LOGS / "sglang-0.5.23-json-level3.log").read_text()
CHAT_ROWS = rows(timestamp=lambda i: ISO[i], messages=lambda i: CHATS[i], max_tokens=lambda i: 20 + i)
ID_ROWS = rows(ts=lambda i: TIMES[i], prompt=lambda i: IDS[i])
HASHES = [{"timestamp": 1000 * i, "input_length": 40, "output_length": 9, "hash_ids": [1, 2, 3 + i],
           "block_tokens": 16} for i in range(3)]  # fmt: skip
LITELLM = rows(
    id=str, call_type=lambda i: "acompletion", startTime=lambda i: TIMES[i], endTime=lambda i: TIMES[i] + 9,
    messages=lambda i: CHATS[i], prompt_tokens=lambda i: 99, completion_tokens=lambda i: 5 + i,
    response=lambda i: {"usage": {"prompt_tokens": 99, "completion_tokens": 5 + i}},
)  # fmt: skip
ENVOY = rows(
    start_time=lambda i: ISO[i], method=lambda i: "POST", path=lambda i: "/v1/chat/completions",
    response_code=lambda i: 200, duration=lambda i: "812",
    request_body=lambda i: json.dumps({"model": "m", "messages": CHATS[i]}),
    response_body=lambda i: json.dumps({"usage": {"completion_tokens": 5 + i}}),
)  # fmt: skip
STREAMED = 'event: x\ndata: {"choices": []}\n\ndata: {"usage": {"completion_tokens": 7}}\n\ndata: [DONE]\n'


def tapped(i: int) -> dict[str, Any]:
    body = base64.b64encode(json.dumps({"messages": CHATS[i]}).encode()).decode()
    return {"request": {"headers": [], "body": {"as_bytes": body}}, "response": {"headers": []}}


FORMS: dict[str, tuple[str | bytes, str, list[int]]] = {
    # name: content, name of its format, blocks shared with the first request
    "vllm 0.24 debug": ((LOGS / "vllm-0.24.0-debug.log").read_text(), "vLLM's log", [3, 0, 0]),
    "vllm 0.32 debug": (VLLM, "vLLM's log", [3, 0, 0]),
    "vllm 0.32 debug, json": ((LOGS / "vllm-0.32.0-debug.json.log").read_text(), "vLLM's log", [3, 0, 0]),
    "vllm 0.33, bodies at info": ((LOGS / "vllm-0.33.0-bodies.log").read_text(), "vLLM's log", [1, 0, 0]),
    "vllm, colours": (VLLM.replace("DEBUG", "\x1b[37mDEBUG\x1b[0m"), "vLLM's log", [3, 0, 0]),
    "vllm 0.2": (old_vllm(PARAMS.replace("params: ", "sampling params: "), "prompt token ids: {ids}"), "vLLM's log", [3, 2, 0]),
    "vllm 0.4": (old_vllm(PARAMS.replace("params: ", "sampling_params: "), "prompt_token_ids: {ids}, lora_request: None"), "vLLM's log", [3, 2, 0]),
    "vllm 0.6": (old_vllm(PARAMS, "prompt_token_ids: {ids}, lora_request: None, prompt_adapter_request: None"), "vLLM's log", [3, 2, 0]),
    "vllm 0.10": (old_vllm(PARAMS, "prompt_token_ids: {ids}, prompt_embeds shape: None, lora_request: None"), "vLLM's log", [3, 2, 0]),
    "vllm 0.10, text": (old_vllm(PARAMS, "prompt_token_ids: {ids}, prompt_embeds shape: None, lora_request: None", ids=False), "vLLM's log", [3, 2, 0]),
    "vllm, docker": (docker(VLLM), "vLLM's log", [3, 0, 0]),
    "vllm, cri": (cri(VLLM), "vLLM's log", [3, 0, 0]),
    "vllm, kubectl --timestamps": (each_line(VLLM, "2026-11-22T05:40:00.123456789Z "), "vLLM's log", [3, 0, 0]),
    "vllm, kubectl --prefix": (each_line(VLLM, "[pod/vllm-0/vllm] "), "vLLM's log", [3, 0, 0]),
    "vllm, compose": (each_line(VLLM, "vllm-1  | "), "vLLM's log", [3, 0, 0]),
    "vllm, journal": (each_line(VLLM, "Nov 22 05:40:00 gpu1 vllm[99]: "), "vLLM's log", [3, 0, 0]),
    "vllm, journal as json": (jsonl([{"MESSAGE": line, "__REALTIME_TIMESTAMP": f"{START + i}000000"} for i, line in enumerate(VLLM.splitlines())]), "vLLM's log", [3, 0, 0]),
    "vllm, loki": (jsonl([{"line": line, "timestamp": f"{START + i}000000000", "labels": {}} for i, line in enumerate(VLLM.splitlines())]), "vLLM's log", [3, 0, 0]),
    "sglang text": (SGLANG, "SGLang's log", [3, 0, 0, 0]),
    "sglang json": (SGLANG_JSON, "SGLang's log", [3, 0, 0, 0]),
    "sglang json, bare": (SGLANG_JSON.replace("[2026", "\n[2026").replace("] {", "]\n{"), "SGLang's log", [3, 0, 0, 0]),
    "sglang text, docker": (docker(SGLANG), "SGLang's log", [3, 0, 0, 0]),
    "sglang json, cri": (cri(SGLANG_JSON), "SGLang's log", [3, 0, 0, 0]),
    "sglang json, kubectl --timestamps": (each_line(SGLANG_JSON, "2026-11-22T05:40:00Z "), "SGLang's log", [3, 0, 0, 0]),
    "openai chats": (jsonl(CHAT_ROWS), "requests as OpenAI's", []),
    "openai chats, byte order mark": (b"\xef\xbb\xbf" + jsonl(CHAT_ROWS).encode(), "requests as OpenAI's", []),
    "openai completions, ids": (jsonl(ID_ROWS), "requests as OpenAI's", [3, 2, 0]),
    "openai completions, text": (jsonl(rows(created=lambda i: int(TIMES[i]), prompt=lambda i: TEXT[i])), "requests as OpenAI's", [3, 2, 0]),
    "openai responses": (jsonl(rows(time=lambda i: ISO[i], input=lambda i: CHATS[i], instructions=lambda i: "x")), "requests as OpenAI's", []),
    "openai batch": (jsonl(rows(custom_id=str, method=lambda i: "POST", url=lambda i: "/v1/chat/completions", ts=lambda i: TIMES[i], body=lambda i: {"messages": CHATS[i]})), "requests as OpenAI's", []),
    "openai, docker": (docker(jsonl(CHAT_ROWS)), "requests as OpenAI's", []),
    "openai, in a message": (jsonl([{"message": json.dumps(row), "@timestamp": ISO[i], "level": "info"} for i, row in enumerate(CHAT_ROWS)]), "requests as OpenAI's", []),
    "openai, google's jsonPayload": (jsonl([{"jsonPayload": row, "timestamp": ISO[i]} for i, row in enumerate(CHAT_ROWS)]), "requests as OpenAI's", []),
    "json array": (json.dumps(ID_ROWS), "requests as OpenAI's", [3, 2, 0]),
    "json array, pretty": (json.dumps(ID_ROWS, indent=2), "requests as OpenAI's", [3, 2, 0]),
    "json objects, pretty": ("\n".join(json.dumps(row, indent=4) for row in ID_ROWS), "requests as OpenAI's", [3, 2, 0]),
    "json in an object": (json.dumps({"object": "list", "data": ID_ROWS}), "requests as OpenAI's", [3, 2, 0]),
    "anthropic messages": (jsonl(rows(ts=lambda i: TIMES[i], system=lambda i: "S" * 400, messages=lambda i: CHATS[i][1:])), "requests as Anthropic's", []),
    "anthropic batch": (jsonl(rows(custom_id=str, created_at=lambda i: ISO[i], params=lambda i: {"system": [{"type": "text", "text": "S" * 400}], "messages": CHATS[i][1:], "max_tokens": 9})), "requests as Anthropic's", []),
    "litellm": (jsonl(LITELLM), "LiteLLM's log", []),
    "litellm, spend log": (jsonl(rows(request_id=str, startTime=lambda i: LOCAL[i], proxy_server_request=lambda i: json.dumps({"messages": CHATS[i]}), completion_tokens=lambda i: 5)), "LiteLLM's log", []),
    "envoy with bodies": (jsonl(ENVOY), "an access log with bodies", []),
    "envoy with bodies, streamed": (jsonl([{**row, "response_body": STREAMED} for row in ENVOY]), "an access log with bodies", []),
    "envoy's tap": (jsonl(rows(timestamp=lambda i: ISO[i], http_buffered_trace=tapped)), "an access log with bodies", []),
    "production-stack's router with bodies": (jsonl(rows(timestamp=lambda i: LOCAL[i].replace(".", ","), level=lambda i: "INFO", request_body=lambda i: json.dumps({"messages": CHATS[i]}))), "an access log with bodies", []),
    "mooncake": (jsonl(HASHES), "Mooncake's trace", [3, 2, 2]),
    "azure 2023": (as_csv(["TIMESTAMP", "ContextTokens", "GeneratedTokens"], [[f"2023-11-16 18:15:{46 + i}.6805900", 40, 44] for i in range(3)]), "CSV", [3, 0, 0]),
    "azure 2024": (as_csv(["TIMESTAMP", "ContextTokens", "GeneratedTokens"], [[f"2024-05-12 00:00:0{i}.001096+00:00", 40, 44] for i in range(3)]), "CSV", [3, 0, 0]),
    "burstgpt": (as_csv(["Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"], [[5 * i, "ChatGPT", 40, 18, 58, "Conversation log"] for i in range(3)]), "CSV", [3, 0, 0]),
    "csv of requests": (as_csv(["timestamp", "model", "prompt", "max_tokens"], [[ISO[i], "m", TEXT[i], 20] for i in range(3)]), "CSV", [3, 2, 0]),
    "csv of chats": (as_csv(["time", "messages"], [[ISO[i], json.dumps(CHATS[i])] for i in range(3)]), "CSV", []),
}  # fmt: skip
# ruff: noqa: E501 - a row each


@pytest.mark.parametrize("form", FORMS)
def test_a_log_is_taken_whole(form: str) -> None:
    content, name, shared = FORMS[form]
    found = read(content)
    assert found.broken == []
    assert found.names - {"an access log"} == {name}
    assert found.bare == 0
    assert found.reader.unknown == (3 + 4 if form == "sglang json, bare" else 0)
    assert len(found.arrivals) == max(3, len(shared))
    times = [each.at_s for each in found.arrivals]
    assert None not in times
    assert times == sorted(times)  # type: ignore[type-var]
    span_s = times[-1] - times[0]  # type: ignore[operator]
    assert 0.0 <= span_s <= 15.0
    if shared:
        assert found.shared == shared
        first = found.arrivals[0]
        assert (first.prompt_tokens if isinstance(first, Measured) else 0) in (0, 40)
    else:
        assert min(found.shared) >= 6, "the system prompt of 400 characters"


QUOTED = "it's \"quoted\", (rid='x') text='y'\n"
PROMPTS_OF: dict[str, list[Any]] = {form: IDS for form in FORMS if form.startswith("vllm")}
PROMPTS_OF |= {form: [*IDS, QUOTED] for form in FORMS if form.startswith("sglang")}
PROMPTS_OF |= {"json array, pretty": IDS, "openai completions, ids": IDS}
PROMPTS_OF |= dict.fromkeys(["vllm 0.10, text", "openai completions, text", "csv of requests"], TEXT)
del PROMPTS_OF["vllm 0.33, bodies at info"]


@pytest.mark.parametrize("form", PROMPTS_OF)
def test_prompts_are_those_that_were_asked(form: str) -> None:
    found = read(FORMS[form][0])
    assert [each.prompt for each in found.arrivals if isinstance(each, Arrival)] == PROMPTS_OF[form]


@pytest.mark.parametrize("form", [form for form in FORMS if re.match("vllm 0.[2346]|vllm, c|sglang", form)])
def test_allowed_answers_and_adapters_are_known(form: str) -> None:
    asked = [each for each in read(FORMS[form][0]).arrivals if isinstance(each, Arrival)]
    assert [each.most_tokens for each in asked[:3]] == [20, 20, 20]
    if "0.2" not in form and "0.4" not in form and "0.6" not in form:
        assert ["en" in each.namespace for each in asked[:3]] == [False, True, False]


@pytest.mark.parametrize(
    ("form", "lengths"),
    [
        ("vllm 0.24 debug", [3, 3, 3]), ("vllm 0.32 debug", [3, 3, 3]), ("sglang text", [6, 6, 6]),
        ("sglang json, cri", [6, 6, 6]), ("litellm", [5, 6, 7]), ("envoy with bodies", [5, 6, 7]),
        ("envoy with bodies, streamed", [7, 7, 7]),
    ],
)  # fmt: skip
def test_answers_lengths_are_those_told(form: str, lengths: list[int]) -> None:
    assert [each.output_tokens for each in read(FORMS[form][0]).endings] == lengths


def test_times_of_rows_are_their_own_and_of_engines_those_around_them() -> None:
    assert [each.at_s for each in read(FORMS["openai, docker"][0]).arrivals] == pytest.approx(TIMES)
    around = [each.at_s for each in read(FORMS["vllm, journal as json"][0]).arrivals]
    assert around[0] is not None
    assert around[0] >= START


def test_parquet_and_json_are_one(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    from peek.cli.reading import read_lines

    parquet.write_table(pyarrow.Table.from_pylist(CHAT_ROWS), tmp_path / "log.parquet")
    reader = Reader(RequestRows(), json.loads)
    events = [event for _, found in reader.file(read_lines(tmp_path / "log.parquet")) for event in found]
    wanted = [*read(jsonl(CHAT_ROWS)).arrivals]
    assert [each for each in events if isinstance(each, Arrival)] == wanted


# -- what cannot be taken says why --------------------------------------------------------------------------

REFUSED: dict[str, tuple[str, str]] = {
    "vllm at info": ((LOGS / "vllm-0.32.0-info.log").read_text(), "VLLM_LOGGING_LEVEL=DEBUG"),
    "vllm without requests": ("INFO 11-22 05:40:00 [core.py:1] Initializing a V1 LLM engine\n" * 3, "--enable-log-requests"),
    "sglang at level 0, text": ((LOGS / "sglang-0.5.23-text-level0.log").read_text(), "--log-requests-level 3"),
    "sglang at level 0, json": ((LOGS / "sglang-0.5.23-json-level0.log").read_text(), "--log-requests-level 3"),
    "sglang without requests": ("[2026-11-22 05:40:00] server_args=ServerArgs(schedule_policy='lpm')\n[2026-11-22 05:40:01 TP0] Decode batch. #running-req: 3\n", "--log-requests"),
    "production-stack's router": ("[2026-11-22 05:40:00,250] \x1b[32;20mINFO:\x1b[0m Routing request a with session id None to http://e:8000 at 1795326000.25, process time = 0.0010 (request.py:600:vllm_router)\n", "the engines behind it"),
    "production-stack's router, json": (jsonl([{"timestamp": LOCAL[0], "level": "INFO", "message": "Routing request a to http://e:8000 at 1795326000.25, process time = 0.001"}]), "the engines behind it"),
    "envoy's access log": ('[2026-11-22T05:40:00.250Z] "POST /v1/chat/completions HTTP/1.1" 200 - 154 0 226 100 "10.0.35.28" "curl" "cc21" "llm" "10.0.2.1:80"\n', "log the bodies"),
    "envoy's access log, json": (jsonl([{"start_time": ISO[0], "method": "POST", "path": "/v1/messages", "response_code": 200}]), "log the bodies"),
    "uvicorn's": ('INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK\n', "log the bodies"),
    "nginx's": ('10.0.0.1 - - [22/Nov/2026:05:40:00 +0000] "POST /v1/messages HTTP/1.1" 200 15 "-" "curl"\n', "log the bodies"),
    "sessions without times": (jsonl([{"session": "s", "turn": 0, "tokens": [1], "output_length": 2, "gap_s": 0}]), "peek simulate --sessions"),
}  # fmt: skip


@pytest.mark.parametrize("form", REFUSED)
def test_a_log_without_prompts_says_what_is_missing(form: str) -> None:
    content, hint = REFUSED[form]
    found = read(content)
    assert not found.arrivals
    assert not found.reader.unknown
    assert hint in "; ".join(found.reader.hints())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (jsonl([{**LITELLM[0], "messages": "redacted-by-litellm"}]), "turn_off_message_logging"),
        (jsonl([{**LITELLM[0], "messages": [{"role": "user", "content": "redacted-by-litellm"}]}]), "turn_off_message"),
        (jsonl([{**ENVOY[0], "request_body": '{"messages": [{"role": "us'}]), "has cut it"),
        (FORMS["azure 2023"][0][:-4], "may be cut"),  # type: ignore[index]
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374\n", "2 cells for 3 columns"),
        (jsonl([{**HASHES[0], "input_length": 99}]), "3 hash_ids for 99 tokens in blocks of 16"),
    ],
)  # fmt: skip
def test_what_is_cut_or_left_out_is_refused(content: str, said: str) -> None:
    found = read(content)
    assert any(said in each for each in found.broken)
    whole = content.count("\n") - 1 if "TIMESTAMP" in content[:9] and "cut" in said else 0
    assert len(found.arrivals) == whole


@pytest.mark.parametrize("form", ["text", "json"])
def test_prompts_that_sglang_has_cut_are_counted(form: str) -> None:
    found = read((LOGS / f"sglang-0.5.23-{form}-level2.log").read_text())
    assert len(found.arrivals) == 4
    assert "has cut, left out: 1 (--log" in found.reader.cut()
    assert len(found.broken) == 1


def test_what_nobody_knows_is_counted_with_its_first_example() -> None:
    strange = ["é" * 300, "Loading: 0 %\rLoading, 9 %", "# a comment"]
    lines = VLLM.splitlines()
    mixed = "\n".join([lines[0], strange[0], *lines[1:4], strange[1], *lines[4:], strange[2]]) + "\n"
    found = read(mixed)
    assert len(found.arrivals) == 3
    assert found.reader.unknown == 3
    assert found.reader.where == 2
    assert found.reader.example.startswith("éé")
    assert len(found.reader.example.encode()) <= 200


def test_a_broken_line_is_not_counted_as_one_that_nobody_knows() -> None:
    found = read(jsonl(ID_ROWS[:1]) + '{"prompt": [1, 2\n["a list"]\n{"no": "prompt"}\nnot JSON\n')
    assert (len(found.arrivals), len(found.broken)) == (1, 3)
    assert found.reader.not_understood() == {"lines": 1, "line": 5, "first": "not JSON"}


def test_a_cell_of_csv_may_be_longer_than_python_allows() -> None:
    limit, text = csv.field_size_limit(), 'a "quoted", cell\n' * 20_000
    found = read(as_csv(["timestamp", "prompt"], [[ISO[0], text]]))
    assert found.broken == []
    assert [each.prompt for each in found.arrivals if isinstance(each, Arrival)] == [text]
    assert csv.field_size_limit() == limit


def test_a_message_that_is_empty_is_no_broken_line() -> None:
    found = read(jsonl([{"asctime": "2026-11-22 05:40:00,250", "levelname": "INFO", "message": ""}]))
    assert (found.broken, found.reader.own) == ([], 1)


def test_what_the_engine_says_of_itself() -> None:
    vllm = read(
        "INFO 11-22 05:40:00 [kv.py:1] GPU KV cache size: 458,336 tokens\nINFO 11-22 05:40:00 [api.py:2] non-default args: {'max_num_seqs': 64}\n"
    )
    assert vllm.reader.facts == type(vllm.reader.facts)("vllm", 458_336, 64)
    sglang = read(
        "[2026-11-22 05:40:00] server_args=ServerArgs(schedule_policy='lpm')\n[2026-11-22 05:40:01] max_total_num_tokens=20000, max_running_requests=48\n"
    )
    assert sglang.reader.facts == type(vllm.reader.facts)("sglang", 20_000, 48)


@pytest.mark.parametrize("size", ["100,000,001", "9" * 30, "9" * 5000])
def test_a_size_that_no_engine_has_is_not_taken(size: str) -> None:
    """Else its simulation would take all memory."""
    told = "INFO 11-22 05:40:00 [kv.py:1] GPU KV cache size: {} tokens\n"
    found = read(
        told.format("458,336")
        + told.format(size)
        + f"INFO 11-22 05:40:00 [a.py:2] {{'max_log_len': {size}}}\n"
    )
    assert found.broken == []
    assert found.reader.facts.arena_tokens == 458_336


def test_numbers_of_any_length_are_named() -> None:
    azure = as_csv(
        ["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
        [["2023-11-16 18:15:46", each, 1] for each in ("7" * 5000, "7" * 20, "000")],
    )
    long = f"{'7' * 197}..., not a whole number in 0..100000000"
    assert read(azure).broken == [
        f"a length is {long}",
        f"a length is {'7' * 20}, not a whole number in 0..100000000",
        "the prompt is empty",
    ]
    row = {"timestamp": START, "prompt": "abc", "at": [1]}
    assert read(jsonl([row]), prompt=f"at.{'7' * 5000}").broken == [f"has no 'at.{'7' * 193}..."]


# -- damage -------------------------------------------------------------------------------------------------

WHOLE = [form for form in FORMS if isinstance(FORMS[form][0], str) and form != "sglang json, bare"]
TRUE = {form: {repr((*each[2:],)) for each in read(FORMS[form][0]).arrivals} for form in WHOLE}
"""What each log holds, but for names and times."""


def is_accounted(found: Read, written: set[str], count: int) -> None:
    """All that was taken was written, and what was not taken shows."""
    for each in found.arrivals:
        assert repr((*each[2:],)) in written or isinstance(each, Arrival), each
        if isinstance(each, Arrival):
            assert any(repr(each.prompt) in one for one in written), each
            assert repr((*each[2:],)) in written or each.most_tokens == 0, each
    missing = count - len(found.arrivals)
    assert missing <= 0 or found.broken or found.bare or found.reader.unknown


@given(st.sampled_from(WHOLE), st.floats(0.0, 1.0))
def test_a_log_that_is_cut_off_holds_a_part_of_what_was_written(form: str, part: float) -> None:
    content = FORMS[form][0]
    assert isinstance(content, str)
    kept = content[: round(part * len(content))]
    found = read(kept)
    written = TRUE[form]
    begun = len(read(kept[: kept.rfind("\n") + 1]).arrivals) if "\n" in kept else 0
    is_accounted(found, written, begun)


@given(
    st.sampled_from([form for form in WHOLE if form.startswith(("vllm", "sglang"))]),
    st.integers(0, 10**6),
    st.integers(1, 400),
)
def test_a_hole_in_an_engines_log_makes_no_other_request(form: str, at: int, size: int) -> None:
    """Bytes are lost with an end of line, as when two processes write one file.

    A hole from one prompt into another makes a third, which no reader can tell from a whole one.
    """
    content = FORMS[form][0]
    assert isinstance(content, str)
    at %= len(content)
    ends = "0123456789, []'" + "Sabxyz" * ("text" in form)
    inside = set(content[at - 1 : at] + content[at + size : at + size + 1]) <= set(ends)
    if "\n" in content[at : at + size] and not inside:
        found = read(content[:at] + content[at + size :])
        for each in found.arrivals:
            assert isinstance(each, Arrival)
            assert any(repr(each.prompt) in one for one in TRUE[form]), each


@given(st.lists(st.sampled_from(WHOLE), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_mixed_logs_are_read_line_by_line(forms: list[str], rnd: Any) -> None:
    not_by_line = "csv|azure|burst|json (array|obj)|json in"
    forms = [each for each in dict.fromkeys(forms) if not re.search(not_by_line, each)]
    queues = [str(FORMS[form][0]).splitlines(keepends=True) for form in forms]
    count = sum(len(read(FORMS[form][0]).arrivals) for form in forms)
    mixed = []
    while any(queues):
        queue = rnd.choice([each for each in queues if each])
        mixed.append(queue.pop(0))
    found = read("".join(line if line.endswith("\n") else line + "\n" for line in mixed))
    written: set[str] = set().union(*(TRUE[form] for form in forms))
    is_accounted(found, written, 0)
    if len({name for name in ("docker", "cri", "journal") if any(name in form for form in forms)}) < 2:
        assert len(found.arrivals) + found.bare + len(found.broken) >= count or found.reader.unknown


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([4], "4"), ([1, 2, 3], "1, 2, 3"), ([1, 2, 3, 4], "1, 2, 3 and 1 more"),
        (list(range(9)), "0, 1, 2 and 6 more"),
    ],
)  # fmt: skip
def test_a_few_of_many_lines_are_named(lines: list[int], said: str) -> None:
    assert _listed(lines) == said


def test_what_a_line_need_not_say() -> None:
    arrival = Arrival("a", None, "prompt")
    assert (arrival.namespace, arrival.tenant) == ("", "")
    assert (arrival.most_tokens, arrival.is_bare, arrival.priority) == (0, False, 0)


def test_requests_alone_say_which_engine_it_was() -> None:
    calls = [line for line in SGLANG.splitlines() if "Receive: " in line or "Finish: " in line]
    assert read("\n".join(calls)).reader.facts.engine == "sglang"


@pytest.mark.parametrize(
    ("around", "at_s"),
    [
        ("2026-11-22T05:40:01.25Z {}", 1.25),
        ("[2026-11-22 05:40:02.5 TP0] {}", 2.5),
        ("2026-11-22T05:40:03.5Z stdout F {}", 3.5),
        ("[pod/a-7/engine] {}", None),
        ("engine-1  | {}", None),
    ],
)
def test_what_stands_before_a_line_tells_its_time(around: str, at_s: float | None) -> None:
    line = around.format('{"prompt": "x"}').encode()
    (inner,) = Unwrapping(json.loads).lines(line)
    assert inner.row == {"prompt": "x"}
    began = datetime(2026, 11, 22, 5, 40, tzinfo=timezone.utc).timestamp()
    assert inner.at_s == (None if at_s is None else began + at_s)


def test_two_old_lines_that_became_one_are_taken_for_neither() -> None:
    """The hole is in the parameters of the first, so that all else of it looks whole."""
    first, second = old_vllm(
        "params: SamplingParams(n=1)", "prompt_token_ids: {ids}, lora_request: None"
    ).splitlines()[:2]
    hole = second[second.index("Received request") :]
    line = first.replace("SamplingParams(n=1)", f"SamplingParams(n={hole}")
    assert read(f"{line}\n{first}\n").arrivals == read(f"{first}\n").arrivals != []


@pytest.mark.parametrize(
    ("header", "fields", "at_s"),
    [
        (("", "when", "question", "tokens"), {"time": "when", "prompt": "question"}, TIMES[0]),
        (("id", "Timestamp", "Question", "n"), {"time": "Timestamp", "prompt": "Question"}, TIMES[0]),
        (("", "when", "messages", "n"), {"time": "when"}, TIMES[0]),
        (("", "made", "prompt", "n"), {}, None),  # for --rate
    ],
)
def test_columns_of_csv_may_have_any_name(
    header: tuple[str, ...], fields: dict[str, str], at_s: float | None
) -> None:
    asked = json.dumps(CHATS[0]) if "messages" in header else TEXT[0]
    found = read(as_csv(header, [("7", ISO[0], asked, "9")]), **fields, output=header[3])
    assert [each.at_s for each in found.arrivals] == [at_s]
    assert [each.output_tokens for each in found.endings] == [9]
    assert found.names == {"CSV"}


def test_words_between_commas_are_no_header() -> None:
    found = read("started\nloaded id, prompt, output\n\nid,,output\na, b, c\n", prompt="", time="")
    assert (found.reader.unknown, found.broken) == (4, [])


@pytest.mark.parametrize("prompt", ["[INST] Who? [/INST]", "{name}, who?", "[1, 2", "{"])
def test_a_cell_with_a_bracket_may_be_text(prompt: str) -> None:
    found = read(as_csv(("timestamp", "prompt"), [(ISO[0], prompt), (ISO[1], "[1, 2]")]))
    assert [each.prompt for each in found.arrivals] == [prompt, [1, 2]]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["messages", "body"])
def test_a_cell_that_is_cut_is_named(name: str) -> None:
    whole = json.dumps({"messages": CHATS[0], "body": {"messages": CHATS[0]}}[name])
    found = read(as_csv(("timestamp", name), [(ISO[0], whole), (ISO[1], whole[:-9])]))
    assert [len(found.arrivals), len(found.broken)] == [1, 1]


def test_a_cell_may_have_line_ends() -> None:
    prompts = ['one\n\ntwo, "three"', "four", "five\r\nsix"]
    found = read(as_csv(["timestamp", "prompt"], [[START + i, text] for i, text in enumerate(prompts)]))
    assert [each.prompt for each in found.arrivals] == prompts
    assert not found.broken
    cut = read('timestamp,prompt\n1795326000,"one"\n1795326001,"two\nthree\n')
    assert [each.prompt for each in cut.arrivals] == ["one"]
    assert len(cut.broken) == 1


def test_a_cut_prompt_is_one_broken_line_whatever_it_quotes() -> None:
    said = 'He said "no}" and "[yes". ' * 20_000
    rows = json.dumps([{"timestamp": START, "prompt": said}] * 2).replace("}, {", "},\n{")
    found = read("[\n" + rows[1:-60])
    assert [len(found.arrivals), len(found.broken)] == [1, 1]
    spoken = said + "it's"
    line = f"[2026-11-22 05:40:00] Receive: obj=GenerateReqInput(rid='x', text={spoken!r}, "
    assert len(read(line[:-60]).broken) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda method, path: {"request": f"{method} {path} HTTP/1.1", "status": 200},  # nginx
        lambda method, path: {"request": {"method": method, "uri": path}, "status": 200},  # Caddy
        lambda method, path: {"method": method, "path": path, "duration": 7},  # Envoy
    ],
)
def test_a_call_without_a_body_is_no_broken_line(call: Callable[[str, str], dict[str, Any]]) -> None:
    """As checks of health between requests whose bodies are logged."""
    asked = {"request_body": json.dumps({"prompt": TEXT[0]}), "timestamp": ISO[0]}
    health = {**call("GET", "/health"), "timestamp": ISO[1], "request_body": ""}
    found = read(jsonl([health, {**call("POST", "/v1/completions"), **asked}, health]))
    assert [each.prompt for each in found.arrivals] == [TEXT[0]]  # type: ignore[union-attr]
    assert (found.broken, found.reader.own) == ([], 2)
    found = read(jsonl([call("POST", "/v1/completions"), call("GET", "/health")]))
    assert (found.bare, found.broken, found.arrivals) == (1, [], [])
    assert "an access log has no prompts" in found.reader.hints()[0]


@pytest.mark.parametrize("duration", ["time", "request_time", "start_time"])
@pytest.mark.parametrize("dated", ["ts", "time_local", "time_iso8601", "msec"])
def test_a_duration_is_not_taken_for_the_time_beside_it(duration: str, dated: str) -> None:
    """As nginx has them: `request_time` is the seconds that a request took."""
    at = {
        "ts": START,
        "time_local": "22/Nov/2026:05:40:00 +0000",
        "time_iso8601": "2026-11-22T05:40:00+00:00",
        "msec": f"{START}.000",
    }
    asked = {"request_body": json.dumps({"prompt": TEXT[0]}), duration: 0.5}
    (only,) = read(jsonl([{**asked, dated: at[dated]}])).arrivals
    assert (only.at_s, only.is_bare) == (START, False)
    (bare,) = read(jsonl([asked])).arrivals
    assert (bare.at_s, bare.is_bare) == (0.5, True)


def test_several_prompts_are_as_many_requests() -> None:
    row = {"timestamp": START, "prompt": ["abcdefgh", "abcdxxxx"], "usage": {"completion_tokens": 9}}
    tokens = {"timestamp": START, "input": [[1, 2, 3], [1, 2, 4]]}
    found = read(jsonl([row, tokens]))
    assert [each.prompt for each in found.arrivals] == ["abcdefgh", "abcdxxxx", [1, 2, 3], [1, 2, 4]]
    assert [each.output_tokens for each in found.endings] == [5, 5, 0, 0]
    assert len({each.name for each in found.arrivals}) == 4
    assert sum(each.requests for each in found.reader.formats) == found.tracer.counts.requests == 4


@pytest.mark.parametrize("name", ["data", "results", "items", "logs"])
@pytest.mark.parametrize("place", ["", "body", "request"])
def test_a_request_with_a_list_beside_it_is_no_export(name: str, place: str) -> None:
    beside = {"timestamp": START, name: [{"text": "the answer"}]}
    row = {**beside, place: {"prompt": TEXT[0]}} if place else {**beside, "prompt": TEXT[0]}
    found = read(jsonl([row, row]))
    assert [each.prompt for each in found.arrivals] == [TEXT[0]] * 2  # type: ignore[union-attr]
    assert found.broken == []
    assert len(read(jsonl([{"request": {"url": "/export"}, name: [row, row, row]}])).arrivals) == 3


@pytest.mark.parametrize(
    ("place", "body"),
    [
        ("body", {"prompt": TEXT[0]}),
        ("request", {"body": {"prompt": TEXT[0]}}),
        ("request_body", json.dumps({"prompt": TEXT[0]})),
        ("params", {"prompt": TEXT[0]}),
    ],
)
def test_a_loggers_message_beside_a_request_is_not_the_line(place: str, body: Any) -> None:
    row = {"timestamp": ISO[0], "level": "info", "message": "POST /v1/completions", place: body}
    found = read(jsonl([row]))
    assert [each.prompt for each in found.arrivals] == [TEXT[0]]  # type: ignore[union-attr]
    assert found.reader.unknown == 0


@pytest.mark.parametrize("asked", [{"prompt": TEXT[0]}, {"request_body": json.dumps({"prompt": TEXT[0]})}])
@pytest.mark.parametrize("name", ["request", "body"])
def test_a_field_without_a_prompt_does_not_hide_the_request(name: str, asked: dict[str, Any]) -> None:
    found = read(jsonl([{"timestamp": START, name: {"method": "POST", "id": 7}, **asked}]))
    assert [each.prompt for each in found.arrivals] == [TEXT[0]]  # type: ignore[union-attr]


EXPORTS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "aws logs filter-log-events": lambda events: json.dumps({"events": events}, indent=4),
    "elasticdump": lambda events: jsonl([{"_index": "logs", "_source": event} for event in events]),
    "a search of Elastic": lambda events: json.dumps(
        {"took": 5, "hits": {"total": 9, "hits": [{"_id": "x", "_source": event} for event in events]}}
    ),
    "gcloud logging read": lambda events: json.dumps([{"jsonPayload": event} for event in events], indent=2),
}


@pytest.mark.parametrize("export", EXPORTS)
def test_lines_of_an_export_are_unwrapped(export: str) -> None:
    lines = (LOGS / "vllm-0.32.0-debug.log").read_text().splitlines()
    events = [
        {"logStreamName": "s", "timestamp": 1000 * START + at, "message": line, "eventId": "7"}
        for at, line in enumerate(lines)
    ]
    plain, found = read("\n".join(lines)), read(EXPORTS[export](events))
    assert found.broken == []
    assert [each.prompt for each in found.arrivals] == IDS  # type: ignore[union-attr]
    assert len(found.endings) == len(plain.endings)
    assert all(START <= (each.at_s or 0.0) < START + 9 for each in found.arrivals)


@pytest.mark.parametrize("whole", ["%s", '{"data": %s}'])
def test_a_row_costs_no_more_for_the_many_on_its_line(whole: str) -> None:
    """A copy of the line, or a search in it, for each of them would take minutes."""
    rows = [{"level": "info", "note": "nothing"}] * 60_000 + [{"timestamp": START, "prompt": "x"}]
    found = read(whole % json.dumps(rows))
    assert [len(found.arrivals), len(found.broken)] == [1, 60_000]


def test_a_bad_row_of_an_export_costs_itself_only() -> None:
    good, bad = {"timestamp": START, "prompt": "x"}, {"timestamp": "soon", "prompt": "y"}
    found = read(json.dumps({"data": [good, bad, good, bad, good]}))
    assert [each.prompt for each in found.arrivals] == ["x", "x", "x"]
    assert len(found.broken) == 2


@pytest.mark.parametrize(("cached", "known"), [(0, 0), (40, 40), (41, -1), (-1, -1), (True, -1), ("5", -1)])
def test_no_more_than_the_prompt_was_cached(cached: object, known: int) -> None:
    usage = {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": cached}}
    (ending,) = read(jsonl([{"timestamp": START, "prompt": "x", "usage": usage}])).endings
    assert ending.cached_tokens == known


def test_another_sender_with_the_same_name_for_times_is_not_litellm() -> None:
    """As Langfuse exports what it observed."""
    row = {"type": "GENERATION", "traceId": "t", "startTime": ISO[0], "modelParameters": {"max_tokens": 9}}
    assert read(jsonl([{**row, "input": CHATS[0]}])).names == {"requests as OpenAI's"}
    found = read(jsonl([{**row, "input": {"chat": CHATS[0]}}]))
    assert found.broken == ["input is neither text nor token ids"]
    assert found.reader.hints() == []


def test_messages_may_be_written_as_text() -> None:
    plain = read(jsonl([{"startTime": ISO[0], "messages": CHATS[0]}]))
    found = read(jsonl([{"startTime": ISO[0], "messages": json.dumps(CHATS[0])}]))
    assert found.arrivals == plain.arrivals
    assert found.names == {"LiteLLM's log"}


def test_what_anthropic_says_of_its_cache() -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 60}
    row = {"timestamp": START, "system": "S", "messages": CHATS[0], "response": {"usage": usage}}
    (ending,) = read(jsonl([row])).endings
    assert (ending.prompt_tokens, ending.cached_tokens) == (100, 30)


@pytest.mark.parametrize("text", ["\\ud800 cut in the middle of a sign", "x"])
def test_what_a_strict_parser_refuses_is_read(text: str, tmp_path: Path) -> None:
    line = f'{{"timestamp": 1795326000, "score": NaN, "prompt": "{text}"}}'
    row = json_loads()(line.encode())
    assert row["prompt"] == json.loads(line)["prompt"]
    assert len(read(line + "\n").arrivals) == 1


def test_an_image_counts_as_one_whatever_its_size() -> None:
    def asked(image: bytes) -> dict[str, Any]:
        url = {"url": "data:image/png;base64," + base64.b64encode(image).decode()}
        content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": url}]
        return {"timestamp": START, "messages": [{"role": "user", "content": content}]}

    one, again, other = read(jsonl([asked(b"a" * 9000), asked(b"a" * 9000), asked(b"b" * 90000)])).arrivals
    assert one.prompt == again.prompt != other.prompt
    assert len(one.prompt) == len(other.prompt)
    assert 4 * 576 < len(one.prompt) < 4 * 620


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.com/NAME.png", "detail": "high"}},
        {"type": "image_url", "image_url": {"detail": "low", "url": "https://example.com/NAME.png"}},
        {"type": "input_image", "image_url": "https://example.com/NAME.png"},
        {"type": "video_url", "video_url": {"url": "https://example.com/NAME.mp4"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,NAME"}},
    ],
)
def test_an_image_with_an_address_counts_as_one(part: dict[str, Any]) -> None:
    def asked(name: str) -> dict[str, Any]:
        image = json.loads(json.dumps(part).replace("NAME", name))
        content = [{"type": "text", "text": "Look at https://example.com."}, image]
        return {"timestamp": START, "messages": [{"role": "user", "content": content}]}

    one, again, other = (each.prompt for each in read(jsonl(map(asked, "aab"))).arrivals)  # type: ignore
    assert one == again != other
    assert 4 * 576 < len(one) == len(other) < 4 * 620


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "NAME" * 100},
        {"type": "function_call_output", "call_id": "c", "output": "NAME" * 100},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "NAME" * 100}]},
    ],
)
def test_calls_and_their_results_are_part_of_the_prompt(item: dict[str, Any]) -> None:
    """In the Responses API they are items of their own, without a role."""
    asked = [{"role": "user", "content": "q"}, item, {"role": "user", "content": "r"}]
    row = json.dumps({"timestamp": START, "input": asked})
    texts = [row.replace("NAME", name) + "\n" for name in ("sunny", "rainy")]
    one, other = (each.prompt for each in read("".join(texts)).arrivals)  # type: ignore[union-attr]
    assert one != other
    assert len(one) == len(other) > 500


ARRAYS: dict[str, Callable[[list[str]], str]] = {
    "a row to a line": lambda rows: "[\n" + ",\n".join(rows) + "\n]\n",
    "the first with its bracket": lambda rows: "[" + ",\n".join(rows) + "]",
    "pretty": lambda rows: "[\n" + indent(",\n".join(rows), "  ") + "\n]",
    "no array": "\n".join,
}


@pytest.mark.parametrize("shape", ARRAYS)
@pytest.mark.parametrize("damage", ["a brace too few", "a brace too many"])
@given(
    inner=st.lists(st.lists(st.just({"text": "}]{["}), max_size=2), min_size=3, max_size=6), data=st.data()
)
def test_a_damaged_object_hides_no_other(
    shape: str, damage: str, inner: list[list[Any]], data: st.DataObject
) -> None:
    spaces = None if shape == "a row to a line" else 2
    rows = [json.dumps({"n": at, "inner": each}, indent=spaces) for at, each in enumerate(inner)]
    broken = data.draw(st.integers(1, len(rows) - 1), "broken")
    is_whole = damage == "a brace too many"
    rows[broken] = rows[broken] + "}" if is_whole else rows[broken][:-1]
    found = []
    for line in documents(lines_of(io.BytesIO(ARRAYS[shape](rows).encode()))):
        with suppress(ValueError):
            found.append(json.loads(line.content))
    whole = [each["n"] for each in found if isinstance(each, dict) and "n" in each]
    assert whole == [n for n in range(len(rows)) if n != broken or is_whole]
