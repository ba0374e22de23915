"""Batches for the offline tests, and naive twins of what `peek.offline` does with arrays."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

Prompt = list[int]


@dataclass
class NaiveNode:
    """A node of a trie made of dictionaries, one symbol per level."""

    ends: list[int] = field(default_factory=list)
    kids: dict[object, NaiveNode] = field(default_factory=dict)
    count: int = 0


def naive_order(prompts: Sequence[Sequence[object]]) -> list[int]:
    """Depth-first order of a trie: recursion."""
    root = NaiveNode()
    for i, prompt in enumerate(prompts):
        node = root
        for symbol in prompt:
            node = node.kids.setdefault(symbol, NaiveNode())
            node.count += 1
        node.ends.append(i)
    order: list[int] = []

    def visit(node: NaiveNode) -> None:
        order.extend(node.ends)
        for kid in sorted(node.kids.values(), key=lambda kid: -kid.count):  # stable: ties by arrival
            visit(kid)

    visit(root)
    return order


def in_blocks(prompt: Prompt, block: int) -> list[tuple[int, ...]]:
    return [tuple(prompt[i : i + block]) for i in range(0, len(prompt) - block + 1, block)]


def naive_hits(prompts: Sequence[Prompt], order: Sequence[int], blocks: int, block: int) -> list[int]:
    """Blocks hit by each prompt in this order: an LRU dictionary of whole prefixes, deepest evicted first."""
    cache: OrderedDict[tuple[int, ...], None] = OrderedDict()
    result = []
    for i in order:
        prompt = prompts[i]
        prefixes = [tuple(prompt[: (k + 1) * block]) for k in range(len(prompt) // block)]
        hits = 0
        while hits < len(prefixes) and prefixes[hits] in cache:
            hits += 1
        result.append(min(hits, (len(prompt) - 1) // block))
        for prefix in prefixes:
            cache.pop(prefix, None)
        for prefix in reversed(prefixes[:blocks]):
            cache[prefix] = None
        while len(cache) > blocks:
            cache.popitem(last=False)
    return result


def own(rnd: random.Random, n: int) -> Prompt:
    return [rnd.randrange(150_000) for _ in range(n)]


def grouped(rnd: random.Random, n: int, groups: int, prefix: int, tail: int, system: int = 0) -> list[Prompt]:
    """`n` prompts of random groups; all begin with the same `system` tokens."""
    head = own(rnd, system)
    prefixes = [own(rnd, prefix) for _ in range(groups)]
    return [head + rnd.choice(prefixes) + own(rnd, tail) for _ in range(n)]


def rollouts(rnd: random.Random, prompts: int, copies: int, length: int) -> list[Prompt]:
    """Every prompt several times, shuffled: samples for reinforcement learning."""
    batch = [prompt for prompt in (own(rnd, length) for _ in range(prompts)) for _ in range(copies)]
    rnd.shuffle(batch)
    return batch


def branching(
    rnd: random.Random, n: int, trees: int, levels: int, edge: int, fan: int, tail: int
) -> list[Prompt]:
    """Random walks down `trees` trees whose edges are `edge` tokens long."""
    edges: dict[tuple[int, ...], Prompt] = {}
    batch = []
    for _ in range(n):
        path: tuple[int, ...] = (rnd.randrange(trees),)
        prompt: Prompt = []
        for _ in range(levels):
            prompt += edges.setdefault(path, own(rnd, edge))
            path = (*path, rnd.randrange(fan))
        batch.append(prompt + own(rnd, tail))
    return batch
