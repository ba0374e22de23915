"""Makes the prompts and rigs of the benchmarks: four work sets and D10, always the same (numpy, seed 0).

| set | waiting | prompt                                                        |
|-----|---------|---------------------------------------------------------------|
| A   | 1000    | one of 100 shared prefixes of 4096 tokens (Zipf 1.0) + 128    |
| B   | 200     | one of 40 shared prefixes of 8192 tokens (Zipf 1.0) + 200     |
| C   | 1000    | nothing shared, 512 .. 4096 tokens                            |
| D   | 10000   | one of 200 shared prefixes of 1024 tokens (Zipf 1.0) + 64     |
| D10 | 1000    | D with a tenth of the requests and of the prefixes            |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from peek.simulation.caches import RadixCache
from peek.timing import VOCABULARY, Rig, random_key

Tokens = npt.NDArray[np.int32]

SHAPES = {
    "A": (1_000, 100, 4096, 128),
    "B": (200, 40, 8192, 200),
    "D": (10_000, 200, 1024, 64),
    "D10": (1_000, 20, 1024, 64),
}
"""By name: requests, shared prefixes, tokens of a prefix, and tokens of a request's own part."""


@dataclass(frozen=True)
class WorkSet:
    """Prompts in order of arrival; `groups` has the number of each one's prefix."""

    name: str
    prompts: list[Tokens]
    groups: list[int]
    prefix_len: int
    """Tokens of a shared prefix; in C the tokens of a prompt that a cache may hold."""

    def __len__(self) -> int:
        return len(self.prompts)

    def ids(self) -> list[str]:
        return [f"request-{i}" for i in range(len(self))]

    def packed(self) -> list[bytes]:
        """Return the prompts packed, as `peek` keeps them; each call makes new objects."""
        return [prompt.tobytes() for prompt in self.prompts]

    def lists(self) -> list[list[int]]:
        """Return the prompts as lists, as an engine passes them; each token is an object, 400 MB in D."""
        return [prompt.tolist() for prompt in self.prompts]

    def prefixes(self) -> list[bytes]:
        """Return the packed prefix of each group that occurs, in order of groups."""
        found = {g: p[: self.prefix_len].tobytes() for g, p in zip(self.groups, self.prompts, strict=True)}
        return [found[group] for group in sorted(found)]


@cache
def work_set(name: str) -> WorkSet:
    """Make one of the work sets A, B, C, D, D10."""
    rng = np.random.default_rng(0)
    if name == "C":
        prompts = [_tokens(rng, int(n)) for n in rng.integers(512, 4097, size=1_000)]
        return WorkSet(name, prompts, list(range(1_000)), 512)
    n, n_groups, prefix_len, own_len = SHAPES[name]
    prefixes = _tokens(rng, n_groups * prefix_len).reshape(n_groups, prefix_len)
    weight = 1.0 / np.arange(1, n_groups + 1)
    groups = rng.choice(n_groups, size=n, p=weight / weight.sum()).tolist()
    prompts = [np.concatenate([prefixes[group], _tokens(rng, own_len)]) for group in groups]
    return WorkSet(name, prompts, groups, prefix_len)


def _tokens(rng: np.random.Generator, n: int) -> Tokens:
    return rng.integers(0, VOCABULARY, size=n, dtype=np.int32)


# -- rigs of `peek.timing` ------------------------------------------------------------------------------


def rig_of(work: WorkSet, label: str) -> Rig:
    """Make a rig in which all of a work set waits and the cache holds every second prefix."""
    return Rig(work.packed(), half_cached(work), label, work.prefix_len)


def half_cached(work: WorkSet) -> RadixCache:
    """Make a cache in which two finished requests per second prefix have left their tokens."""
    cache = RadixCache(1)
    rng = np.random.default_rng(1)
    for prefix in work.prefixes()[::2]:
        for _ in range(2):
            cache.insert(prefix + random_key(rng, 64), "")
    return cache
