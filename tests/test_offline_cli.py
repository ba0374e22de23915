"""`peek reorder` and `peek restore` from outside: files, exit codes, bad lines, a killed process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batch_files import chat_rows, json_row, json_rows, lines, results_of, write
from support.fixtures import Capsys, Patch
from support.offline_batches import naive_order, own

import peek
from peek.cli.main import main
from peek.cli.options import beside, numbered
from peek.offline.formats import parse_request, request_of, text_symbols

HOME = Path(peek.__file__).resolve().parent.parent


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
@pytest.mark.parametrize("make", [json_rows, chat_rows])
def test_there_and_back(tmp_path: Path, suffix: str, make: Any) -> None:
    rows = make()
    source, target = write(tmp_path / f"in{suffix}", rows), tmp_path / f"out{suffix}"
    assert main(["reorder", str(source), str(target), "--cache-tokens", "1000"]) == 0
    written = lines(target)
    assert written != rows
    assert sorted(written) == sorted(rows)
    results = results_of(written)
    random.Random(0).shuffle(results)  # runners do not keep the order
    done = write(tmp_path / f"results{suffix}", results)
    restored = tmp_path / "restored.jsonl"
    assert main(["restore", str(done), str(restored), "--order", str(tmp_path / "out.order")]) == 0
    assert lines(restored) == results_of(rows)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        [source.name, target.name, "out.order", done.name, restored.name]
    )


def test_order_is_that_of_the_tokens(tmp_path: Path) -> None:
    rows = json_rows()
    source = write(tmp_path / "in.jsonl", rows)
    assert main(["reorder", str(source), str(tmp_path / "out.jsonl"), "--cache-tokens", "1000"]) == 0
    prompts = [json.loads(each)["body"]["prompt"] for each in rows]
    blocks = [[tuple(p[i : i + 16]) for i in range(0, len(p), 16)] for p in prompts]
    assert lines(tmp_path / "out.jsonl") == [rows[i] for i in naive_order(blocks)]


def test_replicas(tmp_path: Path) -> None:
    rows = json_rows(900)
    source = write(tmp_path / "in.jsonl", rows)
    arguments = ["--cache-tokens", "1000", "--replicas", "3"]
    assert main(["reorder", str(source), str(tmp_path / "out.jsonl"), *arguments]) == 0
    parts = [lines(tmp_path / f"out.{i}.jsonl") for i in range(3)]
    assert sorted(chain.from_iterable(parts)) == sorted(rows)
    order = [json.loads(line) for line in lines(tmp_path / "out.order")]
    assert [rows[number - 1] for number, _ in order] == list(chain.from_iterable(parts))


def test_explain(tmp_path: Path, capsys: Capsys) -> None:
    source = write(tmp_path / "in.jsonl", json_rows())
    out = str(tmp_path / "out.jsonl")
    assert main(["reorder", str(source), out, "--cache-tokens", "1000", "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "300 requests, 86,400 tokens" in shown
    assert "12 groups with 300 requests; 0 share nothing" in shown
    assert "requests share 256 tokens" in shown
    assert "\nreordered\n" in shown
    assert main(["reorder", str(source), out, "--explain", "--cache-tokens", "1000000"]) == 0
    assert "guard: gain" in capsys.readouterr().out
    assert lines(tmp_path / "out.jsonl") == lines(source)


def test_tokenizer(tmp_path: Path, capsys: Capsys) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    rows = chat_rows()
    source = write(tmp_path / "in.jsonl", rows)
    model = tokenizers.models.WordLevel({"[UNK]": 0, "<": 1, "system": 2, "question": 3}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for place in (tmp_path, tmp_path / "tokenizer.json"):
        arguments = ["--tokenizer", str(place), "--explain", "--cache-tokens", "300"]
        assert main(["reorder", str(source), str(tmp_path / "out.jsonl"), *arguments]) == 0
        n = sum(len(tokenizer.encode(text(each)).ids) for each in rows)
        assert f"200 requests, {n:,} tokens" in capsys.readouterr().out
    (tmp_path / "bad.json").write_text("{}")
    for bad in ("bad.json", "absent.json"):
        arguments = ["--tokenizer", str(tmp_path / bad)]
        assert main(["reorder", str(source), str(tmp_path / "out.jsonl"), *arguments]) == 1
        assert bad in capsys.readouterr().err


def test_tokenizer_of_mistral(tmp_path: Path, capsys: Capsys) -> None:
    package = pytest.importorskip("mistral_common", reason="needs mistral-common")
    found = sorted(Path(package.__file__).parent.glob("data/tekken*.json"))
    if not found:
        pytest.skip("this mistral-common brings no tokenizer along")
    source = write(tmp_path / "in.jsonl", chat_rows())
    arguments = ["--tokenizer", str(found[0]), "--explain", "--cache-tokens", "3000"]
    assert main(["reorder", str(source), str(tmp_path / "out.jsonl"), *arguments]) == 0
    shown = capsys.readouterr().out
    assert "groups with 200 requests; 0 share nothing" in shown
    assert "\nreordered\n" in shown


def text(line: str) -> str:
    prompt = parse_request(line.encode(), json.loads).prompt
    assert isinstance(prompt, str)
    return prompt


# -- lines ------------------------------------------------------------------------------------------------

BAD = [
    ("{", "not valid JSON"),
    ("[1]", "list"),
    ('{"custom_id": 7, "body": {"prompt": "x"}}', "custom_id is 7"),
    ('{"body": 1}', "body"),
    ('{"body": {"model": "m"}}', "none of messages, prompt, input"),
    ('{"body": {"messages": []}}', "messages"),
    ('{"body": {"messages": [1]}}', "a message is 1"),
    ('{"body": {"prompt": ""}}', "empty"),
    ('{"body": {"prompt": [1, null]}}', "symbol 1 is None"),
    ('{"body": {"prompt": ["a", 1]}}', "prompt is neither"),
    ('{"body": {"prompt": [1, -5]}}', "-5"),
]


@pytest.mark.parametrize("way", ["--in-memory", "--out-of-core"])
@pytest.mark.parametrize(("line", "reason"), BAD)
def test_bad_lines_are_named_and_the_rest_is_done(
    tmp_path: Path, capsys: Capsys, line: str, reason: str, way: str
) -> None:
    if way == "--out-of-core":
        pytest.importorskip("duckdb")
    good = json_rows(40)
    source = write(tmp_path / "in.jsonl", [*good[:6], line, "", *good[6:]])
    arguments = ["--cache-tokens", "1000", way]
    assert main(["reorder", str(source), str(tmp_path / "out.jsonl"), *arguments]) == 1
    first, last = capsys.readouterr().err.splitlines()
    assert "line 7: " in first
    assert reason in first
    assert "1 bad line left out" in last
    assert sorted(lines(tmp_path / "out.jsonl")) == sorted(good)
    order = [json.loads(each)[0] for each in lines(tmp_path / "out.order")]
    assert sorted(order) == [1, 2, 3, 4, 5, 6, *range(9, 43)]


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"prompt": "abc"}, "abc"),
        ({"prompt": [1, 2]}, [1, 2]),
        ({"prompt": ["a", "b"]}, "a\nb"),
        ({"prompt": [[1, 2], [3]]}, [1, 2, 3]),
        ({"input": "embed me"}, "embed me"),
        ({"input": [1, 2]}, [1, 2]),
        (
            {"input": [{"role": "user", "content": "hi"}], "instructions": "be kind"},
            "<system>\nbe kind\n<user>\nhi",
        ),
        ({"input": "hi", "instructions": "be kind"}, "<system>\nbe kind\nhi"),
        ({"prompt_token_ids": [1, 2], "system": "of a log"}, [1, 2]),
        ({"messages": [{"role": "user", "content": "hi"}], "system": {"host": "a"}}, "<user>\nhi"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}, "<user>\nhi"),
    ],
)
def test_prompts(body: dict[str, Any], prompt: object) -> None:
    assert parse_request(json_row(0, {"model": "m", **body}).encode(), json.loads).prompt == prompt


TEXTS = st.text("ab \n", min_size=1, max_size=9)
CHATS = st.lists(st.builds(lambda text: {"role": "user", "content": text}, TEXTS), min_size=1, max_size=3)
TOOLS = st.sampled_from([{}, {"tools": [{"name": "f"}]}])


@given(system=TEXTS, chat=CHATS, tools=TOOLS, at=st.integers(0, 9))
def test_a_system_prompt_is_one_message_wherever_it_stands(
    system: str, chat: list[dict[str, Any]], tools: dict[str, Any], at: int
) -> None:
    """Anthropic's servers and OpenAI's make a system message of the field, be it text or blocks."""

    def prompt(**body: Any) -> tuple[Any, str]:
        rows = [{"custom_id": "r", place: {"model": "m", **tools, **body}} for place in ("body", "params")]
        first, second = (parse_request(json.dumps(row).encode(), json.loads) for row in rows)
        assert first == second
        return first.prompt, first.system

    blocks = [{"type": "text", "text": part, "cache_control": {}} for part in (system[:at], system[at:])]
    wanted = prompt(messages=[{"role": "system", "content": system}, *chat])
    assert prompt(messages=chat, system=system) == prompt(messages=chat, system=blocks)
    assert prompt(messages=chat, system=system)[0] == wanted[0]
    assert prompt(messages=chat, system=system)[1] == wanted[1] + "\n"
    assert prompt(input=chat, instructions=system)[0] == wanted[0]


SALTS = st.fixed_dictionaries(
    {},
    optional={
        name: st.sampled_from(["", "a", "b"]) for name in ("model", "cache_salt", "extra_key", "lora_path")
    },
)


@given(one=SALTS, two=SALTS)
def test_namespaces_are_equal_where_model_and_salts_are(one: dict[str, str], two: dict[str, str]) -> None:
    found = [request_of({"body": {"prompt": "x", **body}}).namespace for body in (one, two)]
    bare = [{name: value for name, value in body.items() if value} for body in (one, two)]
    assert (found[0] == found[1]) == (bare[0] == bare[1])


def test_params_of_sampling_are_no_request() -> None:
    row = {"prompt": "of the row", "params": {"temperature": 0.0}}
    assert request_of(row).prompt == "of the row"


def anthropic_rows(count: int = 200) -> list[str]:
    """Chats under ten system prompts of 2,000 characters, as a batch for Anthropic's API."""
    return [
        json.dumps({
            "custom_id": f"r{i}",
            "params": {
                "model": "m",
                "max_tokens": 9,
                "system": [{"type": "text", "text": f"{i % 10}" * 2000}],
                "messages": [{"role": "user", "content": f"question {i}"}],
            },
        })
        for i in range(count)
    ]  # fmt: skip


