"""Times `peek.offline.reorder` from token lists: four shapes of a batch, and a million prompts."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from support.offline_batches import branching

from bench.measure import Measure
from peek.offline import reorder
from peek.timing import VOCABULARY

Prompts = list[list[int]]


def groups(n: int, count: int, prefix: int, own: int) -> Prompts:
    rng = np.random.default_rng(0)
    prefixes = rng.integers(0, VOCABULARY, size=(count, prefix)).tolist()
    chosen = rng.integers(0, count, size=n)
    return [prefixes[g] + rng.integers(0, VOCABULARY, size=own).tolist() for g in chosen]


def branches(n: int) -> Prompts:
    prompts: Prompts = branching(random.Random(0), n, trees=20, levels=6, edge=64, fan=3, tail=64)
    return prompts


def unshared(n: int) -> Prompts:
    prompts: Prompts = np.random.default_rng(0).integers(0, VOCABULARY, size=(n, 256)).tolist()
    return prompts


SHAPES: dict[str, Callable[[int], Prompts]] = {
    "100 groups x (2048 + 128)": partial(groups, count=100, prefix=2048, own=128),
    "few-shot, 10 x (1200 + 100)": partial(groups, count=10, prefix=1200, own=100),
    "branching": branches,
    "no sharing": unshared,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n", "max_s", "rounds"), [(5_000, 0.05, 20), (50_000, 1.0, 3)])
def test_reorder(measure: Measure, shape: str, n: int, max_s: float, rounds: int) -> None:
    batch = SHAPES[shape](n)
    measure(f"reorder {n:,}, {shape}", reorder, lambda: (batch,), rounds=rounds, max_s=max_s)


@pytest.mark.parametrize("shape", SHAPES)
def test_published_form(measure: Measure, shape: str) -> None:
    batch = SHAPES[shape](5_000)
    action = partial(reorder, mode="paper", simulate=False)
    measure(f"published form 5,000, {shape}", action, lambda: (batch,), rounds=20, max_s=0.05)


def test_a_million(measure: Measure) -> None:
    rng = np.random.default_rng(0)
    batch = rng.integers(0, VOCABULARY, size=(1_000_000, 128), dtype=np.int32)
    batch[:, :64] = batch[rng.integers(0, 20_000, size=1_000_000), :64]
    gc.collect()
    measure("reorder 1,000,000 x 128 (array)", reorder, lambda: (batch,), rounds=1, max_s=10.0)
