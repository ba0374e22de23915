"""Tests the compiled tree against a naive twin with millions of random operations, and measures its memory.

    python -m bench.soak_tree [operations] [seed]

Requests arrive, leave and are extended in three namespaces.  Their prompts are nested, part at any symbol, or
have nothing in common.  A cache of blocks of 1 to 4 symbols changes now and then and is walked; demand is
looked up, also after changes of the queue.  Every answer of the tree is compared with a scan of all requests;
a difference ends the run with an `AssertionError`.  Half of the operations are on a plain tree, half on a
chained one.  Memory is sampled, with the garbage collector off; if it grows by 2 MiB or more after a warm-up
of a fifth, the exit status is 1.
"""

from __future__ import annotations

import argparse
import gc
import struct
import sys
from random import Random
from time import perf_counter
from typing import Any

import peek
from bench.builds import require_compiled
from bench.soak import MAX_GROWTH, resident
from peek.eviction.index import MarkIndex, demand_of

WINDOW = 24
"""Number of waiting requests, which is small because the twin looks at all of them."""
LENGTH = 20
NAMESPACES = ("", "lora-1", "salt/2")

Key = tuple[int, ...]
Place = tuple[str, Key]


class Blocks:
    """A cache of token sequences that matches whole blocks.  A cached node is a block, named by its path."""

    unit_tokens = 1

    def __init__(self) -> None:
        self.block_symbols = 1
        self.version = 0
        self.cached: list[Place] = []

    def longest(self, place: Place) -> int:
        """Return the symbols of the longest cached prefix, by looking at everything cached."""
        namespace, key = place
        best = max((_common(cached, key) for own, cached in self.cached if own == namespace), default=0)
        return best - best % self.block_symbols

    def root(self, namespace: str) -> Place:
        return namespace, ()

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> tuple[int, Place]:
        namespace, behind = cursor
        path = behind + tuple(segment)
        matched = self.longest((namespace, path))
        return matched - offset, (namespace, path[:matched])

    def node_id(self, cursor: Any) -> int:
        return path_id(*cursor)

    def parent_id(self, node_id: int) -> int:
        above = (node_id & _BODY) >> self.block_symbols
        return (node_id & ~_BODY) | above if above > 1 else 0


_BODY = (1 << (LENGTH + 1)) - 1


def path_id(namespace: str, path: Key) -> int:
    """Return a number for a path of zeros and ones: namespace, then a one, then the path's bits."""
    body = 1
    for bit in path:
        body = body << 1 | bit
    return NAMESPACES.index(namespace) << (LENGTH + 1) | body


def _common(a: Key, b: Key) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