def test_a_batch_for_anthropic_there_and_back(tmp_path: Path, capsys: Capsys) -> None:
    rows = anthropic_rows()
    source, target = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    assert main(["reorder", str(source), str(target), "--cache-tokens", "2000", "--explain"]) == 0
    assert "10 groups with 200 requests; 0 share nothing" in capsys.readouterr().out
    written = lines(target)
    systems = [json.loads(row)["params"]["system"][0]["text"][0] for row in written]
    assert sum(a != b for a, b in pairwise(systems)) == 9, "a system prompt each, one behind the other"
    answers = [json.dumps({"custom_id": json.loads(row)["custom_id"], "result": {}}) for row in written]
    done, restored = write(tmp_path / "results.jsonl", answers), tmp_path / "restored.jsonl"
    assert main(["restore", str(done), str(restored), "--order", str(tmp_path / "out.order")]) == 0
    assert [json.loads(row)["custom_id"] for row in lines(restored)] == [f"r{i}" for i in range(200)]


@pytest.mark.parametrize("way", ["--in-memory", "--out-of-core"])
def test_salts_share_nothing(tmp_path: Path, capsys: Capsys, way: str) -> None:
    """Two salts in turns under one prompt are two groups: put apart, or each evicts the other's."""
    if way == "--out-of-core":
        pytest.importorskip("duckdb", reason="needs the extra peek-kv[offline]")
    rows = [json_row(i, {"prompt": "x" * 6000 + f"{i}", "cache_salt": "ab"[i % 2]}) for i in range(40)]
    source, target = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    assert main(["reorder", str(source), str(target), "--cache-tokens", "1600", way]) == 0
    salts = [json.loads(row)["body"]["cache_salt"] for row in lines(target)]
    assert salts in (["a"] * 20 + ["b"] * 20, ["b"] * 20 + ["a"] * 20)


