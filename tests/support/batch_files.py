"""Batch files for the tests of `peek reorder` and `peek restore`, and the results of a runner."""

from __future__ import annotations

import gzip
import json
import lzma
import random
from pathlib import Path
from typing import Any

import pytest

from support.offline_batches import grouped


def json_row(number: int, body: dict[str, Any], url: str = "/v1/completions") -> str:
    return json.dumps({"custom_id": f"r-{number}", "method": "POST", "url": url, "body": body})


def json_rows(n: int = 300, seed: int = 5) -> list[str]:
    """Requests of token ids; groups share 256 of them."""
    batch = grouped(random.Random(seed), n, 12, 256, 32)
    return [json_row(i, {"model": "m", "prompt": prompt}) for i, prompt in enumerate(batch)]


def chat_rows(n: int = 200) -> list[str]:
    """Chats under eight system prompts."""
    rnd = random.Random(6)
    systems = [" ".join(f"rule{rnd.randrange(10_000)}" for _ in range(120)) for _ in range(8)]
    rows = []
    for i in range(n):
        system = {"role": "system", "content": rnd.choice(systems)}
        user = {"role": "user", "content": f"question {rnd.random()} ä"}
        rows.append(json_row(i, {"model": "m", "messages": [system, user]}, "/v1/chat/completions"))
    return rows


def anthropic_rows(n: int = 200) -> list[str]:
    """Chats under ten system prompts of 2,000 characters, as a batch for Anthropic's API."""
    rows = []
    for i in range(n):
        system = [{"type": "text", "text": f"{i % 10}" * 2000}]
        messages = [{"role": "user", "content": f"question {i}"}]
        params = {"model": "m", "max_tokens": 9, "system": system, "messages": messages}
        rows.append(json.dumps({"custom_id": f"r{i}", "params": params}))
    return rows


def write(path: Path, rows: list[str]) -> Path:
    """The rows as a file, compressed if its name says so."""
    data = ("\n".join(rows) + "\n").encode()
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".xz":
        data = lzma.compress(data)
    elif path.suffix == ".zst":
        data = pytest.importorskip("zstandard").ZstdCompressor().compress(data)
    path.write_bytes(data)
    return path


def lines(path: Path) -> list[str]:
    """The lines of a file, which may be compressed."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".xz":
        data = lzma.decompress(data)
    elif path.suffix == ".zst":
        zstandard = pytest.importorskip("zstandard")
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data.decode().splitlines()


def results_of(requests: list[str]) -> list[str]:
    """What a batch runner writes: custom_id and an answer."""
    return [
        json.dumps({"custom_id": json.loads(each)["custom_id"], "response": len(each)}) for each in requests
    ]
