"""One call for a whole batch: what goes in and out in which order.  The real engines are in their folders."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batch_files import chat_rows, json_row, json_rows, lines, write
from support.fixtures import Capsys, Patch

from peek import EngineMismatch, InvalidConfig, InvalidKey
from peek.cli.main import main
from peek.offline import generate_sglang, generate_vllm
from peek.offline.engines import _back

WORDS = {"a": [1, 2, 3], "b": [4, 5], " ": [9]}


def encode(text: str) -> list[int]:
    return [token for letter in text for token in WORDS[letter]]


class Vllm:
    """Answers as `vllm.LLM` does, and keeps what it was asked, in order."""

    def __init__(self, blocks: object = 3, block: object = 2) -> None:
        cache = SimpleNamespace(num_gpu_blocks=blocks, block_size=block)
        self.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(cache_config=cache))
        self.asked: list[Any] = []

    def get_tokenizer(self) -> Any:
        return SimpleNamespace(encode=encode)

    def generate(self, prompts: list[Any], sampling_params: Any = None, **options: Any) -> list[Any]:
        self.asked = prompts
        each = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(prompts)
        loras = options.get("lora_request") or [None] * len(prompts)
        return list(zip(prompts, each, loras, strict=True))


class Sglang:
    """Answers as `sglang.Engine` does."""

    def __init__(self, info: dict[str, Any]) -> None:
        self._info = info
        self.asked: list[Any] = []
        self.tokenizer_manager = SimpleNamespace(tokenizer=SimpleNamespace(encode=encode))

    def get_server_info(self) -> dict[str, Any]:
        return self._info

    def generate(self, **options: Any) -> list[Any]:
        self.asked = options.pop("prompt", None) or options.pop("input_ids")
        return list(zip(self.asked, *options.values(), strict=True))


class Column:
    """Prompts as a shuffled column of pandas has them: the label of each is not its place."""

    def __init__(self, prompts: list[Any]) -> None:
        self._prompts = prompts

    def __len__(self) -> int:
        return len(self._prompts)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._prompts)

    def __getitem__(self, label: int) -> Any:
        return self._prompts[-1 - label]


PROMPTS = st.lists(
    st.one_of(
        st.text("ab ", max_size=6),
        st.lists(st.integers(0, 3), min_size=1, max_size=6),
        st.builds(lambda ids, salt: {"prompt_token_ids": ids, "cache_salt": salt},
                  st.lists(st.integers(0, 3), min_size=1), st.sampled_from(["", "x"])),
        st.builds(lambda text: {"prompt": text, "multi_modal_data": {"image": 1}}, st.text("ab"))
    ),
    min_size=1,
    max_size=12
)  # fmt: skip


@given(PROMPTS)
def test_each_prompt_gets_its_own_answer(prompts: list[Any]) -> None:
    llm = Vllm()
    sampling = [f"s{place}" for place in range(len(prompts))]
    adapters = [None, SimpleNamespace(lora_name="en")]
    loras = [random.Random(place).choice(adapters) for place in range(len(prompts))]
    answers = generate_vllm(llm, prompts, sampling, lora_request=loras, use_tqdm=False)
    assert answers == list(zip(prompts, sampling, loras, strict=True))
    assert sorted(map(str, llm.asked)) == sorted(map(str, prompts))
    shuffled: Any = Column(prompts)
    assert generate_vllm(llm, shuffled, sampling, lora_request=loras) == answers
    one = generate_vllm(llm, iter(prompts), {"n": 1}, cache_tokens=100)  # type: ignore[arg-type]
    assert one == [(prompt, {"n": 1}, None) for prompt in prompts]


def test_the_engine_is_asked_in_another_order() -> None:
    llm = Vllm()
    prompts = [[1, 2, 3, 4, place] if place % 2 else [5, 6, 7, 8, place] for place in range(8)]
    generate_vllm(llm, prompts)
    assert [prompt[0] for prompt in llm.asked] == [5] * 4 + [1] * 4
    salted = [{"prompt_token_ids": [1, 2, 3, 4, place], "cache_salt": str(place % 2)} for place in range(8)]
    generate_vllm(llm, salted)
    assert [prompt["cache_salt"] for prompt in llm.asked] == ["0"] * 4 + ["1"] * 4


def test_sglang_is_asked_salt_by_salt() -> None:
    engine = Sglang({"max_total_num_tokens": 6})
    prompts = [[1, 2, 3, 4, place] for place in range(160)]
    salts = [f"s{place % 4}" for place in range(160)]
    generate_sglang(engine, input_ids=prompts, cache_salt=salts, sampling_params=[{}] * 160)
    asked = [prompt[-1] % 4 for prompt in engine.asked]
    assert sum(one != other for one, other in pairwise(asked)) < 12
    generate_sglang(engine, input_ids=prompts, sampling_params=[{}] * 160)
    assert engine.asked == prompts


def test_prompts_with_media_share_nothing() -> None:
    llm = Vllm()
    prompts = [[1, 2, 3, 4, place] if place % 2 else [5, 6, 7, 8, place] for place in range(8)]
    seen = [{"prompt_token_ids": each, "multi_modal_data": {"image": each[-1]}} for each in prompts]
    generate_vllm(llm, seen)
    assert llm.asked == seen
    generate_vllm(llm, prompts)
    assert llm.asked != prompts


@pytest.mark.parametrize(("blocks", "block"), [(None, 16), (0, 16), (3, None), ("3", 16)])
def test_an_engine_that_does_not_say_how_large_its_cache_is(blocks: object, block: object) -> None:
    with pytest.raises(EngineMismatch, match="give cache_tokens"):
        generate_vllm(Vllm(blocks, block), [[1]])
    with pytest.raises(EngineMismatch, match="give cache_tokens"):
        generate_sglang(Sglang({}), input_ids=[[1]])


@pytest.mark.parametrize("prompts", ["ab", [1, 2], {"prompt": "ab"}])
def test_vllm_needs_a_batch(prompts: Any) -> None:
    with pytest.raises(InvalidConfig, match="a batch is a list of prompts"):
        generate_vllm(Vllm(), prompts)


@pytest.mark.parametrize("fault", [None, 1.5, {"prompt_token_ids": 7}])
def test_what_is_no_prompt_is_named(fault: Any) -> None:
    with pytest.raises(InvalidKey, match="prompt 1: "):
        generate_vllm(Vllm(), [[1], fault])
    with pytest.raises(InvalidKey, match="prompt 1: "):
        generate_sglang(Sglang({"max_total_num_tokens": 6}), input_ids=[[1], fault])


def test_items_for_each_prompt_must_be_as_many() -> None:
    with pytest.raises(InvalidConfig, match="sampling_params has 1 items for 2 prompts"):
        generate_vllm(Vllm(), [[1], [2]], ["s"])
    with pytest.raises(InvalidConfig, match="lora_request has 1 items for 2 prompts"):
        generate_vllm(Vllm(), [[1], [2]], lora_request=[None])
    for name in ("lora_path", "cache_salt", "sampling_params"):
        with pytest.raises(InvalidConfig, match=f"{name} has 1 items for 2 prompts"):
            generate_sglang(Sglang({"max_total_num_tokens": 6}), ["a", "b"], **{name: ["en"]})


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=10), st.booleans())
def test_sglangs_answers_come_back_in_order(texts: list[str], as_ids: bool) -> None:
    engine = Sglang({"max_total_num_tokens": 6, "page_size": 1})
    sampling = [{"n": place} for place in range(len(texts))]
    loras = [None if place % 3 else "en" for place in range(len(texts))]
    batch: Any = [encode(text) for text in texts] if as_ids else texts
    named = {"input_ids": batch} if as_ids else {"prompt": batch}
    answers = generate_sglang(engine, sampling_params=sampling, lora_path=loras, **named)
    assert answers == list(zip(batch, loras, sampling, strict=True))


def test_sglang_needs_one_batch() -> None:
    engine = Sglang({"max_total_num_tokens": 6})
    both = {"prompt": ["a"], "input_ids": [[1]]}
    streamed = {"prompt": ["a"], "stream": True}
    for wrong in ({}, both, streamed, {"prompt": "a"}, {"input_ids": [1, 2]}):
        with pytest.raises(InvalidConfig):
            generate_sglang(engine, **wrong)
    engine.tokenizer_manager.tokenizer = None
    with pytest.raises(EngineMismatch, match="no tokenizer"):
        generate_sglang(engine, ["a"])


# -- peek batch -------------------------------------------------------------------------------------------

RUNNER = """
import json, sys
asked = [json.loads(line) for line in open(sys.argv[1])]
with open(sys.argv[2], "w") as out:
    for place, row in enumerate(asked[: int(sys.argv[3])]):
        out.write(json.dumps({"custom_id": row["custom_id"], "place": place}) + chr(10))