class Soak:
    """A tree with its waiting requests, a cache, and the dual-walk and marks of the two."""

    def __init__(self, chained: bool, seed: int) -> None:
        self.random = Random(seed)
        self.chained = chained
        self.tree = peek.PendingTree(chained)
        self.waiting: dict[str, Place] = {}
        self.cache = Blocks()
        self.walk = peek.DualWalk(self.tree)
        self.index = MarkIndex(self.tree)
        self.seen: dict[str, int] = {}
        """Symbols that the last walk matched, by waiting request."""
        self.serial = 0

    def step(self) -> None:
        draw = self.random.random()
        if draw < 0.40 or not self.waiting:
            self.arrive()
        elif draw < 0.75 or len(self.waiting) > WINDOW:
            self.leave()
        elif draw < 0.80:
            self.extend()
        elif draw < 0.88:
            self.walk_now()
        elif draw < 0.94:
            self.look_up()
        else:
            self.ask()

    # -- prompts -----------------------------------------------------------------------------------

    def path(self) -> Key:
        """Draw a path of zeros and ones: one of the nested prompts, one that leaves them, or any."""
        length = self.random.randint(1, LENGTH // 2 if self.chained else LENGTH)
        kind = self.random.random()
        if kind < 0.4:
            return (0,) * length
        if kind < 0.7:
            return (*(0,) * (length - 1), 1)
        return tuple(self.random.choices((0, 1), k=length))

    def key(self, namespace: str, path: Key) -> Key:
        """Return the symbols of a path; in a chained tree each is the number of the path up to it."""
        if not self.chained:
            return path
        return tuple(path_id(namespace, path[: i + 1]) for i in range(len(path)))

    # -- changes -----------------------------------------------------------------------------------

    def arrive(self) -> None:
        namespace = self.random.choice(NAMESPACES)
        key = self.key(namespace, self.path())
        name = f"r{self.serial}"
        self.serial += 1
        self.tree.insert(name, packed(key), namespace)
        self.waiting[name] = (namespace, key)

    def leave(self) -> None:
        name = self.random.choice(list(self.waiting))
        assert self.tree.remove(name).request_id == name
        del self.waiting[name]
        self.seen.pop(name, None)

    def extend(self) -> None:
        name = self.random.choice(list(self.waiting))
        namespace, key = self.waiting[name]
        path = tuple(symbol & 1 for symbol in key) + self.path()
        longer = self.key(namespace, path[: LENGTH // 2 if self.chained else LENGTH])
        if len(longer) > len(key):
            self.tree.extend(name, packed(longer))
            self.waiting[name] = (namespace, longer)
            self.seen.pop(name, None)

    # -- questions ---------------------------------------------------------------------------------

    def walk_now(self) -> None:
        if self.random.random() < 0.5:
            self.cache.version += 1
            self.cache.block_symbols = self.random.randint(1, 4)
            self.cache.cached = [self.part_of_a_prompt() for _ in range(self.random.randint(0, 5))]
        expected = {name: self.cache.longest(place) for name, place in self.waiting.items()}
        assert self.walk.match(self.cache) == expected
        self.seen = expected

    def part_of_a_prompt(self) -> Place:
        if self.waiting and self.random.random() < 0.8:
            namespace, key = self.random.choice(list(self.waiting.values()))
        else:
            namespace = self.random.choice(NAMESPACES)
            key = self.key(namespace, self.path())
        return namespace, key[: self.random.randint(0, len(key))]

    def look_up(self) -> None:
        """Check that a cached block has demand if and only if a waiting request reads it."""
        if self.chained:
            symbol = self.random.choice(self.random.choice(list(self.waiting.values()))[1]) ^ 1
            needed = sum(symbol in key for _, key in self.waiting.values())
            owner = self.tree.owner(symbol)
            assert needed == (0 if owner is None else owner.count)
            return
        self.index.refresh(self.cache, self.walk.epoch)
        block = self.cache.block_symbols
        read = {
            path_id(namespace, key[:end])
            for namespace, key in self.waiting.values()
            for end in range(block, self.cache.longest((namespace, key)) + 1, block)
        }
        for name, matched in self.seen.items():
            namespace, key = self.waiting[name]
            for end in range(block, matched + 1, block):
                node = self.index.find(path_id(namespace, key[:end]))
                assert node is not None
                assert demand_of(node)[0] > 0
        for namespace, key in self.cache.cached:
            for end in range(block, len(key) + 1, block):
                number = path_id(namespace, key[:end])
                assert number in read or self.index.find(number) is None

    def ask(self) -> None:
        """Check scores, clusters and counts against the twin, and run the tree's own check."""
        self.tree.check()
        places = list(self.waiting.values())
        scores = self.tree.scores()
        shared = False
        for name, (namespace, key) in self.waiting.items():
            common = [_common(key, other) if own == namespace else 0 for own, other in places]
            assert scores[name] == sum(common)
            deepest = sorted(common)[-2] if len(common) > 1 else 0
            shared = shared or deepest > 0
            cluster = self.tree.cluster(name)
            found = (0, 1) if cluster is None else (cluster.depth, cluster.size)
            assert found == ((deepest, sum(n >= deepest for n in common)) if deepest else (0, 1))
        assert self.tree.has_sharing is shared
        namespace, key = self.random.choice(places)
        prefix = key[: self.random.randint(1, len(key))]
        count = sum(own == namespace and other[: len(prefix)] == prefix for own, other in places)
        assert self.tree.pending_count(packed(prefix), namespace) == count


def packed(key: Key) -> bytes:
    return struct.pack(f"<{len(key)}i", *key)


def soak(chained: bool, operations: int, seed: int) -> bool:
    """Run the operations on one tree and print a line; return whether memory stayed flat."""
    run = Soak(chained, seed)
    samples: list[int] = []
    started = perf_counter()
    every = max(1, operations // 20)
    for i in range(operations):
        try:
            run.step()
        except AssertionError as error:
            raise AssertionError(f"operation {i} of seed {seed}, chained={chained}") from error
        if (i + 1) % every == 0:
            samples.append(resident())
    warm = samples[len(samples) // 5 :]
    growth = max(warm) - warm[0]
    verdict = "flat" if growth < MAX_GROWTH else "GROWS"
    print(
        f"{'chained' if chained else 'plain'} tree: {operations} operations equal to the twin's in "
        f"{perf_counter() - started:.0f} s; memory {warm[0] / 2**20:.1f} MiB, growth after warm-up "
        f"{growth / 2**20:.2f} MiB: {verdict}",
        flush=True,
    )
    return growth < MAX_GROWTH


def fill_free_lists() -> None:
    """Fill Python's lists of freed tuples (2,000 for each size below 20) before memory is measured."""
    for size in range(1, 20):
        kept = [tuple([0] * size) for _ in range(2_000)]
        kept.clear()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("operations", type=int, nargs="?", default=2_000_000)
    parser.add_argument("seed", type=int, nargs="?", default=42)
    arguments = parser.parse_args()
    require_compiled()
    gc.disable()
    fill_free_lists()
    flat = [soak(chained, arguments.operations // 2, arguments.seed) for chained in (False, True)]
    return 0 if all(flat) else 1


if __name__ == "__main__":
    sys.exit(main())
