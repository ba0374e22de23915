"""`peek reorder` and `peek restore`: requests, lines, ids and results as they come; a killed process."""

from __future__ import annotations

import json
import random
import sys
import tracemalloc
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.batch_files import anthropic_rows, chat_rows, json_row, json_rows, lines, results_of, write
from support.fixtures import Capsys, Patch
from support.offline_batches import naive_order

import peek
from peek import WorkloadError
from peek.cli.main import main
from peek.cli.options import beside, numbered
from peek.offline.formats import (
    BOM,
    EXCERPT_BYTES,
    excerpt,
    excerpt_of,
    key_of,
    lines_of,
    match_results,
    new_ends,
    order_line,
    parse_request,
    read_order,
    request_of,
    split_end,
    text_symbols,
    with_end,
)
from peek.trie.keys import pack

HOME = Path(peek.__file__).resolve().parent.parent
WAYS = ["--in-memory", "--out-of-core"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reorder(*words: object, cache: int = 500) -> int:
    """From in.jsonl to out.jsonl."""
    if "--out-of-core" in words:
        pytest.importorskip("duckdb", reason="needs the extra peek-kv[offline]")
    return main(["reorder", "in.jsonl", "out.jsonl", "--cache-tokens", str(cache), *map(str, words)])


def restore(source: str = "out.jsonl", *words: str) -> int:
    return main(["restore", source, "back.jsonl", "--order", "out.order", *words])


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.xz", ".jsonl.zst"])
@pytest.mark.parametrize("make", [json_rows, chat_rows, anthropic_rows])
def test_there_and_back(here: Path, suffix: str, make: Any) -> None:
    rows = make()
    source, target = write(here / f"in{suffix}", rows), here / f"out{suffix}"
    assert main(["reorder", str(source), str(target), "--cache-tokens", "1000"]) == 0
    written = lines(target)
    assert written != rows
    assert sorted(written) == sorted(rows)
    results = results_of(written)
    random.Random(0).shuffle(results)  # runners do not keep the order
    done = write(here / f"results{suffix}", results)
    assert restore(done.name) == 0
    assert lines(here / "back.jsonl") == results_of(rows)
    named = [source.name, target.name, "out.order", done.name, "back.jsonl"]
    assert sorted(each.name for each in here.iterdir()) == sorted(named)


def test_order_is_that_of_the_tokens(here: Path) -> None:
    rows = json_rows()
    write(here / "in.jsonl", rows)
    assert reorder(cache=1000) == 0
    prompts = [json.loads(each)["body"]["prompt"] for each in rows]
    blocks = [[tuple(p[i : i + 16]) for i in range(0, len(p), 16)] for p in prompts]
    assert lines(here / "out.jsonl") == [rows[i] for i in naive_order(blocks)]


@pytest.mark.parametrize("way", WAYS)
def test_the_files_of_several_replicas_may_be_put_one_behind_the_other(here: Path, way: str) -> None:
    rows = json_rows(90)
    (here / "in.jsonl").write_bytes("\r\n".join(rows).encode())
    assert reorder("--replicas", 3, way) == 0
    parts = [(here / f"out.{i}.jsonl").read_bytes() for i in range(3)]
    assert all(part.endswith(b"\r\n") for part in parts), "also the line that had no end"
    order = [json.loads(line) for line in lines(here / "out.order")]
    assert sorted(number for number, _ in order) == list(range(1, 91))
    assert [rows[number - 1] for number, _ in order] == b"".join(parts).decode().splitlines()


def test_explain(here: Path, capsys: Capsys) -> None:
    source = write(here / "in.jsonl", json_rows())
    assert reorder("--explain", cache=1000) == 0
    shown = capsys.readouterr().out
    assert "300 requests, 86,400 tokens" in shown
    assert "12 groups with 300 requests; 0 share nothing" in shown
    assert "requests share 256 tokens" in shown
    assert "\nreordered\n" in shown
    assert reorder("--explain", cache=1_000_000) == 0
    assert "guard: gain" in capsys.readouterr().out
    assert lines(here / "out.jsonl") == lines(source)
    nested = [{"prompt": list(range(32))}, *({"prompt": [*range(48), n]} for n in (7, 8))]
    write(here / "in.jsonl", [*map(json.dumps, nested)])
    assert reorder("--explain") == 0
    assert "2 requests share 48 tokens\n  1 request shares 32 tokens\n" in capsys.readouterr().out


def test_tokenizer(here: Path, capsys: Capsys) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    rows = chat_rows()
    write(here / "in.jsonl", rows)
    model = tokenizers.models.WordLevel({"[UNK]": 0, "<": 1, "system": 2, "question": 3}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save("tokenizer.json")
    for place in (here, here / "tokenizer.json"):
        assert reorder("--tokenizer", place, "--explain", cache=300) == 0
        n = sum(len(tokenizer.encode(text(each)).ids) for each in rows)
        assert f"200 requests, {n:,} tokens" in capsys.readouterr().out
    (here / "bad.json").write_text("{}")
    for bad in ("bad.json", "absent.json"):
        assert reorder("--tokenizer", bad) == 1
        assert bad in capsys.readouterr().err


def test_tokenizer_of_mistral(here: Path, capsys: Capsys) -> None:
    package = pytest.importorskip("mistral_common", reason="needs mistral-common")
    found = sorted(Path(package.__file__).parent.glob("data/tekken*.json"))
    if not found:
        pytest.skip("this mistral-common brings no tokenizer along")
    write(here / "in.jsonl", chat_rows())
    assert reorder("--tokenizer", found[0], "--explain", cache=3000) == 0
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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("line", "reason"), BAD)
def test_bad_lines_are_named_and_the_rest_is_done(
    here: Path, capsys: Capsys, line: str, reason: str, way: str
) -> None:
    good = json_rows(40)
    write(here / "in.jsonl", [*good[:6], line, "", *good[6:]])
    assert reorder(way, cache=1000) == 1
    first, last = capsys.readouterr().err.splitlines()
    assert "line 7: " in first
    assert reason in first
    assert "1 bad line left out" in last
    assert sorted(lines(here / "out.jsonl")) == sorted(good)
    order = [json.loads(each)[0] for each in lines(here / "out.order")]
    assert sorted(order) == [1, 2, 3, 4, 5, 6, *range(9, 43)]


NOT_UNDERSTOOD = [
    json_row(50, {"model": "m", "text_1": "a", "text_2": ["b", "c"]}, "/v1/score"),
    json_row(51, {"model": "m", "query": "q" * 4000, "documents": ["d"]}, "/v1/rerank"),
    json_row(52, {"model": "m", "file_url": "data:audio/wav;base64,UklGRg=="}, "/v1/audio/transcriptions"),
    json_row(53, {"model": "m", "prompt": [1, -5]}),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cache", [1000, 1_000_000], ids=["reordered", "left alone"])
def test_requests_that_are_not_understood_go_through_behind_the_others(
    here: Path, capsys: Capsys, way: str, cache: int
) -> None:
    good = json_rows(40)
    score, rerank, audio, negative = NOT_UNDERSTOOD
    rows = [score, *good[:9], rerank, "{", audio, *good[9:], negative]
    (here / "in.jsonl").write_bytes("\r\n".join(rows).encode())
    assert reorder(way, "--explain", cache=cache) == 1
    shown = capsys.readouterr()
    assert "sorted by system prompt" not in shown.out
    first, *_, last = shown.err.splitlines()
    told = "line 1: not understood, put behind the others: body has none of messages, prompt, input"
    assert first == f"peek: in.jsonl: {told}"
    assert last == "peek: in.jsonl: 1 bad line left out, 4 lines not understood, put behind the others"
    written = (here / "out.jsonl").read_bytes().decode().split("\r\n")
    assert sorted(written[:40]) == sorted(good)
    assert written[40:] == NOT_UNDERSTOOD, "as they came, and no end at the last"
    order = [json.loads(line) for line in lines(here / "out.order")]
    assert order[40:] == [[1, "r-50"], [11, "r-51"], [13, "r-52"], [45, "r-53"]]
    write(here / "done.jsonl", results_of(written)[::-1])
    assert restore("done.jsonl") == 0
    assert lines(here / "back.jsonl") == results_of([row for row in rows if row != "{"])


@pytest.mark.parametrize("way", WAYS)
def test_of_several_files_each_gets_some_of_what_is_not_understood(here: Path, way: str) -> None:
    score = [json_row(i, {"text_1": "a" * 400, "text_2": f"{i}"}, "/v1/score") for i in range(60)]
    write(here / "in.jsonl", score)
    assert reorder("--replicas", 3, way) == 0
    parts = [lines(here / f"out.{i}.jsonl") for i in range(3)]
    assert [len(part) for part in parts] == [20, 20, 20]
    assert sorted(chain.from_iterable(parts)) == sorted(score)
    order = [json.loads(line)[0] for line in lines(here / "out.order")]
    assert [score[number - 1] for number in order] == list(chain.from_iterable(parts))


@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_understood_needs_an_id_of_its_own(here: Path, capsys: Capsys, way: str) -> None:
    rows = json_rows(9)
    write(here / "in.jsonl", [*rows, json_row(3, {"text_1": "a"}, "/v1/score")])
    assert reorder(way) == 1
    assert "line 10: custom_id 'r-3' is that of line 4, too" in capsys.readouterr().err.splitlines()[-1]
    write(here / "in.jsonl", ['{"body": {"text_1": "a"}}', *rows, '{"custom_id": "", "body": {"input": {}}}'])
    assert reorder(way) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "peek: in.jsonl: 2 bad lines left out"
    assert sorted(lines(here / "out.jsonl")) == sorted(rows)


HI = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"prompt": "abc"}, "abc"),
        ({"prompt": [1, 2]}, [1, 2]),
        ({"messages": None, "prompt": "abc"}, "abc"),
        ({"prompt": ["a", "b"]}, "a\nb"),
        ({"prompt": [[1, 2], [3]]}, [1, 2, 3]),
        ({"input": "embed me"}, "embed me"),
        ({"input": [1, 2]}, [1, 2]),
        ({"input": [HI], "instructions": "be kind"}, "<system>\nbe kind\n<user>\nhi"),
        ({"input": "hi", "instructions": "be kind"}, "<system>\nbe kind\nhi"),
        ({"prompt_token_ids": [1, 2], "system": "of a log"}, [1, 2]),
        ({"messages": [HI], "system": {"host": "a"}}, "<user>\nhi"),
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