def test_text_without_a_tokenizer() -> None:
    assert text_symbols("abcd") == b"abcd"
    assert text_symbols("äb") == b"\xc3\xa4b\0"
    assert text_symbols("\ud800")


def test_models_share_nothing(tmp_path: Path, capsys: Capsys) -> None:
    prompt = own(random.Random(0), 64)
    rows = [json_row(i, {"model": f"m{i}", "prompt": prompt}) for i in range(4)]
    source = write(tmp_path / "in.jsonl", rows)
    assert main(["reorder", str(source), str(tmp_path / "out.jsonl"), "--explain"]) == 0
    assert "guard: no-sharing" in capsys.readouterr().out


# -- restoring --------------------------------------------------------------------------------------------


def reordered(folder: Path) -> tuple[list[str], list[str], list[str]]:
    rows = json_rows(60)
    source = write(folder / "in.jsonl", rows)
    assert main(["reorder", str(source), str(folder / "out.jsonl"), "--cache-tokens", "500"]) == 0
    order = ["--order", str(folder / "out.order")]
    return rows, lines(folder / "out.jsonl"), order


def test_restore_by_position_is_asked_for(tmp_path: Path, capsys: Capsys) -> None:
    """The requests have ids, so results without any may be in any order."""
    rows, written, order = reordered(tmp_path)
    done = write(tmp_path / "done.jsonl", [json.dumps(len(each)) for each in written])
    words = ["restore", str(done), str(tmp_path / "back.jsonl"), *order]
    assert main(words) == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(
        f"peek: {done}: no result has a custom_id, though the requests have: --by-position"
    )
    assert not (tmp_path / "back.jsonl").exists()
    assert main([*words, "--by-position"]) == 0
    assert lines(tmp_path / "back.jsonl") == [json.dumps(len(each)) for each in rows]


