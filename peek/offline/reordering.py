"""Reorder a known batch so that prompts with a common prefix run next to each other.

Two modes.  "paper" is the published order with its guards, for reproduction.  "full" sees sharing at any
depth and is used only where a simulated cache gains by it.

Plan.  One trie over the batch (`BatchTrie`), as arrays (`BatchShape`).  From there the order, the guards and
the expected hits are array work and one pass over the prompts.  docs/offline.md has the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from peek.errors import InvalidConfig
from peek.offline.batch_trie import Residency, run_through
from peek.offline.replicas import Share, split
from peek.offline.shape import BatchShape, Ints, contract, depth_first, places, shape_of, shared_depth
from peek.trie.keys import pack

BLOCK_TOKENS: Final = 16
"""vLLM's block."""

CACHE_TOKENS: Final = 50_000
"""The paper's arena."""

MODES: Final = ("full", "paper")

PAPER_TOKENS: Final = 128
"""The paper's D: leading tokens that its trie sees."""

DUPLICATION: Final = "duplication"
COVERAGE: Final = "coverage"
DEPTH: Final = "depth"
NO_SHARING: Final = "no-sharing"
GAIN: Final = "gain"

MAX_DUPLICATES: Final = 0.5
SHARING_TOKENS: Final = 32
MIN_COVERAGE: Final = 0.1
MIN_DEPTH_TOKENS: Final = 64
"""This and the three above: the paper's bounds, see `paper_guard`."""

_TAIL_TOKENS: Final = 16
"""Trailing tokens by which duplicates are looked for before whole prompts are compared."""


class Engine(NamedTuple):
    """How an engine shares prefixes.

    Attributes:
        spacing: places that pioneers are put ahead; at least as many as prompts are in prefill at once.
        in_flight: prompts taken to start before one's prefix can be hit, when expected hits are simulated.
    """

    spacing: int
    in_flight: int


ENGINES: Final = {"vllm": Engine(0, 0), "sglang": Engine(32, 16)}


def engine_named(name: str) -> Engine:
    """An engine by its name; `InvalidConfig` for an unknown one."""
    if name not in ENGINES:
        raise InvalidConfig(f"engine {name!r} is unknown; valid: {', '.join(ENGINES)}")
    return ENGINES[name]


@dataclass(frozen=True, slots=True)
class Group:
    """Prompts whose deepest shared node is the same: what runs next to each other.

    Attributes:
        first: index of the first of them.
        size: how many they are; 1 where the others that share the node share more among themselves.
        depth: tokens they share.
    """

    first: int
    size: int
    depth: int


@dataclass(frozen=True, slots=True)
class Reordering:
    """An order and what is known about it.

    Attributes:
        order: prompt indices, the first to run first.
        guard: which guard left the batch as it came, None if it was reordered.
        groups: the largest first.
        expected_hit_before, expected_hit_after: cached tokens / prompt tokens of the arrival order and of
            `order` on a cold LRU cache of the stated size; None if not asked for.
        shares: what each replica runs, where there are several; `order` divided.
    """

    order: list[int]
    guard: str | None
    groups: list[Group]
    expected_hit_before: float | None
    expected_hit_after: float | None
    shares: list[Share] = field(default_factory=list)


def reorder(
    prompts: Sequence[Any],
    *,
    cache_tokens: int = CACHE_TOKENS,
    block_tokens: int = BLOCK_TOKENS,
    mode: str = "full",
    engine: str = "vllm",
    pioneer_spacing: int | None = None,
    min_gain: float = 0.001,
    namespaces: Sequence[str] | None = None,
    simulate: bool = True,
    replicas: int = 1,
) -> Reordering:
    """Order a batch by the prefixes its prompts share.

    Depth-first order of the prefix trie, children by descending subtree count, ties by arrival; prompts that
    end at a node come before its children (paper, PEEK-offline, phase 1).

    Args:
        prompts: token sequences as `PendingTree` takes them (lists, packed int32 bytes, arrays), or a
            two-dimensional integer array.
        cache_tokens: tokens of KV cache that the engine has.
        block_tokens: tokens of a cache block; 1 for an engine that caches token by token.
        mode: "full": all of every prompt in whole blocks, used if the simulated hit rises by `min_gain`.
            "paper": the first 128 tokens, token by token, and the three published guards.
        engine: "vllm" or "sglang": whether prompts can hit a prefix that is still in prefill.  Sets
            `pioneer_spacing` where that is None, and what is simulated (see `pioneers_ahead`).
        pioneer_spacing: places that the first prompt of a group goes ahead of the others; mode "full" only.
        min_gain: least rise of the hit ratio; less is not worth a change of order.
        namespaces: of each prompt, what keeps it from sharing with others (LoRA, cache salt).
        simulate: False leaves out the expected hits; mode "full" then reorders wherever anything is shared.
        replicas: divide the order over so many, by uncached tokens; see `Reordering.shares`.

    Raises:
        InvalidKey: a prompt is no token sequence.
        InvalidConfig: an unknown mode or engine, a size or number below 1.

    Cost: one pass over the tokens (about 3 ns each from lists) and O(n log n) array operations.
    """
    _check(mode, cache_tokens, block_tokens, replicas)
    kind = engine_named(engine)
    if pioneer_spacing is not None:
        kind = kind._replace(spacing=pioneer_spacing)
    cache = cache_tokens if simulate else 0
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
        if cache:
            result = _with_hits(result, shape, cache, block_tokens, kind)
    if replicas > 1:
        result = replace(result, shares=split(shape, result.order, replicas, block_tokens))
    return result