@pytest.mark.parametrize("way", WAYS)
def test_salts_share_nothing(here: Path, way: str) -> None:
    """Two salts in turns under one prompt are two groups: put apart, or each evicts the other's."""
    rows = [json_row(i, {"prompt": "x" * 6000 + f"{i}", "cache_salt": "ab"[i % 2]}) for i in range(40)]
    write(here / "in.jsonl", rows)
    assert reorder(way, cache=1600) == 0
    salts = [json.loads(row)["body"]["cache_salt"] for row in lines(here / "out.jsonl")]
    assert salts in (["a"] * 20 + ["b"] * 20, ["b"] * 20 + ["a"] * 20)


def test_text_without_a_tokenizer() -> None:
    assert text_symbols("abcd") == b"abcd"
    assert text_symbols("äb") == b"\xc3\xa4b\0"
    assert text_symbols("\ud800")


def test_half_a_pair_of_surrogates_goes_to_no_tokenizer() -> None:
    """Tokenizers refuse it, as UTF-8 does, and JSON does not."""
    assert key_of("a\ud800", lambda text: list(text.encode())) == pack(list(b"a?"))


# -- restoring --------------------------------------------------------------------------------------------


def reordered(folder: Path, rows: list[str]) -> list[str]:
    write(folder / "in.jsonl", rows)
    assert reorder() == 0
    return lines(folder / "out.jsonl")