def test_ids_count_where_there_are_any(tmp_path: Path) -> None:
    rows, written, order = reordered(tmp_path)
    done = write(tmp_path / "done.jsonl", results_of(written)[::-1])
    assert main(["restore", str(done), str(tmp_path / "back.jsonl"), *order, "--by-position"]) == 0
    assert lines(tmp_path / "back.jsonl") == results_of(rows)


def test_restore_names_what_has_no_match(tmp_path: Path, capsys: Capsys) -> None:
    rows, written, order = reordered(tmp_path)
    results = results_of(written)
    stray = json.dumps({"custom_id": "stray"})
    missing = json.loads(results[3])["custom_id"]
    done = write(tmp_path / "done.jsonl", [*results[:3], *results[4:], stray])
    assert main(["restore", str(done), str(tmp_path / "back.jsonl"), *order]) == 1
    shown = capsys.readouterr().err
    assert "'stray'" in shown
    assert repr(missing) in shown
    assert lines(tmp_path / "back.jsonl") == [r for r in results_of(rows) if missing not in r.split('"')]


@pytest.mark.parametrize(
    ("done", "order"), [(["{"], ['[1, "a"]']), (["1", "2"], ['[1, "a"]']), (["1"], ["x"]), (["1"], ["[1]"])]
)
def test_restore_refuses(tmp_path: Path, capsys: Capsys, done: list[str], order: list[str]) -> None:
    results, where = write(tmp_path / "done.jsonl", done), write(tmp_path / "x.order", order)
    assert main(["restore", str(results), str(tmp_path / "back.jsonl"), "--order", str(where)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "back.jsonl").exists()


# -- what can go wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("duckdb", ["in.jsonl", "out.jsonl", "--out-of-core"], "offline"),
        ("zstandard", ["in.jsonl", "out.jsonl.zst"], "offline"),
        ("tokenizers", ["in.jsonl", "out.jsonl", "--tokenizer", "tokenizer.json"], "offline"),
    ],
)
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: Patch, capsys: Capsys, package: str, arguments: list[str], extra: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    write(tmp_path / "in.jsonl", json_rows(5))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert main(["reorder", *arguments]) == 1
    shown = capsys.readouterr().err
    assert package in shown
    assert f"pip install 'peek-kv[{extra}]'" in shown
    assert len(list(tmp_path.iterdir())) == 2


def test_without_orjson(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "orjson", None)
    source = write(tmp_path / "in.jsonl", json_rows(50))
    assert main(["reorder", str(source), str(tmp_path / "out.jsonl"), "--cache-tokens", "500"]) == 0
    assert sorted(lines(tmp_path / "out.jsonl")) == sorted(lines(source))


def test_names() -> None:
    assert beside(Path("a/batch.v2.jsonl.gz"), ".order") == Path("a/batch.v2.order")
    assert numbered(Path("a/batch.jsonl.zst"), 3) == Path("a/batch.3.jsonl.zst")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
@pytest.mark.parametrize("way", ["--in-memory", "--out-of-core"])
def test_killed_in_the_middle(tmp_path: Path, way: str) -> None:
    """The old file stands, and the next run is not led astray by what is left."""
    if way == "--out-of-core":
        pytest.importorskip("duckdb")
    rows = json_rows(4000)
    source = write(tmp_path / "in.jsonl", rows)
    target = tmp_path / "out.jsonl.gz"
    target.write_bytes(b"old")
    command = [sys.executable, "-m", "peek", "reorder", str(source), str(target), way]
    environ = {**os.environ, "PYTHONPATH": str(HOME)}
    assert any(killed_while_it_writes(command, environ, target) for _ in range(20)), "it was faster each time"
    assert target.read_bytes() == b"old"
    left = sorted(tmp_path.iterdir())
    subprocess.run(command, env=environ, check=True)
    first = target.read_bytes()
    assert sorted(lines(target)) == sorted(rows)
    assert sorted(tmp_path.iterdir()) == sorted([*left, tmp_path / "out.order"])
    subprocess.run(command, env=environ, check=True)
    assert target.read_bytes() == first


def killed_while_it_writes(command: list[str], environ: dict[str, str], target: Path) -> bool:
    """Starts it and ends it in the middle of its output; False, and as before, if it had ended by then."""
    process = subprocess.Popen(command, env=environ)
    while process.poll() is None and not is_written(target.parent):
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    if process.wait() == -signal.SIGKILL and target.read_bytes() == b"old":
        return True
    target.write_bytes(b"old")
    (target.parent / "out.order").unlink(missing_ok=True)
    return False


def is_written(folder: Path) -> bool:
    """Whether a run in this folder is in the middle of its output."""
    return any(each.stat().st_size > 1000 for each in folder.glob("out.jsonl.gz.*.partial"))