sys.exit(int(sys.argv[4]))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl.gz", json_rows(60))
    (tmp_path / "runner.py").write_text(RUNNER)
    return tmp_path


def batch(*words: object, answers: int = 60, code: int = 0) -> int:
    command = [sys.executable, "runner.py", "{in}", "{out}", str(answers), str(code)]
    return main(["batch", *map(str, words), "--cache-tokens", "500", "--", *command])


def test_a_batch_with_one_call(here: Path) -> None:
    assert batch("in.jsonl.gz", "out.jsonl") == 0
    rows = [json.loads(line) for line in lines(here / "out.jsonl")]
    assert [row["custom_id"] for row in rows] == [f"r-{number}" for number in range(60)]
    places = [row["place"] for row in rows]
    assert sorted(places) == list(range(60)) != places
    assert sorted(path.name for path in here.iterdir()) == ["in.jsonl.gz", "out.jsonl", "runner.py"]


def test_a_batch_that_does_not_fit_into_memory(here: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    pytest.importorskip("duckdb", reason="needs the extra peek-kv[offline]")
    packed = (here / "in.jsonl.gz").stat().st_size
    monkeypatch.setattr("peek.cli.reorder.OUT_OF_CORE_BYTES", 5 * packed + 1)  # it unpacks to more
    assert batch("in.jsonl.gz", "out.jsonl") == 1
    assert "choose --out-of-core" in capsys.readouterr().err
    for way in ("--out-of-core", "--in-memory"):
        assert batch("in.jsonl.gz", "out.jsonl", way) == 0
        assert len(lines(here / "out.jsonl")) == 60


def test_a_runner_that_fails_keeps_what_it_has(here: Path, capsys: Capsys) -> None:
    assert batch("in.jsonl.gz", "out.jsonl", answers=7, code=3) == 1
    err = capsys.readouterr().err
    assert "exit status 3" in err
    (kept,) = here.glob("out.jsonl.*.work")
    assert f"what there is of results is kept in {kept / 'results.jsonl'}" in err
    words = [str(kept / "results.jsonl"), "out.jsonl", "--order", str(kept / "ordered.order")]
    assert main(["restore", *words]) == 1
    assert len(lines(here / "out.jsonl")) == 7


def test_a_runner_that_leaves_some_out(here: Path, capsys: Capsys) -> None:
    assert batch("in.jsonl.gz", "out.jsonl", answers=58) == 1
    assert capsys.readouterr().err.endswith("/results.jsonl: 2 requests without a result\n")
    assert len(lines(here / "out.jsonl")) == 58


SCORE = json_row(60, {"model": "m", "text_1": "a", "text_2": "b"}, "/v1/score")
TOLD = "peek: in.jsonl: 1 bad line left out, 1 line not understood, put behind the others\n"


def test_a_bad_line_does_not_keep_the_others_from_running(here: Path, capsys: Capsys) -> None:
    rows = json_rows(60)
    write(here / "in.jsonl", [*rows[:20], SCORE, "{", *rows[20:]])
    assert batch("in.jsonl", "out.jsonl", answers=61) == 1
    assert capsys.readouterr().err.endswith(TOLD)
    found = [json.loads(line) for line in lines(here / "out.jsonl")]
    assert [row["custom_id"] for row in found] == [
        json.loads(row)["custom_id"] for row in (*rows[:20], SCORE, *rows[20:])
    ]
    assert found[20]["place"] == 60
    assert not list(here.glob("*.work"))


@pytest.mark.parametrize(
    ("answers", "code", "told"),
    [(59, 0, "/results.jsonl: 2 requests without a result; "), (9, 3, f"{sys.executable}: exit status 3; ")],
)
def test_bad_lines_are_said_beside_what_fails(
    here: Path, capsys: Capsys, answers: int, code: int, told: str
) -> None:
    write(here / "in.jsonl", [*json_rows(60), SCORE, "{"])
    assert batch("in.jsonl", "out.jsonl", answers=answers, code=code) == 1
    assert capsys.readouterr().err.endswith(told + TOLD.removeprefix("peek: "))
    assert len(list(here.glob("*.work"))) == 1


def test_a_batch_of_bad_lines_runs_nothing(here: Path, capsys: Capsys) -> None:
    write(here / "in.jsonl", ["{", "[]"])
    (here / "out.jsonl").write_text("good")
    assert batch("in.jsonl", "out.jsonl", code=3) == 1
    assert capsys.readouterr().err.endswith("peek: in.jsonl: 2 bad lines left out\n")
    assert (here / "out.jsonl").read_text() == "good"
    assert not list(here.glob("*.work"))


# -- --explain --------------------------------------------------------------------------------------------


def deep_chats(n: int = 120) -> list[str]:
    """One of two system prompts, then one of six documents, then a question."""
    rnd = random.Random(0)
    names = ["s0", "s1", *map(str, range(6))]
    text = {name: "".join(rnd.choice("abcdef ") for _ in range(640)) for name in names}
    rows = []
    for number in range(n):
        system = {"role": "system", "content": text[f"s{rnd.randrange(2)}"]}
        user = {"role": "user", "content": f"{text[str(rnd.randrange(6))]} question {number}"}
        rows.append(json_row(number, {"messages": [system, user]}, "/v1/chat/completions"))
    return rows


def told(capsys: Capsys, tmp_path: Path, rows: list[str], *words: str) -> dict[str, float]:
    source = write(tmp_path / "in.jsonl", rows)
    assert main(["reorder", str(source), str(tmp_path / "out"), "--explain", *words]) == 0
    shown = [line.rsplit(maxsplit=2) for line in capsys.readouterr().out.splitlines() if line.endswith(" %")]
    return {line[0].strip(): float(line[1]) for line in shown}


def test_explain_says_what_the_depth_gains(tmp_path: Path, capsys: Capsys) -> None:
    hits = told(capsys, tmp_path, deep_chats(), "--cache-tokens", "700")
    assert list(hits) == ["as it came, the engine's own order", "sorted by system prompt alone", "as written"]
    came, by_system, written = hits.values()
    assert came < by_system - 10 < written - 20
    one_level = told(capsys, tmp_path, chat_rows(), "--cache-tokens", "700")
    assert one_level["sorted by system prompt alone"] == pytest.approx(one_level["as written"], abs=1.0)


def test_explain_of_a_batch_without_system_prompts(tmp_path: Path, capsys: Capsys) -> None:
    hits = told(capsys, tmp_path, json_rows(), "--cache-tokens", "1000")
    assert list(hits) == ["as it came, the engine's own order", "as written"]


def test_an_engine_that_answers_too_few_is_an_error_and_no_answer_none() -> None:
    with pytest.raises(ValueError, match="shorter"):
        _back(["a"], [1, 0])
    assert _back(["a", "b"], [1, 0]) == ["b", "a"]