def test_restore_by_position_is_asked_for(here: Path, capsys: Capsys) -> None:
    """The requests have ids, so results without any may be in any order."""
    rows = json_rows(60)
    write(here / "done.jsonl", [json.dumps(len(each)) for each in reordered(here, rows)])
    assert restore("done.jsonl") == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(
        "peek: done.jsonl: no result has a custom_id, though the requests have: --by-position"
    )
    assert not (here / "back.jsonl").exists()
    assert restore("done.jsonl", "--by-position") == 0
    assert lines(here / "back.jsonl") == [json.dumps(len(each)) for each in rows]


@pytest.mark.parametrize("way", WAYS)
def test_results_that_are_cut_off_are_restored_without_the_last(here: Path, capsys: Capsys, way: str) -> None:
    """A runner that crashed leaves this."""
    rows = json_rows(60)
    write(here / "in.jsonl", rows)
    assert reorder(way) == 0
    results = results_of(lines(here / "out.jsonl"))
    (here / "done.jsonl").write_text("\n".join([*results[:7], results[7][:20]]))
    assert restore("done.jsonl") == 1
    named, *missing, last = capsys.readouterr().err.splitlines()
    assert named.startswith("peek: done.jsonl: line 8: not valid JSON: ")
    assert len(missing) == 20
    assert all(line.startswith("peek: done.jsonl: request of line ") for line in missing)
    assert last == "peek: done.jsonl: 53 requests without a result, 1 bad line left out"
    there = [row for row in results_of(rows) if row in results[:7]]
    assert (here / "back.jsonl").read_text() == "\n".join(there) + "\n"


