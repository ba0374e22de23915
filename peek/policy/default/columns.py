"""Numbers of many pieces in columns, one row a piece, and the best rows by index.

A row is written natively into a buffer and enters the columns with the next question, all new rows at once;
the index of all pieces is then a few vector operations.  Two sources of the buffer live side by side, as in
`peek.trie.keys`: native on the compiled build, `array` on the interpreted one.
"""

from __future__ import annotations

from array import array
from typing import Any, Final, final

import numpy as np
from mypy_extensions import i64

from peek.policy.default.answers import LEAST, MOST
from peek.trie.keys import COMPILED

try:  # noqa: SIM105
    from librt.strings import BytesWriter, write_f64_le
except ImportError:  # pragma: no cover - an interpreted install on a platform without librt
    pass

MIN_WAIT_S: Final = 1e-3
"""Requests that have just come wait this long, so that indices do not all become zero."""

_WIDTH: Final = 9
_SINCE, _FIRST, _WEIGHT, _PER_WORK, _AT_RISK, _GROUP, _FORETOLD_WEIGHT, _FORETOLD_PER_WORK = range(8)


def vector(values: list[float]) -> Any:
    """A vector of numbers.  O(n)."""
    rows = Rows()
    for value in values:
        rows.add(value)
    return rows.take()


@final
class Rows:
    """A growing buffer of numbers."""

    __slots__ = ("_array", "_writer", "count")

    def __init__(self) -> None:
        self.count: i64 = 0
        if COMPILED:
            self._writer = BytesWriter()
        else:
            self._array: Any = array("d")

    def add(self, value: float) -> None:
        self.count += 1
        if COMPILED:
            write_f64_le(self._writer, value)
        else:
            self._array.append(value)

    def take(self) -> Any:
        """All numbers so far as a vector, and begin anew."""
        self.count = 0
        if COMPILED:
            packed = self._writer.getvalue()
            self._writer = BytesWriter()
        else:
            packed = self._array.tobytes()
            self._array = array("d")
        return np.frombuffer(packed)


@final
class Columns:
    """What the index of each piece is made of, by slot.

    since, first    arrival time in seconds and number of arrival of its oldest request
    weight          count ** beta / length ** gamma
    per_work        count / work, in 1 / tokens
    at_risk         tokens at risk for one of its requests, on its own edge
    group           number of the group that it hangs from

    and weight and per_work once more with what is expected of answers.
    """

    __slots__ = ("_foretold", "_rows", "_table")

    def __init__(self) -> None:
        self._table: Any = np.empty((8, 0))
        self._rows = Rows()
        self._foretold = False

    def put(
        self,
        slot: i64,
        since: float,
        first: i64,
        weight: float,
        per_work: float,
        at_risk: float,
        group: i64,
        foretold_weight: float,
        foretold_per_work: float,
    ) -> None:
        """A new piece, or a changed one.  O(1)."""
        if foretold_weight != weight or foretold_per_work != per_work:
            self._foretold = True
        rows = self._rows
        rows.add(float(slot))
        rows.add(since)
        rows.add(float(first))
        rows.add(weight)
        rows.add(per_work)
        rows.add(at_risk)
        rows.add(float(group))
        rows.add(foretold_weight)
        rows.add(foretold_per_work)

    def drop(self, slot: i64) -> None:
        """The piece is gone.  O(1)."""
        self.put(slot, 0.0, 0, -1.0, 0.0, 0.0, 0, -1.0, 0.0)

    def indices(self, now: float, above: Any) -> Any:
        """The index of every piece, below zero for those that are gone.

        Args:
            now: seconds, same clock as `since`.
            above: tokens at risk above each group, for one request.
        """
        self._let_in()
        table = self._table
        age_s = np.maximum(now - table[_SINCE], MIN_WAIT_S)
        at_risk = above[table[_GROUP].astype(np.intp)] + table[_AT_RISK]
        leverage = 1.0 + at_risk * table[_PER_WORK]
        plain = age_s * leverage * leverage * leverage * table[_WEIGHT]
        if not self._foretold:
            return plain
        leverage = 1.0 + at_risk * table[_FORETOLD_PER_WORK]
        learned = age_s * leverage * leverage * leverage * table[_FORETOLD_WEIGHT]
        return np.minimum(
            np.maximum(learned, LEAST * plain), MOST * plain
        )  # `peek.policy.default.answers.bounded`

    def _let_in(self) -> None:
        """The rows written since the last question enter the columns; of two for a slot the later."""
        if self._rows.count == 0:
            return
        new = self._rows.take().reshape(-1, _WIDTH)
        slots = new[:, 0].astype(np.intp)
        size = int(slots.max()) + 1
        if size > self._table.shape[1]:
            grown = np.zeros((8, max(size, 2 * self._table.shape[1])))
            grown[_WEIGHT] = -1.0
            grown[:, : self._table.shape[1]] = self._table
            self._table = grown
        self._table[:, slots] = new[:, 1:].T

    def best(self, indices: Any, most: i64, live: i64) -> tuple[list[int], list[float]]:
        """The best pieces, best first, ties by age: their slots, and their negated indices.

        All that are at least as good as the `most`-th, all of the `live` ones if there are no more.
        O(slots + m log m).
        """
        least = 0.0
        if most < live:
            least = indices[np.argpartition(indices, indices.size - most)[-most:]].min()
        slots = np.flatnonzero(indices >= least)
        keys = -indices[slots]
        order = keys.argsort()
        ranked = keys[order]
        if (ranked[1:] == ranked[:-1]).any():
            table = self._table
            order = np.lexsort((table[_FIRST][slots], table[_SINCE][slots], keys))
        found: list[int] = slots[order].tolist()
        numbers: list[float] = keys[order].tolist()
        return found, numbers
