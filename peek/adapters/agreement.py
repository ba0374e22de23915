"""Whether an engine finds in its cache what was foretold: names alone do not tell what a method means.

An adapter knows an engine's prefix match by heart.  Where a version, or somebody's patch, gives it another
meaning, every name is still there and nothing fails; only the plans are made for a cache that does not exist.
So a sample of the admissions is compared: each of the first ones, then one in a hundred.  One that differs is
no fault, for the cache may move between a look and an admission; most of them differing is.
"""

from __future__ import annotations

from collections import deque
from typing import Final

FIRST: Final = 64
"""Admissions that are all compared, before it is ..."""
EVERY: Final = 100
"""... one in so many."""

WINDOW: Final = 16
"""Comparisons that count, the last ones: those in which something was foretold or found."""
LASTING: Final = 12
"""Of these, as many that differ are lasting disagreement."""


class Agreement:
    """Compares a sample of what was foretold with what the engine found.  O(1) each.

        if agreement.wants():
            agreement.note(foretold, found)
        if agreement.lasting:
            ...  # stand aside: `str(agreement)` says why

    Args:
        slack: tokens by which the two may differ and still agree.

    Attributes:
        compared, differed: comparisons in which something was foretold or found, and those that differed.
        lasting: most of the last comparisons differed; stays so.
    """

    def __init__(self, slack: int = 0) -> None:
        self.compared = 0
        self.differed = 0
        self.lasting = False
        self._slack = slack
        self._seen = 0
        self._last: deque[bool] = deque(maxlen=WINDOW)
        self._foretold = self._found = 0

    def wants(self) -> bool:
        """One more admission; whether it belongs to the sample."""
        self._seen += 1
        return self._seen <= FIRST or self._seen % EVERY == 0

    def note(self, foretold: int, found: int) -> None:
        """Of one prompt so many tokens were foretold to be cached, and so many were found."""
        if foretold == 0 == found:
            return
        differs = abs(foretold - found) > self._slack
        self.compared += 1
        self.differed += differs
        self._last.append(differs)
        self._foretold += foretold
        self._found += found
        self.lasting = self.lasting or sum(self._last) >= LASTING

    def __str__(self) -> str:
        return (
            f"in {self.differed} of {self.compared} admissions compared it found another number of cached"
            f" tokens than foretold, {self._found} in place of {self._foretold} in all"
        )
