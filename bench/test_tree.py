"""Times the pending tree alone: arrivals, departures, signals."""

from __future__ import annotations

import gc

import pytest

import peek
from bench.measure import Measure
from bench.worksets import work_set
from peek.timing import best_of
from peek.trie.keys import pack

SETS = ("A", "B", "C", "D")
ROUNDS = {"A": 20, "B": 20, "C": 20, "D": 7}


def fill(tree: peek.PendingTree, ids: list[str], keys: list[bytes] | list[list[int]]) -> None:
    insert = tree.insert
    for request_id, key in zip(ids, keys, strict=True):
        insert(request_id, key)


def filled(ids: list[str], keys: list[bytes]) -> peek.PendingTree:
    tree = peek.PendingTree()
    fill(tree, ids, keys)
    return tree


def empty_tree() -> peek.PendingTree:
    gc.collect()  # frees the last round's tree, whose nodes are a reference cycle
    return peek.PendingTree()


def drain(tree: peek.PendingTree, ids: list[str]) -> None:
    remove = tree.remove
    for request_id in ids:
        remove(request_id)


@pytest.mark.parametrize("name", SETS)
def test_insert_from_list(measure: Measure, name: str) -> None:
    """Insertion of lists, against a lower bound: packing the same lists and nothing else."""
    work = work_set(name)
    ids, lists = work.ids(), work.lists()
    gc.collect()
    gc.freeze()
    floor_s = best_of(ROUNDS[name], lambda: [pack(tokens) for tokens in lists]) / len(work)
    measure(
        f"insert from list, {name}",
        fill,
        lambda: (empty_tree(), ids, lists),
        rounds=ROUNDS[name],
        operations=len(work),
        yardstick="pack",
        yardstick_s=floor_s,
        max_ratio=1.5 if name == "A" else 0.0,
    )


@pytest.mark.parametrize("name", SETS)
def test_insert_packed(measure: Measure, name: str) -> None:
    """Insertion of packed keys, against reading every key once, which any insertion has to do."""
    work = work_set(name)
    ids, keys = work.ids(), work.packed()
    twins = work.packed()
    reading_s = best_of(ROUNDS[name], lambda: [a == b for a, b in zip(keys, twins, strict=True)])
    measure(
        f"insert packed, {name}",
        fill,
        lambda: (empty_tree(), ids, keys),
        rounds=3 * ROUNDS[name],
        operations=len(work),
        yardstick="bytes ==",
        yardstick_s=reading_s / len(work),
        max_s=1.2e-6 if name == "A" else 0.0,
    )


def test_insert_packed_hot(measure: Measure) -> None:
    """Work set A with prompts in the processor's cache, as the tokens of a new request are."""
    work = work_set("A")
    ids, keys = work.ids(), work.packed()
    tree = filled(ids, keys)
    few = [(f"hot-{i}", key) for i, key in enumerate(work.packed()[:8])]

    def insert_few() -> None:
        for request_id, key in few:
            tree.insert(request_id, key)

    def take_out() -> tuple[()]:
        for request_id, key in few:
            if request_id in tree:
                tree.remove(request_id)
            sum(key)  # brings the key into the cache
        return ()

    measure("insert packed, A, hot", insert_few, take_out, rounds=200, operations=len(few), max_s=1.2e-6)


@pytest.mark.parametrize("name", SETS)
def test_remove(measure: Measure, name: str) -> None:
    work = work_set(name)
    ids, keys = work.ids(), work.packed()

    def setup() -> tuple[peek.PendingTree, list[str]]:
        tree = empty_tree()
        fill(tree, ids, keys)
        return tree, ids

    measure(
        f"remove, {name}",
        drain,
        setup,
        rounds=3 * ROUNDS[name],
        operations=len(work),
        max_s=0.6e-6 if name == "A" else 0.0,
    )


@pytest.mark.parametrize("name", SETS)
def test_signals(measure: Measure, name: str) -> None:
    """Scores, clusters and heads of the whole queue."""
    work = work_set(name)
    tree = filled(work.ids(), work.packed())
    measure(f"signals of the queue, {name}", tree.refresh, lambda: (32,), rounds=100)
