"""Chained keys of cache blocks for whole batches, and paths: strings that sort prompts in depth-first order.

Engines name the i-th block of a prompt `k_i = hash(k_{i-1}, tokens of block i)`: equal keys mean equal
prompts up to the end of that block.  Here the chain is a running sum, which numpy computes for a million
prompts at once: `s_i = s_{i-1} + sum over the block of (token + 1) x m_p`, with one random odd 64-bit
multiplier per position p.  `k_i` is a mix of `s_i` and i.  Two different prefixes get equal keys with a
chance of about 2^-44 or less for token ids below 2^20.  These keys are not those of any engine.

A **path** is the sort key of a prompt in `peek.offline.scale`.  It has one entry of 24 hexadecimal characters
for each edge of the compressed trie above the prompt.  An entry has three numbers: 2^32 - 1 less the edge's
count (8), its first prompt (10) and its depth in blocks (6), which never decides.  A prompt with blocks of
its own below its last shared edge has one more entry, with a count of one.  Prompts sorted by path, then by
index, are in `depth_first` order.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from peek.errors import InvalidConfig
from peek.offline.shape import Ints
from peek.trie.keys import pack

Keys: TypeAlias = npt.NDArray[np.uint64]

BLOCK_TOKENS: Final = 16  # default size of a cache block in tokens: vLLM's
ENTRY: Final = 24  # length of an entry of a path, in characters

_GOLDEN: Final = 0x9E3779B97F4A7C15  # the increment of splitmix64: 2**64 divided by the golden ratio
_FIRST_MULTIPLIERS: Final = 1024  # least size of a table; others are powers of two above the longest prompt
_MOST: Final = 2**32 - 1  # counts are subtracted from it, so that the largest sorts first


def block_keys(prompt: Any, block_tokens: int = BLOCK_TOKENS, namespace: str = "") -> list[int]:
    """Return the keys of a prompt's whole blocks.  30 ns a token, 20 us a call.

    `InvalidKey` as `pack`; `InvalidConfig` for `block_tokens` below 1.
    """
    tokens = np.frombuffer(pack(prompt), np.int32)
    keys, _, _ = batch_keys(tokens, np.array([len(tokens)]), block_tokens, [namespace])
    found: list[int] = keys.tolist()
    return found


def batch_keys(
    tokens: npt.NDArray[np.int32], lengths: Ints, block_tokens: int, namespaces: list[str] | None = None
) -> tuple[Keys, Ints, Ints]:
    """Return the keys of all whole blocks of a batch, prompt after prompt.

    `tokens` has all prompts, one after another, and `lengths` the tokens of each.  Returns the keys; the
    place where the keys of each prompt start, and the end of the last prompt's keys; and for each key the
    number of its block in the prompt, from 1.  Cost: about 6 ns and 20 bytes per token.
    """
    if block_tokens < 1:
        raise InvalidConfig(f"block_tokens is {block_tokens}, less than 1")
    begins = np.cumsum(lengths) - lengths
    position = np.arange(len(tokens)) - np.repeat(begins, lengths)
    longest = max(int(lengths.max(initial=0)), _FIRST_MULTIPLIERS)
    multipliers = _multipliers(1 << (longest - 1).bit_length())
    terms = (tokens.astype(np.uint64) + np.uint64(1)) * multipliers[position]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    blocks = lengths // block_tokens
    starts = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    number = np.arange(1, starts[-1] + 1) - np.repeat(starts[:-1], blocks)
    ends = np.repeat(begins, blocks) + number * block_tokens
    chain = sums[ends] - np.repeat(sums[begins], blocks)
    if namespaces is not None and any(namespaces):
        salts = np.array([_salt(namespace) for namespace in namespaces], np.uint64)
        chain = chain + np.repeat(salts, blocks)
    return _mix(chain + number.astype(np.uint64) * np.uint64(_GOLDEN)), starts, number


def _mix(x: Keys) -> Keys:
    """Permute 64-bit numbers by the finaliser of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@lru_cache(maxsize=4)
def _multipliers(size: int) -> Keys:
    return _mix(np.arange(1, size + 1, dtype=np.uint64) * np.uint64(_GOLDEN)) | np.uint64(1)


def _salt(namespace: str) -> int:
    if not namespace:
        return 0
    raw = namespace.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


# -- paths -------------------------------------------------------------------------------------------------


def entry(count: int, first: int, bottom: int) -> str:
    """Return the entry of an edge, from its prompts' number and lowest index, and its lower end in blocks."""
    return f"{_MOST - count:08x}{first:010x}{bottom:06x}"


def edges_of(keys: Keys, counts: Ints, firsts: Ints, depths: Ints) -> dict[int, str]:
    """Return the entries of all shared edges, by the key of each edge's top block.

    Shared blocks of the same prompts (equal count, equal first prompt) form one edge.
    """
    order = np.lexsort((depths, firsts, counts))
    order = order[counts[order] >= 2]
    pairs = np.stack([counts[order], firsts[order]])
    is_top = np.r_[True, (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)][: len(order)]
    top, bottom = order[is_top], order[np.roll(is_top, -1)]
    columns = (keys[top], counts[top], firsts[top], depths[bottom])
    return {key: entry(*rest) for key, *rest in zip(*(each.tolist() for each in columns), strict=True)}


def counted(keys: Keys, rows: Ints) -> tuple[Keys, Ints, Ints]:
    """Return the distinct keys, how often each occurs, and where it has its lowest row.  O(n log n)."""
    order = np.argsort(rows, kind="stable")
    found, at, counts = np.unique(keys[order], return_index=True, return_counts=True)
    return found, counts, order[at]


def shared_blocks(left: str, right: str) -> int:
    """Return how many blocks two prompts share: the depth of the last entry that their paths share."""
    end = 0
    while left[end : end + ENTRY] == right[end : end + ENTRY] and end < len(left):
        end += ENTRY
    return int(left[end - 6 : end], 16) if end else 0
