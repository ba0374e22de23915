"""Reorder a batch so that prompts with a common prefix run next to each other.

Order, guards and expected hits are array operations on one trie over the batch (`BatchShape`), and one pass
over the prompts.  docs/offline.md has the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np

from peek.errors import InvalidConfig
from peek.offline.batch_trie import Residency, run_through
from peek.offline.block_keys import BLOCK_TOKENS
from peek.offline.replicas import MOST_REPLICAS, Share, split
from peek.offline.shape import (
    BatchShape,
    Ints,
    Prompts,
    by_place,
    contract,
    depth_first,
    places,
    shape_of,
    shared_depth,
)
from peek.request import MAX_TOKENS
from peek.trie.keys import pack

CACHE_TOKENS: Final = 50_000  # default size of the engine's cache in tokens: the paper's arena
MIN_GAIN: Final = 0.001  # default of the least rise of the hit ratio that is worth a change of order

MODES: Final = ("full", "paper")

DUPLICATION, COVERAGE, DEPTH, NO_SHARING, GAIN = "duplication", "coverage", "depth", "no-sharing", "gain"
"""The guards, of which the first three are the paper's (`paper_guard`)."""

# Of the paper: number of leading tokens that its trie reads (D), and the bounds of its guards.
PAPER_TOKENS: Final = 128
MAX_DUPLICATES: Final = 0.5
SHARING_TOKENS: Final = 32
MIN_COVERAGE: Final = 0.1
MIN_DEPTH_TOKENS: Final = 64


class Engine(NamedTuple):
    """When an engine lets other prompts hit a prefix."""

    spacing: int  # number of places that pioneers go ahead, at least the number of prompts in prefill at once
    # number of prompts that start before a prompt's prefix can be hit, for expected hits; 0 for an engine
    # that shares blocks as soon as they are scheduled, as vLLM does
    in_flight: int


ENGINES: Final = {"vllm": Engine(0, 0), "sglang": Engine(32, 16)}


def engine_named(name: str) -> Engine:
    if name not in ENGINES:
        raise InvalidConfig(f"engine {name!r} is unknown; valid: {', '.join(ENGINES)}")
    return ENGINES[name]


@dataclass(frozen=True, slots=True)
class Group:
    """Prompts with the same deepest shared node, at `depth` tokens, which run next to each other.

    `first` is the index of the first; `size` is 1 if all others at the node share a deeper node.
    """

    first: int
    size: int
    depth: int


@dataclass(frozen=True, slots=True)
class Reordering:
    """An order of a batch, with its groups and expected hits.

    Attributes:
        order: prompt indices, the prompt to run first at the front.
        guard: name of the guard that left the batch as it came, None if the batch was reordered.
        groups: the groups of the batch, the largest first.
        expected_hit_before, expected_hit_after: cached tokens / prompt tokens of the arrival order and of
            `order`, on a cold LRU cache of the stated size; None if not simulated.
        shares: the part of `order` for each replica; empty for one replica.
    """

    order: list[int]
    guard: str | None
    groups: list[Group]
    expected_hit_before: float | None
    expected_hit_after: float | None
    shares: list[Share] = field(default_factory=list)


