"""How long an engine's steps take, learned by watching it.

    step = a + b x computed tokens + c x attention pairs + d x KV tokens read,    all >= 0

the terms of `peek.simulation.cost`, fitted by least squares of the *relative* error, so that a stall of a
second weighs no more than any other step.  Old steps fade.

An engine that prepares a step while the one before it runs (asynchronous scheduling, overlap) shows the time
of a step one interval late.  Both readings are fitted, and the better one counts.
"""

from __future__ import annotations

from typing import Final

import numpy as np

ENOUGH: Final = 32
"""Steps until there is an answer."""

_FADE: Final = 0.999
_SOLVE_EVERY: Final = 32
_SHORTEST_S: Final = 1e-4
_UNITS: Final = np.array([1.0, 1e-3, 1e-7, 1e-5])
"""Of the four terms, so that sums of squares are of one size."""


class _Fit:
    """One reading: which step an interval belongs to."""

    def __init__(self) -> None:
        self.count = 0
        self._moments = np.zeros((4, 4))
        self._products = np.zeros(4)
        self._weight = 0.0

    def add(self, step: np.ndarray, seconds: float) -> None:
        terms = step * (_UNITS / seconds)
        self._moments = self._moments * _FADE + np.outer(terms, terms)
        self._products = self._products * _FADE + terms
        self._weight = self._weight * _FADE + 1.0
        self.count += 1

    def solve(self) -> tuple[np.ndarray, float]:
        """The coefficients, none below 0, and the mean squared relative error."""
        kept = [0, 1, 2, 3]
        found = np.zeros(4)
        while kept:
            part = self._moments[np.ix_(kept, kept)]
            ridge = np.eye(len(kept)) * (1e-9 * np.trace(part) + 1e-12)
            values = np.linalg.solve(part + ridge, self._products[kept])
            if values.min() >= 0.0:
                found[kept] = values
                break
            del kept[int(values.argmin())]
        error = self._weight - 2.0 * found @ self._products + found @ self._moments @ found
        return found * _UNITS, float(error) / max(self._weight, 1.0)


class MeasuredSteps:
    """`StepTimes` of an engine that is watched; see the module's description."""

    def __init__(self) -> None:
        self._fits = (_Fit(), _Fit())
        self._begun: list[np.ndarray] = []
        """The last two steps in a row, the later one last."""
        self._last_s = 0.0
        self._terms = (0.0, 0.0, 0.0, 0.0)

    @property
    def known(self) -> bool:
        """Whether enough steps were seen."""
        return self._fits[0].count >= ENOUGH

    def note(
        self, now: float, went_on: bool, computed_tokens: int, attention_pairs: float, kv_tokens: int
    ) -> None:
        """A step begins.  O(1).

        Args:
            now: seconds on a clock that never goes back.
            went_on: the engine had work since the step before; if not, the time between is no step's.
            computed_tokens, attention_pairs, kv_tokens: as in `CostModel.step_s`.
        """
        seconds = max(now - self._last_s, _SHORTEST_S)
        if not went_on:
            self._begun.clear()
        for lag, step in enumerate(reversed(self._begun)):
            self._fits[lag].add(step, seconds)
        self._begun = [*self._begun[-1:], np.array([1.0, computed_tokens, attention_pairs, kv_tokens])]
        self._last_s = now
        count = self._fits[0].count
        if count >= ENOUGH and count % _SOLVE_EVERY == 0:
            self._solve()

    def _solve(self) -> None:
        solved = [fit.solve() for fit in self._fits if fit.count >= ENOUGH]
        terms, _ = min(solved, key=_error)
        self._terms = tuple(terms.tolist())

    def step_s(self, computed_tokens: int, attention_pairs: float, kv_tokens: int) -> float:
        """Seconds for one step; O(1)."""
        fixed, token, pair, kv = self._terms
        seconds = fixed + token * computed_tokens + pair * attention_pairs + kv * kv_tokens
        return max(seconds, _SHORTEST_S)


def _error(solved: tuple[np.ndarray, float]) -> float:
    return solved[1]
