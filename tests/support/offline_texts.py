"""Offline workloads from real text: HumanEval, GSM8K, MT-bench and MMLU next to the checkout.

A token is a word, a run of digits or a punctuation mark; tokens are numbered in order of first appearance.
Long documents are stretches of the concatenated MMLU texts.  Draws are seeded.  Prompts are in the order in
which such a job would be submitted.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
import tarfile
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

TEXTS = Path(__file__).resolve().parents[3] / "shared/data/text"

Prompt = list[int]
Batch = list[Prompt]

_WORDS = re.compile(r"[A-Za-z]+|[0-9]+|\n+|[^\sA-Za-z0-9]")
_NUMBERS: dict[str, int] = {}


def tokens(text: str) -> Prompt:
    return [_NUMBERS.setdefault(word, len(_NUMBERS)) for word in _WORDS.findall(text)]


@lru_cache
def humaneval() -> list[str]:
    with gzip.open(TEXTS / "HumanEval.jsonl.gz", "rt") as lines:
        return [json.loads(line)["prompt"] for line in lines]


@lru_cache
def gsm8k() -> list[str]:
    with gzip.open(TEXTS / "gsm8k_test.jsonl.gz", "rt") as lines:
        return [json.loads(line)["question"] for line in lines]


@lru_cache
def mt_bench() -> list[list[str]]:
    lines = (TEXTS / "mt_bench_question.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["turns"] for line in lines]


@lru_cache
def mmlu() -> dict[str, dict[str, list[list[str]]]]:
    """Rows (question, four answers, letter) by part ("dev", "test") and subject."""
    found: dict[str, dict[str, list[list[str]]]] = {"dev": {}, "test": {}}
    with tarfile.open(TEXTS / "mmlu_dev_test_csv.tar.xz") as archive:
        for member in archive:
            if not member.name.endswith(".csv"):
                continue
            part = member.name.split("/")[-2]
            data = archive.extractfile(member)
            assert data is not None
            text = data.read().decode("utf-8")
            subject = Path(member.name).stem.removesuffix(f"_{part}")
            found[part][subject] = list(csv.reader(io.StringIO(text)))
    return {part: dict(sorted(subjects.items())) for part, subjects in found.items()}


def asked(row: list[str], with_answer: bool) -> str:
    answers = "\n".join(f"{letter}. {text}" for letter, text in zip("ABCD", row[1:5], strict=True))
    return f"{row[0]}\n{answers}\nAnswer:" + (f" {row[5]}\n\n" if with_answer else "")


@lru_cache
def running_text() -> Prompt:
    """All test questions of MMLU, one behind the other."""
    return tokens("\n".join(asked(row, True) for rows in mmlu()["test"].values() for row in rows))


def documents(count: int, length: int, start: int = 0) -> Batch:
    """Stretches of running text; the text begins anew where it ends."""
    text = running_text()
    return [[text[(start + i * length + k) % len(text)] for k in range(length)] for i in range(count)]


def questions() -> Batch:
    return [tokens(text) for text in gsm8k()]


def zipf(rnd: random.Random, n: int, draws: int) -> list[int]:
    weights = list(accumulate(1 / (rank + 1) for rank in range(n)))
    return rnd.choices(range(n), cum_weights=weights, k=draws)


# -- a single job -----------------------------------------------------------------------------------------


def system_prompts(rnd: random.Random) -> Batch:
    prompts, own = documents(100, 2048), documents(2000, 128, start=210_000)
    return [rnd.choice(prompts) + tail for tail in own]


def few_shot(rnd: random.Random) -> Batch:
    """The MMLU form: header, five solved examples, a question; ten subjects, questions shuffled."""
    batch = []
    for subject in list(mmlu()["test"])[:10]:
        header = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
        shots = tokens(header + "".join(asked(row, True) for row in mmlu()["dev"][subject][:5]))
        batch += [shots + tokens(asked(row, False)) for row in mmlu()["test"][subject][:200]]
    rnd.shuffle(batch)
    return batch


def multi_turn(rnd: random.Random) -> Batch:
    """Six turns of 80 conversations, round after round; the context is cut at 2,048 tokens."""
    replies = iter(documents(80 * 6, 300))
    asks = questions()
    histories = [tokens(turns[0]) for turns in mt_bench()]
    batch = []
    for turn in range(6):
        for i, history in enumerate(histories):
            batch.append(history[:2048])
            follow = tokens(mt_bench()[i][1]) if turn == 0 else asks[80 * turn + i]
            histories[i] = history + next(replies) + follow
    return batch


def code_completion(rnd: random.Random) -> Batch:
    """HumanEval, ten samples of each problem, as they come: sample after sample."""
    return [tokens(text) for _ in range(10) for text in humaneval()]


def singletons(rnd: random.Random) -> Batch:
    return questions()


def mixed_traffic(rnd: random.Random) -> Batch:
    prompts, asks = documents(5, 1500), questions()
    own = iter(documents(2000, 700, start=100_000))
    return [
        rnd.choice(prompts) + rnd.choice(asks) if rnd.random() < 0.7 else next(own)[: rnd.randrange(50, 700)]
        for _ in range(2000)
    ]


# -- larger jobs ------------------------------------------------------------------------------------------


def legal_rag(rnd: random.Random) -> Batch:
    """One instruction, one of 60 long documents by popularity, a question."""
    head, texts, asks = documents(1, 400)[0], documents(60, 6000, start=1000), questions()
    return [head + texts[i] + rnd.choice(asks) for i in zipf(rnd, 60, 1500)]


def summarisation(rnd: random.Random) -> Batch:
    """Forty documents of 8,192 tokens, each asked for 20 aspects."""
    texts, asks = documents(40, 8192), questions()
    batch = [text + asks[k] for text in texts for k in range(20)]
    rnd.shuffle(batch)
    return batch


def multi_agent(rnd: random.Random) -> Batch:
    """Twelve agents with 16,384 tokens of instructions and tools each."""
    agents, asks = documents(12, 16_384), questions()
    return [rnd.choice(agents) + rnd.choice(asks) for _ in range(600)]


def enterprise_search(rnd: random.Random) -> Batch:
    """An instruction, the two best of 80 passages, a query: sharing that branches."""
    head, passages, asks = documents(1, 600)[0], documents(80, 800, start=5000), questions()
    firsts, seconds = zipf(rnd, 80, 2000), zipf(rnd, 80, 2000)
    return [head + passages[i] + passages[j] + rnd.choice(asks) for i, j in zip(firsts, seconds, strict=True)]


def mixed_large(rnd: random.Random) -> Batch:
    batch = legal_rag(rnd)[:500] + multi_agent(rnd)[:150] + enterprise_search(rnd)[:500] + questions()[:500]
    rnd.shuffle(batch)
    return batch


def no_sharing(rnd: random.Random) -> Batch:
    return documents(150, 2000)


WORKLOADS: dict[str, tuple[Callable[[random.Random], Batch], int]] = {
    "system prompts": (system_prompts, 50_000),
    "few-shot": (few_shot, 5_000),
    "multi-turn": (multi_turn, 50_000),
    "code completion": (code_completion, 20_000),
    "diverse singletons": (singletons, 50_000),
    "mixed traffic": (mixed_traffic, 5_000),
    "legal RAG": (legal_rag, 100_000),
    "summarisation": (summarisation, 100_000),
    "multi-agent": (multi_agent, 100_000),
    "enterprise search": (enterprise_search, 50_000),
    "mixed, large": (mixed_large, 100_000),
    "no sharing": (no_sharing, 100_000),
}
"""How each is made, and the cache it runs with, in tokens."""


def workload(name: str) -> tuple[Batch, int]:
    make, cache_tokens = WORKLOADS[name]
    return make(random.Random(42)), cache_tokens
