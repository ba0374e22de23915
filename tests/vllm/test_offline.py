"""`peek.offline` in front of the whole engine: 500 prompts of 20 groups, a cache for two; a batch file."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from support.tokenizers import write_tokenizer
from support.whole import run_python
from test_engine import pytestmark
from vllm_lab import TINY_LLAMA, write_model

from peek.cli.main import main

__all__ = ["pytestmark"]

BLOCK = 32
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def test_reordered_prompts_hit_and_results_stay(tmp_path: Path) -> None:
    script = Path(__file__).with_name("offline_run.py")
    result = tmp_path / "result.json"
    run_python(tmp_path, str(script), str(result))
    found = json.loads(result.read_text())
    assert found["same_results"]
    assert found["cache_tokens"] == 20 * 32
    assert found["hit_stock"] < 0.2
    assert found["hit_reordered"] > 0.8
    assert abs(found["hit_reordered"] - found["expected_after"]) < 0.03
    assert abs(found["hit_stock"] - found["expected_before"]) < 0.06


def chats() -> list[str]:
    """120 chats under six system prompts of 256 letters, in random order."""
    rnd = random.Random(0)
    systems = ["".join(rnd.choice("abcdefgh ") for _ in range(8 * BLOCK)) for _ in range(6)]
    rows = []
    for number in range(120):
        said = {"system": rnd.choice(systems), "user": f"{number:08} please"}
        messages = [{"role": role, "content": content} for role, content in said.items()]
        body = {"model": "m", "max_tokens": 2, "ignore_eos": True, "temperature": 0, "messages": messages}
        url = "/v1/chat/completions"
        rows.append(json.dumps({"custom_id": f"r{number}", "method": "POST", "url": url, "body": body}))
    return rows


def answers(path: Path) -> tuple[list[str], list[str], int]:
    """Ids and texts in the file's order, and cached tokens."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    bodies = [row["response"]["body"] for row in rows]
    details = [(body["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0 for body in bodies]
    texts = [body["choices"][0]["message"]["content"] for body in bodies]
    return [row["custom_id"] for row in rows], texts, sum(details)


def test_a_batch_file_with_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    rows = chats()
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    (tmp_path / "template").write_text(TEMPLATE)
    model = write_model(tmp_path / "model")
    write_tokenizer(tmp_path / "model", TINY_LLAMA["vocab_size"])
    sizes: dict[str, Any] = {"block-size": BLOCK, "num-gpu-blocks-override": 21, "max-model-len": 320}
    sizes |= {"max-num-batched-tokens": 2048, "max-num-seqs": 2}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.run_batch", "--model", model]
    command += ["--served-model-name", "m", "--load-format", "dummy", "--enforce-eager", "--seed", "0"]
    command += ["--chat-template", "template", "--enable-prompt-tokens-details", "--enable-prefix-caching"]
    command += [f"--{name}={value}" for name, value in sizes.items()]
    files = ["-i", "in.jsonl", "-o", "stock.jsonl"]
    run_python(tmp_path, *command[1:], *files)
    words = ["--cache-tokens", "640", "--block-tokens", str(BLOCK), "--tokenizer", "model"]
    assert main(["batch", "in.jsonl", "ours.jsonl", *words, "--", *command, "-i", "{in}", "-o", "{out}"]) == 0
    stock_ids, stock_texts, stock_cached = answers(tmp_path / "stock.jsonl")
    ids, texts, cached = answers(tmp_path / "ours.jsonl")
    assert ids == stock_ids == [f"r{number}" for number in range(120)]
    assert texts == stock_texts
    assert stock_cached < 0.45 * cached
    assert cached > 0.75 * 120 * 8 * BLOCK
    assert not list(tmp_path.glob("*.work"))