def reorder(
    prompts: Prompts,
    *,
    cache_tokens: int = CACHE_TOKENS,
    block_tokens: int = BLOCK_TOKENS,
    mode: str = "full",
    engine: str = "vllm",
    pioneer_spacing: int | None = None,
    min_gain: float = MIN_GAIN,
    namespaces: Sequence[str] | None = None,
    simulate: bool = True,
    replicas: int = 1,
) -> Reordering:
    """Order a batch by the prefixes its prompts share.

    The order is depth-first through the prefix trie (paper, PEEK-offline, phase 1).  Prompts that end at a
    node come before its children.  Children with more prompts below come first, ties go by arrival.

    Args:
        prompts: token sequences as `PendingTree` takes them (lists, packed int32 bytes, arrays), or a
            two-dimensional integer array.
        cache_tokens: size of the engine's KV cache, tokens.
        block_tokens: size of a cache block, tokens; 1 for an engine that caches token by token.
        mode: "full" reads whole prompts in whole blocks, and reorders if the simulated hit rises by
            `min_gain`.  "paper" reads the first 128 tokens, token by token, with the three published guards.
        engine: "vllm" if prompts can hit a prefix that is still in prefill, "sglang" if not.  Decides the
            simulation, and `pioneer_spacing` if that is None (see `pioneers_ahead`).
        pioneer_spacing: number of places that the first prompt of a group goes ahead; mode "full" only.
        min_gain: least rise of the hit ratio that is worth a change of order; mode "full" only.
        namespaces: namespace of each prompt, which keeps it from sharing (LoRA adapter, cache salt).
        simulate: False leaves out the expected hits; mode "full" then reorders if anything is shared.
        replicas: number of engines to divide the order over, by uncached tokens; see `Reordering.shares`.

    Raises `InvalidKey` for a prompt that is no token sequence, and `InvalidConfig` for an unknown mode or
    engine, a size or number below 1 or beyond 2**53, more than 10,000 replicas, a spacing below 0, a gain
    beyond -1 .. 1, a cache of less than one block, or namespaces that are not as many as prompts.

    Cost: one pass over the tokens (about 3 ns each from lists), two in mode "paper", and O(n log n) array
    operations.
    """
    kind = engine_named(engine)
    if pioneer_spacing is not None:
        kind = kind._replace(spacing=pioneer_spacing)
    _check(mode, cache_tokens, block_tokens, replicas, kind.spacing, min_gain)
    cache = cache_tokens if simulate else 0
    prompts = by_place(prompts)
    if mode == "full":
        shape = contract(shape_of(prompts, namespaces=namespaces), block_tokens)
        result = arrange(shape, cache, block_tokens, kind, min_gain)
    else:
        seen = shape_of(prompts, PAPER_TOKENS, namespaces)
        guard = paper_guard(prompts, seen)
        order = depth_first(seen) if guard is None else np.arange(len(seen.leaf))
        result = Reordering(order.tolist(), guard, groups_of(seen, 1), None, None)
        if cache or replicas > 1:
            shape = contract(shape_of(prompts, namespaces=namespaces), block_tokens)
            result = _with_hits(result, shape, cache, block_tokens, kind)
    if replicas > 1:
        result = replace(result, shares=shares_of(shape, result, replicas, block_tokens))
    return result


def shares_of(shape: BatchShape, result: Reordering, replicas: int, block_tokens: int) -> list[Share]:
    """Divide a batch over `replicas`; arguments and errors are those of `split`.

    A guard says that one engine may take the prompts as they came.  With several engines each would then
    compute all prefixes, so guards do not count here.
    """
    order = result.order if result.guard is None else depth_first(shape).tolist()
    return split(shape, order, replicas, block_tokens)


def arrange(
    shape: BatchShape, cache_tokens: int, block_tokens: int, engine: Engine, min_gain: float = MIN_GAIN
) -> Reordering:
    """Do what `reorder` does in mode "full", from a trie in blocks; `cache_tokens` 0 simulates nothing."""
    stock = np.arange(len(shape.leaf))
    groups = groups_of(shape, block_tokens)
    guard = None if groups else NO_SHARING
    order = pioneers_ahead(shape, depth_first(shape), engine.spacing) if groups else stock
    result = Reordering(order.tolist(), guard, groups, None, None)
    result = _with_hits(result, shape, cache_tokens, block_tokens, engine)
    before, after = result.expected_hit_before, result.expected_hit_after
    if guard is None and before is not None and after is not None and after < before + min_gain:
        return Reordering(stock.tolist(), GAIN, groups, before, before)
    return result


def _check(
    mode: str, cache_tokens: int, block_tokens: int, replicas: int, spacing: int, min_gain: float
) -> None:
    if mode not in MODES:
        raise InvalidConfig(f"mode {mode!r} is unknown; valid: {', '.join(MODES)}")
    numbers = (
        ("replicas", replicas, 1, MOST_REPLICAS), ("block_tokens", block_tokens, 1, MAX_TOKENS),
        ("cache_tokens", cache_tokens, 1, MAX_TOKENS), ("pioneer_spacing", spacing, 0, MAX_TOKENS),
        ("min_gain", min_gain, -1, 1),
    )  # fmt: skip
    for name, number, least, most in numbers:
        if not least <= number <= most:
            raise InvalidConfig(f"{name} is {number}; need {least} .. {most}")
    if cache_tokens < block_tokens:
        raise InvalidConfig(f"cache_tokens is {cache_tokens}, less than one block of {block_tokens}")