def test_results_are_put_back_in_less_memory_than_they_take(here: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("peek.cli.reorder.SPOOL_BYTES", 1_000_000)
    write(here / "in.jsonl", json_rows(300))
    assert reorder(cache=500) == 0
    results = [f'{{"custom_id": "r-{number}", "text": "{"x" * 50_000}"}}' for number in range(300)]
    random.Random(0).shuffle(results)
    (here / "done").write_text("\n".join(results))
    assert restore("done") == 0  # so that what is imported or cached does not count
    tracemalloc.start()
    try:
        assert restore("done") == 0
        assert tracemalloc.get_traced_memory()[1] < 5_000_000 < (here / "done").stat().st_size / 2
    finally:
        tracemalloc.stop()
    assert [json.loads(line)["custom_id"] for line in lines(here / "back.jsonl")] == [
        f"r-{number}" for number in range(300)
    ]
    assert sorted(path.name for path in here.iterdir()) == [
        "back.jsonl", "done", "in.jsonl", "out.jsonl", "out.order"
    ]  # fmt: skip


def test_of_many_bad_results_the_first_of_each_fault_is_named(here: Path, capsys: Capsys) -> None:
    rows = json_rows(60)
    results = results_of(reordered(here, rows))
    write(here / "done.jsonl", [*results[:20], *["{", *["[1"] * 23, "{"], "", *results[45:]])
    assert restore("done.jsonl") == 1
    shown = capsys.readouterr().err.splitlines()
    named = [line.split(":")[2].strip() for line in shown if "not valid JSON" in line]
    assert named == ["line 21", "line 22"]
    assert shown[-1] == "peek: done.jsonl: 25 requests without a result, 25 bad lines left out"
    good = {*results[:20], *results[45:]}
    assert lines(here / "back.jsonl") == [row for row in results_of(rows) if row in good]


def test_a_bad_result_keeps_its_place_among_results_by_position(here: Path, capsys: Capsys) -> None:
    rows = json_rows(60)
    order = reordered(here, rows)
    write(here / "done.jsonl", [json.dumps(len(row)) if row != order[9] else "{" for row in order])
    assert restore("done.jsonl", "--by-position") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "peek: done.jsonl: 1 request without a result, 1 bad line left out"
    assert lines(here / "back.jsonl") == [json.dumps(len(row)) for row in rows if row != order[9]]


@pytest.mark.parametrize(
    ("done", "told"),
    [
        (['{"custom_id": "foreign"}'], "60 requests without a result, 1 result without a request"),
        (['{"custom_id": "r-1'], "60 requests without a result, 1 bad line left out"),
        ([], "60 requests without a result"),
    ],
)
def test_where_nothing_matches_nothing_is_written(
    here: Path, capsys: Capsys, done: list[str], told: str
) -> None:
    reordered(here, json_rows(60))
    write(here / "done.jsonl", done)
    (here / "back.jsonl").write_text("good")
    assert restore("done.jsonl") == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"peek: done.jsonl: nothing written: {told}"
    assert (here / "back.jsonl").read_text() == "good"


@pytest.mark.parametrize(("done", "order"), [(["1", "2"], ['[1, "a"]']), (["1"], ["x"]), (["1"], ["[1]"])])
def test_restore_refuses(here: Path, capsys: Capsys, done: list[str], order: list[str]) -> None:
    write(here / "done.jsonl", done)
    write(here / "out.order", order)
    assert restore("done.jsonl") == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (here / "back.jsonl").exists()


# -- what can go wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("duckdb", "in.jsonl out.jsonl --out-of-core"),
        ("zstandard", "in.jsonl out.jsonl.zst"),
        ("tokenizers", "in.jsonl out.jsonl --tokenizer in.parquet"),
        ("pyarrow", "in.parquet out.parquet"),
    ],
)
def test_a_missing_package_is_named(
    here: Path, monkeypatch: Patch, capsys: Capsys, package: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    write(here / "in.jsonl", json_rows(5))
    (here / "in.parquet").write_text("{}")
    assert main(["reorder", *words.split()]) == 1
    assert f" needs {package}: pip install 'peek-kv[offline]'" in capsys.readouterr().err
    assert len(list(here.iterdir())) == 2


def test_names() -> None:
    assert beside(Path("a/batch.v2.jsonl.gz"), ".order") == Path("a/batch.v2.order")
    assert numbered(Path("a/batch.jsonl.zst"), 3) == Path("a/batch.3.jsonl.zst")


# -- line ends --------------------------------------------------------------------------------------------

ends = st.sampled_from([b"\n", b"\r\n"])


@pytest.mark.parametrize(("last", "end"), [(b"x\r\n", b"\r\n"), (b"x\n", b"\n"), (b"x", b"\n")])
def test_of_several_files_every_line_gets_the_end_that_the_last_has(last: bytes, end: bytes) -> None:
    ends = new_ends(0, 1, last, files=2)
    assert (with_end(b"bare", ends.get(0)), with_end(last, ends.get(1))) == (b"bare" + end, last)


@given(st.lists(ends, min_size=1, max_size=8), st.booleans(), st.randoms(use_true_random=False))
def test_any_order_and_back_byte_for_byte(found: list[bytes], is_bare: bool, rnd: random.Random) -> None:
    raw = [b"line %d" % i + end for i, end in enumerate(found)]
    if is_bare:
        raw[-1] = split_end(raw[-1])[0]

    def arranged(given: list[bytes], order: list[int]) -> list[bytes]:
        bare = len(given) - 1 if not split_end(given[-1])[1] else -1
        changed = new_ends(bare, order[-1], given[order[-1]])
        return [with_end(given[index], changed.get(index)) for index in order]

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


def test_lines_of_a_stream() -> None:
    stream = [BOM + b'{"a": 1}\r\n', b"\n", b"  \r\n", BOM + b"x\r\r\n", b"y\r"]
    assert list(lines_of(stream)) == [(1, b'{"a": 1}', b"\r\n"), (4, BOM + b"x\r", b"\r\n"), (5, b"y\r", b"")]
    assert list(lines_of([BOM])) == list(lines_of([])) == []


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
@pytest.mark.parametrize("content", [BOM + b"\n\n", json_rows(1)[0].encode()], ids=["empty", "one line"])
def test_a_file_with_nothing_to_order(here: Path, way: str, content: bytes) -> None:
    (here / "in.jsonl").write_bytes(content)
    assert reorder(way, "--explain") == 0
    assert len(lines(here / "out.order")) == bool(content.removeprefix(BOM).strip())
    assert restore() == 0
    wanted = content.removeprefix(BOM).lstrip()
    assert (here / "out.jsonl").read_bytes() == (here / "back.jsonl").read_bytes() == wanted


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
        placed, faults = match_results(
            dict(enumerate(found)), [*range(len(found))], numbers, ids, by_position
        )
    except WorkloadError:
        assert found
        assert not any(found)
        assert len(found) != len(ids) or (any(ids) and not by_position)
        return
    assert len(set(placed.values())) == len(placed)
    if not found:
        assert (placed, faults) == ({}, [])
        return
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
        assert f"\nline {index}: " in f"\n{told}"
    unanswered = [(n, i) for n, i in zip(numbers, ids, strict=True) if n not in placed.values()]
    for number, custom_id in unanswered:
        assert f"line {number}: " in told or repr(custom_id) in told or custom_id == ""
    assert bool(faults) == (len(placed) < max(len(found), len(ids)))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda rows: rows[:5] + rows[6:],
            ["request of line 6: no result for custom_id 'r-5'", "jsonl: 1 request without a result\n"],
        ),
        (
            lambda rows: [*rows, '{"custom_id": "foreign"}'],
            ["line 13: no request has custom_id 'foreign'", "jsonl: 1 result without a request\n"],
        ),
        (
            lambda rows: ["", *rows, rows[2]],
            ["line 14: custom_id 'r-2' again; the first, of line 4, is kept"],
        ),
        (lambda rows: [*rows[:-1], "{}"], ["jsonl: line 12: has no custom_id", "'r-11'"]),
        (
            lambda rows: [*rows[:-1], '{"custom_id": 11}'],
            ["jsonl: line 12: custom_id is 11", "'r-11'", "1 request without a result, 1 result without"],
        ),
    ],
)
def test_results_that_do_not_match_are_named(
    here: Path, capsys: Capsys, change: object, named: list[str]
) -> None:
    assert callable(change)
    rows = json_rows(12)
    reordered(here, rows)
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
    assert "jsonl: line 1: custom_id 'same' is that of lines 2, 1" in shown
    assert lines(here / "back.jsonl") == ['{"custom_id": "own"}']


