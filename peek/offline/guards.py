"""When to leave a batch in the order it came in.

The three checks of the paper (PEEK-offline, "Guard conditions") look at the batch alone; the check of the
default mode runs both orders through a cache of the stated size and keeps the better one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from peek.offline.residency import Residency, run_through
from peek.offline.shape import BatchShape, Ints, shared_depth
from peek.trie.keys import pack

DUPLICATION: Final = "duplication"
COVERAGE: Final = "coverage"
DEPTH: Final = "depth"
NO_SHARING: Final = "no-sharing"
GAIN: Final = "gain"

MAX_DUPLICATES: Final = 0.5
SHARING_TOKENS: Final = 32
MIN_COVERAGE: Final = 0.1
MIN_DEPTH_TOKENS: Final = 64

_TAIL_TOKENS: Final = 16
"""Trailing tokens by which duplicates are looked for before whole prompts are compared."""


def paper_guard(prompts: Sequence[Any], shape: BatchShape) -> str | None:
    """The first of the paper's guards that fires, None if none does.

    `DUPLICATION`: more than half of the prompts repeat an earlier one exactly.  `COVERAGE`: fewer than a
    tenth share at least 32 tokens with another.  `DEPTH`: the shared depth is below 64 tokens on average,
    over all prompts.  Depths are those of `shape`, so at most its D tokens.
    """
    n = len(shape.leaf)
    if not n or duplicates(prompts, shape) > MAX_DUPLICATES * n:
        return DUPLICATION if n else NO_SHARING
    depths = shared_depth(shape)
    if np.count_nonzero(depths >= SHARING_TOKENS) < MIN_COVERAGE * n:
        return COVERAGE
    return DEPTH if depths.mean() < MIN_DEPTH_TOKENS else None


def duplicates(prompts: Sequence[Any], shape: BatchShape) -> int:
    """How many prompts equal an earlier one, token for token.

    Whole prompts are compared only where end in the trie, length and last 16 tokens agree.
    """
    alike: dict[tuple[int, int, bytes], list[int]] = {}
    ends = zip(shape.leaf.tolist(), shape.tokens.tolist(), strict=True)
    for position, (leaf, length) in enumerate(ends):
        if shape.count[leaf] >= 2:
            alike.setdefault((leaf, length, _tail(prompts[position])), []).append(position)
    found = 0
    for positions in alike.values():
        if len(positions) >= 2:
            found += len(positions) - len({pack(prompts[position]) for position in positions})
    return found


def _tail(prompt: Any) -> bytes:
    width = 4 if isinstance(prompt, (bytes, bytearray)) else 1
    return pack(prompt[-_TAIL_TOKENS * width :])


def hit_tokens(
    shape: BatchShape, order: Ints, cache_blocks: int, block_tokens: int, in_flight: int = 0
) -> list[int]:
    """Of each prompt in this order, the tokens that a cold LRU cache serves.

    Args:
        shape: in blocks of `block_tokens`.
        order: prompt indices.
        in_flight: prompts that start before one's blocks can be hit (0: an engine that shares blocks from
            the moment they are scheduled, as vLLM does).
    """
    limits = np.maximum(shape.tokens - 1, 0) // block_tokens
    cache = Residency(shape.parent.tolist(), shape.lengths.tolist(), cache_blocks)
    hits = run_through(cache, shape.leaf[order].tolist(), limits[order].tolist(), in_flight)
    return [blocks * block_tokens for blocks in hits]


def hit_ratio(
    shape: BatchShape, order: Ints, cache_blocks: int, block_tokens: int, in_flight: int = 0
) -> float:
    """Cached tokens over prompt tokens of this order on a cold LRU cache; arguments as `hit_tokens`."""
    tokens = int(shape.tokens.sum())
    return sum(hit_tokens(shape, order, cache_blocks, block_tokens, in_flight)) / tokens if tokens else 0.0
