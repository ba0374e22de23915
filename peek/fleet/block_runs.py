"""Blocks that an engine has stored, in rows: what `EventView` compares a prompt with."""

from __future__ import annotations

from bisect import bisect_left
from typing import final

from mypy_extensions import i64

from peek.trie.keys import match_span


@final
class Run:
    """Blocks of one prompt in a row.

    Attributes:
        before: what it is stored behind: the hash of a block, or a namespace.
        hashes: of its blocks.
        symbols: theirs, packed; what is behind the last block does not count.
    """

    __slots__ = ("before", "hashes", "symbols")

    def __init__(self, before: object, symbols: bytes) -> None:
        self.before = before
        self.hashes: list[object] = []
        self.symbols = symbols


@final
class Fork:
    """The runs behind one block, by their first blocks."""

    __slots__ = ("_firsts", "runs")

    def __init__(self) -> None:
        self.runs: dict[bytes, Run] = {}
        self._firsts: list[bytes] = []
        """Sorted, so that of all first blocks one of two neighbours has most in common with another."""

    def put(self, first: bytes, run: Run) -> None:
        """O(log runs), and a move of what is behind it."""
        if first not in self.runs:
            self._firsts.insert(bisect_left(self._firsts, first), first)
        self.runs[first] = run

    def drop(self, first: bytes, run: Run) -> None:
        """Takes a run away, unless another has its place.  O(log runs), and a move of what is behind it."""
        if self.runs.get(first) is run:
            del self.runs[first]
            del self._firsts[bisect_left(self._firsts, first)]

    def longest(self, symbols: bytes) -> i64:
        """Bytes that a first block has in common with `symbols`, at most.  O(log runs)."""
        at: i64 = bisect_left(self._firsts, symbols)
        found: i64 = 0
        if at < len(self._firsts):
            found = match_span(symbols, 0, self._firsts[at], 0)
        if at > 0:
            other: i64 = match_span(symbols, 0, self._firsts[at - 1], 0)
            if other > found:
                found = other
        return found

    def check(self) -> None:
        """`AssertionError` if it is not in order."""
        assert self.runs and sorted(self.runs) == self._firsts, "first blocks"
