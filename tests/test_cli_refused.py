"""Everything that the commands refuse: one line on stderr, the exit code, and nothing touched."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path

import pytest
from support.batch_files import json_rows
from support.fixtures import Capsys, Patch

import peek
from peek.cli.main import main

ROW = {"timestamp": 0, "input_length": 1500, "output_length": 4, "hash_ids": [1, 2, 3]}
TURN = {**ROW, "session": "s", "turn": 0, "gap_s": 0}

FILES: dict[str, str | bytes] = {
    "in.jsonl": "\n".join(json_rows(5)),
    "in.jsonl.gz": gzip.compress("\n".join(json_rows(5)).encode()),
    "here": '{"custom_id": "r", "ts": 1, "prompt": [1]}\n',
    "order": '[1, "r"]\n',
    "damaged.jsonl.gz": gzip.compress(b"x" * 1000)[:-20],
    "talk.jsonl": "".join(json.dumps({**ROW, "timestamp": 500 * turn}) + "\n" for turn in range(20)),
    "turns.jsonl": '{"session": "s", "turn": 0, "tokens": [1], "output_length": 2, "gap_s": 0}\n',
    "later.jsonl": "".join(
        json.dumps({"session": "s", "turn": turn, "tokens": [1], "output_length": 2, "gap_s": 2**53}) + "\n"
        for turn in range(3)
    ),
    "timed.jsonl": json.dumps(TURN) + "\n",
    "fives.jsonl": json.dumps({**TURN, "input_length": 15, "block_tokens": 5}) + "\n",
    "twelves.jsonl": json.dumps({**ROW, "input_length": 36, "block_tokens": 12}) + "\n",
    "torn.jsonl": json.dumps(ROW) + '\n{"timestamp": 1,\n',
    "short.jsonl": json.dumps({**ROW, "hash_ids": [1]}) + "\n",
    "endless.jsonl": json.dumps({**ROW, "output_length": 10**15}) + "\n",
    "empty.jsonl": "",
    "salt-0": " \n",
    "salt-15": "tell nobody thi \n",
    "list.json": "[]",
    "bad.json": "{}",
    "moe.json": '{"num_experts": 8}',
    "tiny.json": json.dumps(
        dict.fromkeys(
            ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"), 8
        )
    ),
}

LABELS = " ".join(peek.PRESETS)

REFUSED: list[tuple[str, int, str]] = [
    # command line, exit code, words (or, quoted, phrases) of the message
    ("guess", 2, "\"'guess'\""),
    ("--guess", 2, "--guess"),
    ("simulate --guess", 2, "--guess"),
    ("simulate stray", 2, "stray"),
    ("simulate --policy", 2, "--policy"),
    ("simulate --policy lru", 2, f"\"'lru'\" {LABELS}"),
    ("simulate --policy peek --policy 'a\nb'", 2, "\"'a\\\\nb'\""),
    ("simulate --workload w9", 2, "\"'w9'\" w1a w5-short"),
    ("simulate --load light", 2, "\"'light'\" moderate heavy"),
    ("simulate --cache tree", 2, "\"'tree'\" radix blocks"),
    ("simulate --seed x", 2, "--seed \"'x'\""),
    ("simulate --seed 1 --seed 1.5", 2, "--seed \"'1.5'\""),
    ("simulate --arena-tokens 0", 2, "--arena-tokens '0 is'"),
    ("simulate --arena-tokens -1", 2, "--arena-tokens -1"),
    ("simulate --arena-tokens many", 2, "--arena-tokens \"'many'\""),
    (f"simulate --arena-tokens {'9' * 30}", 2, f"--arena-tokens {'9' * 30}"),
    (f"simulate --seed {'7' * 4301}", 2, f"\"'{'7' * 196}... has too many digits\""),
    (f"simulate --arena-tokens {'7' * 4301}", 2, f"\"'{'7' * 196}... has too many digits\""),
    (f"simulate --arena-tokens {'7' * 4300}", 2, f"'{'7' * 197}... is not in 1..'"),
    (f"simulate --slo {'7' * 4301}", 2, f"\"'{'7' * 196}... is not a finite number\""),
    ("simulate --workload w4", 2, "w4 --trace-file"),
    ("simulate --workload w1a --trace-file x.gz", 2, "--trace-file x.gz w1a"),
    ("simulate --limit 5", 2, "'--limit: 5 needs --trace or --sessions'"),
    ("simulate --session-rate 2", 2, "'--session-rate: 2.0 needs --sessions'"),
    ("simulate --trace talk.jsonl --session-rate 2", 2, "'--session-rate: 2.0 needs --sessions'"),
    ("simulate --sessions turns.jsonl --session-rate 0", 2, "--session-rate \"'0'\""),
    ("simulate --trace endless.jsonl", 1,
     "'endless.jsonl, line 1: output_length is 1000000000000000, above 100000000'"),
    ("simulate --sessions turns.jsonl --trace talk.jsonl", 2,
     "'--trace: talk.jsonl is given together with --sessions, which replaces cell and trace'"),
    ("simulate --sessions turns.jsonl --workload w1a", 2,
     "'--workload: w1a is given together with --sessions'"),
    ("simulate --sessions turns.jsonl --load heavy", 2, "'--load: heavy is given together with --sessions'"),
    ("simulate --sessions turns.jsonl --rate-scale 2", 2, "'--rate-scale: 2.0 is given together'"),
    ("simulate --sessions turns.jsonl --trace-block 2", 2, "'--trace-block: 2 is given together'"),
    ("simulate --sessions turns.jsonl --trace-file x", 2, "'--trace-file: x is given together'"),
    ("simulate --sessions turns.jsonl --limit 0", 2, "--limit '0 is not in 1..'"),
    ("simulate --sessions timed.jsonl --session-rate 2", 2,
     "'--session-rate: 2.0 is of no use: timed.jsonl says when its sessions begin'"),
    ("simulate --sessions timed.jsonl --seed 0 --seed 1", 2,
     "'--seed: 0, 1 is of no use: timed.jsonl says when its sessions begin'"),
    ("simulate --sessions fives.jsonl --cache blocks", 2,
     "'--sessions: 5 does not divide the block of 16 tokens of --cache blocks'"),
    ("simulate --sessions turns.jsonl --per-request turns.jsonl", 2, "'is the same file as --sessions'"),
    ("simulate --sessions turns.jsonl --session-rate 1e-320", 1, "'rate is 1e-320'"),
    ("simulate --sessions talk.jsonl", 1, "\"talk.jsonl, line 1: missing field 'session'\""),
    ("simulate --sessions empty.jsonl", 1, "'empty.jsonl: empty trace, no rows'"),
    ("simulate --router peek", 2, "--router peek --replicas"),
    ("simulate --router peek --router random", 2, "--router 'peek, random needs --replicas'"),
    ("simulate --stale-s 1", 2, "--stale-s '1.0 needs --replicas'"),
    ("simulate --replicas 2 --router best", 2, "\"'best'\" round-robin peek"),
    ("simulate --replicas 0", 2, "--replicas '0 is'"),
    ("simulate --replicas 16385", 2, "--replicas 16385 16384"),
    ("simulate --replicas 2 --cache blocks --stale-s 3601", 2, "--stale-s 3601"),
    ("simulate --replicas 2 --stale-s 1", 2, "--stale-s 1.0 '--cache blocks'"),
    ("simulate --replicas 2 --cache blocks --stale-s -1", 2, "--stale-s -1"),
    ("simulate --replicas 2 --cache blocks --stale-s abc", 2, "--stale-s abc"),
    ("simulate --replicas 2 --router nope", 2, "--router nope"),
    ("simulate --json --per-request -", 2, "--per-request 'JSON object'"),
    ("simulate --json --per-request /dev/stdout", 2, "--per-request 'JSON object'"),
    ("simulate --trace talk.jsonl --rate-scale 1e-20", 1, "'times grow to 9.5e+20 s'"),
    ("simulate --sessions later.jsonl", 1, "'times grow to 1.8e+16 s'"),
    ("bench --tokenizer nowhere.json", 2, "--tokenizer nowhere.json"),
    ("simulate --trace-block 512", 2, "--trace-block 512"),
    ("simulate --plot figure.gif", 2, "--plot figure.gif .png"),
    ("simulate --plot figure", 2, "--plot figure .png"),
    ("simulate --trace talk.jsonl --workload w1a", 2, "--workload w1a --trace"),
    ("simulate --trace talk.jsonl --workload w1c", 2, "--workload w1c --trace"),  # the default
    ("simulate --trace talk.jsonl --load heavy", 2, "--load heavy"),
    ("simulate --trace talk.jsonl --seed 42", 2, "--seed 42"),
    ("simulate --trace talk.jsonl --trace-file x.gz", 2, "--trace-file x.gz"),
    ("simulate --trace talk.jsonl --limit 0", 2, "--limit 0"),
    ("simulate --trace talk.jsonl --trace-block 0", 2, "--trace-block 0"),
    ("simulate --trace talk.jsonl --trace-block 5 --cache blocks", 2, "--trace-block 5 16"),
    ("simulate --trace twelves.jsonl --cache blocks", 2, "'12 does not divide the block of 16 tokens'"),
    ("simulate --trace talk.jsonl --rate-scale 0", 2, "--rate-scale \"'0'\""),
    ("simulate --trace talk.jsonl --rate-scale nan", 2, "--rate-scale \"'nan'\""),
    ("simulate --trace talk.jsonl --rate-scale fast", 2, "--rate-scale \"'fast'\""),
    ("simulate --slo soon", 2, "--slo \"'soon'\""),
    ("simulate --slo 2,", 2, "--slo \"''\""),
    ("simulate --slo 2,0", 2, "--slo \"'0'\""),
    ("simulate --card tpu", 2, "\"card 'tpu' is unknown; valid: h100\""),
    ("simulate --model gpt", 2, "\"model 'gpt' is unknown; valid: qwen2.5-7b\""),
    ("simulate --card l4 --model llama-3.1-70b", 2, "'does not fit L4-24GB at 0.88 of 22.5 GiB'"),
    ("simulate --cards 2000", 2, "'2000 is not in 1..1024'"),
    ("simulate --memory-utilization 1.5", 2, "\"'1.5' is not in 0..1\""),
    ("simulate --model list.json", 1, "'list.json: not a JSON object'"),
    ("simulate --model bad.json", 1, "\"bad.json: hidden_size is 'None', not a size\""),
    ("simulate --model moe.json", 1, "'moe.json: has num_experts'"),
    ("simulate --model tiny.json", 2, "'an arena of' 'above 100,000,000: choose it with --arena-tokens'"),
    ("check talk.jsonl --model tiny.json", 2, "'an arena of' 'choose it with --arena-tokens'"),
    ("simulate --trace talk.jsonl --per-request talk.jsonl", 2, "'is the same file as --trace'"),
    ("simulate --trace talk.jsonl --per-request x --rate-scale 1 --rate-scale 2", 2,
     "'takes one --rate-scale'"),
    ("simulate --trace talk.jsonl --plot x.png --rate-scale 1 --rate-scale 2", 2, "'takes one --rate-scale'"),
    ("simulate --plot x.png --per-request x.png", 2, "'is the same file as --plot'"),
    ("simulate --model list.json --per-request list.json", 2, "'is the same file as --model'"),
    ("check talk.jsonl --tokenizer order --html order", 2, "'is the same file as --tokenizer'"),
    ("check talk.jsonl --model list.json --html list.json", 2, "'is the same file as --model'"),
    ("simulate --per-request no/x.csv", 1, "'no such folder'"),
    ("simulate --plot no/such/folder/out.png", 1, "no/such/folder"),
    ("simulate --plot folder.png", 1, "folder.png"),
    ("simulate --trace .", 1, "'.: cannot read'"),
    ("simulate --trace torn.jsonl", 1, "'torn.jsonl, line 2: not JSON'"),
    ("simulate --trace short.jsonl", 1, "'short.jsonl, line 1' hash_ids"),
    ("simulate --trace empty.jsonl", 1, "empty.jsonl"),
    ("simulate --workload w4 --trace-file torn.jsonl", 1, "torn.jsonl"),
    ("simulate --workload w1a --arena-tokens 500", 1, "'500 tokens' 'request w1a-'"),
    ("simulate --workload w1a --arena-tokens 15 --cache blocks", 1, "'15 tokens' 'request w1a-'"),
    ("doctor --guess", 2, "--guess"),
    ("reorder in.jsonl", 2, "OUT"),
    ("reorder in.jsonl out --engine tgi", 2, "\"'tgi'\""),
    ("reorder in.jsonl out --cache-tokens 8", 2, "8"),
    ("reorder in.jsonl out --cache-tokens x", 2, "\"'x'\""),
    ("reorder in.jsonl out --replicas 0", 2, "0"),
    ("reorder in.jsonl out --replicas 1001", 2, "1001"),
    ("reorder damaged.jsonl.gz out", 1, "damaged.jsonl.gz"),
    ("reorder in.jsonl folder.png", 1, "'folder.png: is a folder'"),
    ("reorder in.jsonl .", 1, "'.: is a folder'"),
    ("reorder in.jsonl .. --replicas 2", 1, "'..: is a folder'"),
    ("reorder folder.png out", 1, "'folder.png: Is a directory'"),
    ("reorder in.jsonl out --order folder.png", 1, "'folder.png: is a folder'"),
    ("reorder in.jsonl nowhere/out", 1, "nowhere"),
    ("reorder in.jsonl out --order nowhere/out.order", 1, "nowhere"),
    ("reorder in.jsonl out --order dangling", 1, "nowhere"),
    ("reorder in.jsonl in.jsonl/out --order o", 2, "in.jsonl"),
    ("reorder in.jsonl out.parquet", 2, "'out.parquet: a table can only be made from a table'"),
    ("reorder in.parquet out.parquet --out-of-core", 2, "'out of core, only lines are written'"),
    ("reorder torn.parquet out.parquet", 1, "'torn.parquet: damaged: '"),
    ("reorder text.parquet out", 1, "'text.parquet: damaged: '"),
    ("restore in.jsonl out.parquet --order order", 2, "'a table can only be made from a table'"),
    ("batch in.jsonl.gz out -- true {in}", 2, "'no word of it holds {out}'"),
    ("batch in.jsonl.gz in.jsonl.gz -- true {in} {out}", 2, "'is the same file as IN'"),
    ("batch in.jsonl.gz out -- ./absent {in} {out}", 1, "'./absent: no such program'"),
    ("batch in.jsonl.gz out -- true {in} {out}", 1, "'true: has written no results to {out}'"),
    ("batch in.jsonl.gz no/out -- true {in} {out}", 1, "'no such folder'"),
    ("trace here out.parquet", 2, "'out.parquet: a trace is lines, not a table'"),
    ("trace talk.jsonl out --rate 1e-13", 1, "'talk.jsonl: rate is 1e-13: times grow beyond 2**53 ms'"),
    ("trace talk.jsonl out --rate 1e-308", 1, "'talk.jsonl: rate is 1e-308: times grow beyond 2**53 ms'"),
    ("trace here here", 2, "'here is the same file as IN'"),
    ("trace here out --salt-file out", 2, "'OUT out is the same file as --salt-file'"),
    ("trace here out --salt-file salt-0", 1, "'salt-0: holds 0 bytes, need 16'"),
    ("trace here out --salt-file salt-15", 1, "'salt-15: holds 15 bytes, need 16'"),
    ("trace empty.jsonl nowhere/out.jsonl", 1, "nowhere"),
    ("trace here out --format csv", 2, "\"'csv' is unknown; valid: auto, jsonl, log\""),
    ("trace here out --time-unit min", 2, "\"'min' is unknown; valid: s, ms, us, ns\""),
    ("trace here out --block-tokens 0", 2, "'0 is not in 1..'"),
    ("trace here out --rate 0", 2, "\"'0' is not a finite number above 0\""),
    ("check here --engine tgi", 2, "\"'tgi' is unknown; valid: auto, vllm, sglang\""),
    ("check here --draws -1", 2, "'-1 is not in 0..1000'"),
    ("check here --slo 1 --slo 2 --slo 3", 2, "'2 targets at most'"),
    ("check here --time-unit h", 2, "\"'h' is unknown; valid: s, ms, us, ns\""),
    ("check here --card abacus", 2, "\"card 'abacus' is unknown\""),
    ("check here --html nowhere/x.html", 1, "'no such folder'"),
    ("check here --html here", 2, "--html"),
    ("check here --html -", 2, "--html 'standard output has the answer'"),
    ("check here ./here", 2, "'LOG here is the same file as LOG here'"),
    ("check - -", 2, "'LOG - is the same file as LOG -'"),
    ("bench -", 2, "'-: only a file can be read twice'"),
    ("bench /dev/null", 2, "'/dev/null: only a file can be read twice'"),
    ("bench --rounds 20000", 2, "'20000 is not in 1..10000'"),
    ("bench --waiting 0", 2, "'0 is not in 1..'"),
    ("bench --waiting 200000", 2, "'200000 is not in 1..100000'"),
    ("bench --policy lru", 2, "\"'lru'\""),
    ("bench empty.jsonl", 1, "'empty.jsonl: holds no request that is understood'"),
    ("bench torn.jsonl", 1, "'torn.jsonl, line 2: not JSON'"),
]  # fmt: skip

ABSENT = [
    "simulate --trace absent",
    "simulate --sessions absent",
    "simulate --workload w4 --trace-file absent",
    "simulate --model absent.json",
    "reorder absent out",
    "reorder absent.parquet out.parquet",
    "reorder here out --tokenizer absent",
    "restore absent out --order order",
    "restore absent.parquet out.parquet --order order",
    "restore here out --order absent",
    "batch absent out -- true {in} {out}",
    "trace absent out",
    "trace here out --salt-file absent",
    "trace here out --tokenizer absent",
    "bench absent",
    "bench here --tokenizer absent",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    Path("folder.png").mkdir()
    Path("dangling").symlink_to("nowhere/out.order")
    return tmp_path


def refused(command: str, capsys: Capsys) -> tuple[int, str]:
    """Exit code and message of a command that touches nothing."""
    before = {path.name: path.read_bytes() for path in Path.cwd().iterdir() if path.is_file()}
    code = main(shlex.split(command))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("peek: ")
    assert shown.err.endswith("\n")
    assert len(shown.err.splitlines()) == 1, shown.err
    assert {path.name: path.read_bytes() for path in Path.cwd().iterdir() if path.is_file()} == before
    return code, shown.err


@pytest.mark.parametrize(("command", "code", "named"), REFUSED, ids=lambda each: str(each)[:60])
def test_what_is_refused(here: Path, capsys: Capsys, command: str, code: int, named: str) -> None:
    if ".parquet" in command:
        pq = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        pq.write_table(pyarrow.table({"prompt": ["x" * 90] * 20}), "in.parquet")
        Path("torn.parquet").write_bytes(Path("in.parquet").read_bytes()[:-40])
        Path("text.parquet").write_text("{}\n")
    found, message = refused(command, capsys)
    assert found == code, message
    for text in shlex.split(named):
        assert text in message


@pytest.mark.parametrize("command", ABSENT)
def test_a_missing_file_is_told_in_the_same_words(here: Path, capsys: Capsys, command: str) -> None:
    if ".parquet" in command:
        pytest.importorskip("pyarrow")
    name = next(word for word in command.split() if word.startswith("absent"))
    assert refused(command, capsys) == (1, f"peek: {name}: no such file\n")
