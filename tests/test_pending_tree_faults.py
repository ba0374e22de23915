"""Keys that a chained tree must refuse, and what a tree may not keep of requests that left."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.walks import place_of

from peek import DualWalk, InvalidKey, PendingTree
from peek.eviction.index import MarkIndex

KEYS = st.lists(st.integers(0, 5), min_size=1, max_size=5)
STEPS = st.lists(st.tuples(KEYS, st.sampled_from(["", "lora"]), st.booleans()), max_size=12)


def state(tree: PendingTree) -> Any:
    """All that can be asked of a tree."""
    tree.check()
    return (
        tree.version,
        tree.has_sharing,
        tree.node_count,
        sorted(namespace for namespace, _ in tree.roots()),
        {request.request_id: tree.key_of(request.request_id) for request in tree.requests()},
        tree.scores(),
        tree.clusters(),
        {symbol: place_of(owner) for symbol in range(6) if (owner := tree.owner(symbol)) is not None},
    )


def is_chained(keys: list[tuple[list[int], str]]) -> bool:
    """Whether every symbol has one and only one path in front of it."""
    places: dict[int, tuple[str, tuple[int, ...]]] = {}
    for tokens, namespace in keys:
        for i, symbol in enumerate(tokens):
            place = (namespace, tuple(tokens[:i]))
            if places.setdefault(symbol, place) != place:
                return False
    return True


@given(steps=STEPS)
def test_a_chained_tree_refuses_what_is_not_chained_and_nothing_else(
    steps: list[tuple[list[int], str, bool]],
) -> None:
    tree = PendingTree(chained=True)
    waiting: dict[str, tuple[list[int], str]] = {}
    for i, (tokens, namespace, extend) in enumerate(steps):
        before = state(tree)
        name = f"r{i}"
        if extend and waiting:
            name, (known, namespace) = next(iter(waiting.items()))
            tokens = known + tokens
        others = [key for other, key in waiting.items() if other != name]
        if is_chained([*others, (tokens, namespace)]):
            tree.extend(name, tokens) if name in waiting else tree.insert(name, tokens, namespace)
            waiting[name] = (tokens, namespace)
            tree.check()
        else:
            with pytest.raises(InvalidKey, match=r"symbol \d (comes twice|stands in another place already)"):
                tree.extend(name, tokens) if name in waiting else tree.insert(name, tokens, namespace)
            assert state(tree) == before


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ([7, 8, 7], "symbol 7 comes twice"),
        ([1, 2, 3, 3], "symbol 3 comes twice"),
        ([1, 2, 1], "symbol 1 stands in another place"),
        ([9, 2], "symbol 2 stands in another place"),
        ([1, 5], "symbol 5 stands in another place"),
    ],
)
def test_the_symbol_that_is_not_chained_is_named(key: list[int], fault: str) -> None:
    tree = PendingTree(chained=True)
    tree.insert("a", [1, 2])
    tree.insert("b", [4, 5])
    before = state(tree)
    with pytest.raises(InvalidKey, match=fault):
        tree.insert("c", key)
    assert state(tree) == before


def test_keys_that_only_look_alike_are_no_matter_without_chains() -> None:
    tree = PendingTree()
    tree.insert("a", [7, 8, 7])
    tree.insert("b", [8, 7])
    tree.check()


def test_nodes_that_left_keep_no_symbols() -> None:
    """Marks remember nodes; the prompts behind them are gone all the same."""
    n, length = 200, 4096
    tokens = [0] * length
    gc.collect()
    tracemalloc.start()
    try:
        tree = PendingTree()
        for i in range(n):
            tree.insert(str(i), tokens[: length - n + i + 1])
        walk, index = DualWalk(tree), MarkIndex(tree)
        walk.walk(_Whole())
        index.refresh(_Whole(), walk.epoch)
        waiting, _ = tracemalloc.get_traced_memory()
        for i in range(n):
            tree.remove(str(i))
        left, _ = tracemalloc.get_traced_memory()
        index.refresh(_Whole(), walk.epoch)
        assert index.find(1) is None
    finally:
        tracemalloc.stop()
    assert left < waiting + 4 * length


class _Whole:
    """A cache that holds every prompt, in one node."""

    unit_tokens = 1
    block_symbols = 1

    def root(self, namespace: str) -> None:
        return None

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, None]:
        return len(segment), None

    def node_id(self, cursor: object) -> int:
        return 1