@given(st.lists(st.tuples(st.integers(1, 10**9), st.text(max_size=5)), unique_by=lambda each: each[0]))
def test_order_files_come_back(rows: list[tuple[int, str]]) -> None:
    written = [order_line(number, json.dumps(custom_id)) for number, custom_id in rows]
    assert [line.decode("ascii") for line in written] == [json.dumps(list(row)) + "\n" for row in rows]
    assert read_order(lines_of(written), json.loads) == ([n for n, _ in rows], [i for _, i in rows])


NO_LINES = [b"{", b"7", b"[1]", b'["1", "a"]', b"[1, 2]", b'[0, "a"]', b'[true, "a"]']


@pytest.mark.parametrize(
    ("line", "said"),
    [*((line, "line 2: not a line of an order file") for line in NO_LINES), (b'[1, "b"]\n', "twice")],
)
def test_what_is_no_order_file(line: bytes, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        read_order(lines_of([b'[1, "a"]\n', line]), json.loads)


# -- what is told of it -----------------------------------------------------------------------------------


@given(st.text(max_size=400))
@example("\x1b[2J\x1b]0;title\x07")
def test_echoes_are_short(text: str) -> None:
    for shown in (excerpt_of(text), excerpt(text), excerpt_of([text])):
        assert len(shown.encode()) <= EXCERPT_BYTES
        assert all(each.isprintable() or each.isspace() for each in shown), "a terminal obeys none of it"
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
    goes_through = line.startswith('{"custom_id": "')
    assert reorder(way) == (not goes_through)
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("peek: in.jsonl: line 6: ")
    assert len(first.encode()) <= EXCERPT_BYTES + 80
    told = "1 line not understood, put behind the others" if goes_through else "1 bad line left out"
    assert last == f"peek: in.jsonl: {told}"
    assert sorted(lines(here / "out.jsonl")) == sorted([*json_rows(5), line][: 5 + goes_through])


def test_long_ids_of_results_are_not_echoed_in_full(here: Path, capsys: Capsys) -> None:
    reordered(here, [json_row(0, {"prompt": "x"}), json.dumps({"custom_id": LONG, "body": {"prompt": "y"}})])
    write(here / "done.jsonl", [json.dumps({"custom_id": LONG + "?"}), json.dumps({"custom_id": "r-0"})])
    assert restore("done.jsonl") == 1
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 3
    assert all(len(line.encode()) <= EXCERPT_BYTES + 80 for line in shown)