def arrange(
    shape: BatchShape, cache_tokens: int, block_tokens: int, engine: Engine, min_gain: float = 0.0
) -> Reordering:
    """`reorder` for a trie that is there already, in blocks; `cache_tokens` 0: no simulation."""
    stock = np.arange(len(shape.leaf))
    groups = groups_of(shape, block_tokens)
    guard = None if groups else NO_SHARING
    order = pioneers_ahead(shape, depth_first(shape), engine.spacing) if groups else stock
    result = Reordering(order.tolist(), guard, groups, None, None)
    if not cache_tokens:
        return result
    result = _with_hits(result, shape, cache_tokens, block_tokens, engine)
    before, after = result.expected_hit_before, result.expected_hit_after
    if guard is None and before is not None and after is not None and after < before + min_gain:
        return Reordering(stock.tolist(), GAIN, groups, before, before)
    return result


def _check(mode: str, cache_tokens: int, block_tokens: int, replicas: int) -> None:
    if mode not in MODES:
        raise InvalidConfig(f"mode {mode!r} is unknown; valid: {', '.join(MODES)}")
    if replicas < 1:
        raise InvalidConfig(f"replicas is {replicas}, less than 1")
    if block_tokens < 1:
        raise InvalidConfig(f"block_tokens is {block_tokens}, less than 1")
    if cache_tokens < block_tokens:
        raise InvalidConfig(f"cache_tokens is {cache_tokens}, less than one block of {block_tokens}")


def groups_of(shape: BatchShape, unit_tokens: int) -> list[Group]:
    """The groups of a batch, the largest first, then the deeper, then by arrival.  O(nodes log nodes)."""
    # A prompt's own stretch below its deepest shared node is a single node: nothing branches in it.
    shared = np.where(shape.count >= 2, np.arange(len(shape.count)), shape.parent)
    node = shared[shape.leaf]
    _, firsts, inverse = np.unique(node, return_index=True, return_inverse=True)
    sizes = np.bincount(inverse)
    depths = shape.depth[node[firsts]] * unit_tokens
    groups = [
        Group(first, size, depth)
        for first, size, depth in zip(firsts.tolist(), sizes.tolist(), depths.tolist(), strict=True)
        if depth > 0
    ]
    return sorted(groups, key=lambda group: (-group.size, -group.depth, group.first))


def pioneers_ahead(shape: BatchShape, order: Ints, spacing: int) -> Ints:
    """The depth-first `order` of `shape` with every pioneer `spacing` places earlier.

    A pioneer is the first prompt that touches a shared node; the others keep their order.  It is for engines
    that share a prefix only when its prefill has ended (SGLang): a sibling that starts with the pioneer
    computes the prefix again.  Among the last prompts of the groups before, the pioneer is done in time.  O(n
    log n).
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
    blocks = cache_tokens // block_tokens
    stock = np.arange(len(shape.leaf))
    before = after = hit_ratio(shape, stock, blocks, block_tokens, engine.in_flight)
    if result.guard is None:
        after = hit_ratio(shape, np.array(result.order), blocks, block_tokens, engine.in_flight)
    return replace(result, expected_hit_before=before, expected_hit_after=after)


def hit_tokens(
    shape: BatchShape, order: Ints, cache_blocks: int, block_tokens: int, in_flight: int = 0
) -> list[int]:
    """The tokens of each prompt, in this order, that a cold LRU cache serves.

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
    """Cached tokens over prompt tokens of this order; arguments as `hit_tokens`."""
    tokens = int(shape.tokens.sum())
    return sum(hit_tokens(shape, order, cache_blocks, block_tokens, in_flight)) / tokens if tokens else 0.0


# -- the paper's guards --------------------------------------------------------------------------------------


def paper_guard(prompts: Sequence[Any], shape: BatchShape) -> str | None:
    """The first of the paper's guards that fires, None if none does (PEEK-offline, "Guard conditions").

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
            prompt = prompts[position]
            width = 4 if isinstance(prompt, (bytes, bytearray)) else 1
            tail = pack(prompt[-_TAIL_TOKENS * width :])
            alike.setdefault((leaf, length, tail), []).append(position)
    found = 0
    for positions in alike.values():
        if len(positions) >= 2:
            found += len(positions) - len({pack(prompts[position]) for position in positions})
    return found