def groups_of(shape: BatchShape, unit_tokens: int) -> list[Group]:
    """Return the groups of a batch by size, then depth, descending, then arrival.  O(nodes log nodes)."""
    # The part of a prompt below its deepest shared node is a single node, because nothing branches in it.
    shared = np.where(shape.count >= 2, np.arange(len(shape.count)), shape.parent)
    node = shared[shape.leaf]
    _, firsts, sizes = np.unique(node, return_index=True, return_counts=True)
    depths = shape.depth[node[firsts]] * unit_tokens
    groups = map(Group, firsts.tolist(), sizes.tolist(), depths.tolist())
    found = (group for group in groups if group.depth > 0)
    return sorted(found, key=lambda group: (-group.size, -group.depth, group.first))


def pioneers_ahead(shape: BatchShape, order: Ints, spacing: int) -> Ints:
    """Return the depth-first `order` of `shape` with every pioneer `spacing` places earlier.  O(n log n).

    A pioneer is the first prompt that reaches a shared node; the other prompts keep their order.  Engines
    such as SGLang share a prefix only when its prefill has ended, so a sibling that starts beside the pioneer
    computes the prefix again.  A pioneer that starts with the last prompts of earlier groups ends in time.
    """
    if not spacing:
        return order
    shared = (shape.count >= 2) & (shape.lengths > 0)
    is_pioneer = np.zeros(len(order), bool)
    is_pioneer[places(shape)[shared]] = True
    at = np.arange(len(order))
    key = 2 * np.where(is_pioneer, at - spacing, at) + ~is_pioneer
    return order[np.argsort(key, kind="stable")]


# -- expected hits ------------------------------------------------------------------------------------------


def _with_hits(
    result: Reordering, shape: BatchShape, cache_tokens: int, block_tokens: int, engine: Engine
) -> Reordering:
    """Add the expected hits; with `cache_tokens` 0 there are none."""
    if not cache_tokens:
        return result
    how = (cache_tokens // block_tokens, block_tokens, engine.in_flight)
    before = after = hit_ratio(shape, np.arange(len(shape.leaf)), *how)
    if result.guard is None:
        after = hit_ratio(shape, np.array(result.order), *how)
    return replace(result, expected_hit_before=before, expected_hit_after=after)


def hit_tokens(
    shape: BatchShape, order: Ints, cache_blocks: int, block_tokens: int, in_flight: int = 0
) -> list[int]:
    """Return the cached tokens of each prompt, in this order, on a cold LRU cache of `cache_blocks`.

    `shape` is in blocks of `block_tokens`; for `in_flight` see `Engine`.
    """
    limits = np.maximum(shape.tokens - 1, 0) // block_tokens
    cache = Residency(shape.parent.tolist(), shape.lengths.tolist(), cache_blocks)
    hits = run_through(cache, shape.leaf[order].tolist(), limits[order].tolist(), in_flight)
    return [blocks * block_tokens for blocks in hits]


def hit_ratio(
    shape: BatchShape, order: Ints, cache_blocks: int, block_tokens: int, in_flight: int = 0
) -> float:
    """Return cached tokens / prompt tokens of this order; arguments are those of `hit_tokens`."""
    tokens = int(shape.tokens.sum())
    return sum(hit_tokens(shape, order, cache_blocks, block_tokens, in_flight)) / tokens if tokens else 0.0


def paper_guard(prompts: Prompts, shape: BatchShape) -> str | None:
    """Return the paper's first guard that fires, None if none does (PEEK-offline, "Guard conditions").

    `DUPLICATION`: more than half of the prompts repeat an earlier prompt exactly.  `COVERAGE`: fewer than a
    tenth of the prompts share at least 32 tokens with another.  `DEPTH`: the mean shared depth of all prompts
    is below 64 tokens.  Depths are those of `shape`, at most D tokens.  An empty batch gives `NO_SHARING`.
    """
    n = len(shape.leaf)
    if not n or duplicates(prompts, shape) > MAX_DUPLICATES * n:
        return DUPLICATION if n else NO_SHARING
    depths = shared_depth(shape)
    if np.count_nonzero(depths >= SHARING_TOKENS) < MIN_COVERAGE * n:
        return COVERAGE
    return DEPTH if depths.mean() < MIN_DEPTH_TOKENS else None


def duplicates(prompts: Prompts, shape: BatchShape) -> int:
    """Return how many prompts equal an earlier prompt, token for token."""
    alike = np.flatnonzero(shape.count[shape.leaf] >= 2)
    ends = zip(alike.tolist(), shape.leaf[alike].tolist(), strict=True)  # a namespace has nodes of its own
    return len(alike) - len({(leaf, blake2b(pack(prompts[place])).digest()) for place, leaf in ends})
