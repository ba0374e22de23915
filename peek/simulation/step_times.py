"""How long an engine's steps take, learned by watching it.

    step = a + b x max(f, computed tokens) + c x attention pairs + d x KV tokens read,    all >= 0

the terms of `peek.simulation.cost`: below `f` tokens a step waits for the weights, and a few tokens more are
free.  Fitted by least squares of the *relative* error, so that a stall of a second weighs no more than any
other step; the floor `f` is the one of `FLOORS` that fits best.  All is then scaled so that the steps seen
took as long together as they did, stalls included.  Old steps fade.

An engine that prepares a step while the one before it runs (asynchronous scheduling, overlap) shows the time
of a step one interval late.  Both readings are fitted, and the better one counts.
"""

from __future__ import annotations

from typing import Final

import numpy as np

ENOUGH: Final = 256
"""Steps until there is an answer."""

FLOORS: Final = (1, 32, 64, 96, 128, 160, 192, 256, 384, 512, 768)
"""Tokens of a step that cost as much as one; around 120 on an H100, more where computing is faster still."""

_FADE: Final = 0.999
_SOLVE_EVERY: Final = 64
_SHORTEST_S: Final = 1e-4
_MOST_STALLED: Final = 2.0
"""Times as long as its fit says that an engine is believed to take."""

_UNITS: Final = np.array([1.0, 1e-3, 1e-7, 1e-5])
"""Of the four terms, so that sums of squares are of one size."""


class _Fit:
    """One reading: which step an interval belongs to.  A fit for each floor."""

    def __init__(self) -> None:
        self.count = 0
        self._moments = np.zeros((len(FLOORS), 4, 4))
        self._products = np.zeros((len(FLOORS), 4))
        self._weight = 0.0
        self._seconds = 0.0
        self._sums = np.zeros((len(FLOORS), 4))

    def add(self, step: np.ndarray, seconds: float) -> None:
        terms = step * (_UNITS / seconds)
        self._moments *= _FADE
        self._moments += terms[:, :, None] * terms[:, None, :]
        self._products *= _FADE
        self._products += terms
        self._sums *= _FADE
        self._sums += step * _UNITS
        self._weight = self._weight * _FADE + 1.0
        self._seconds = self._seconds * _FADE + seconds
        self.count += 1

    def solve(self) -> tuple[float, int, np.ndarray]:
        """Of the floor that fits best: the mean squared relative error, its place, the coefficients."""
        best = (np.inf, 0, np.zeros(4))
        for place in range(len(FLOORS)):
            found = _not_negative(self._moments[place], self._products[place])
            error = self._weight - 2.0 * found @ self._products[place] + found @ self._moments[place] @ found
            if error / self._weight < best[0]:
                best = (error / self._weight, place, found)
        error, place, found = best
        scale = self._seconds / max(float(found @ self._sums[place]), _SHORTEST_S)
        return error, place, found * min(scale, _MOST_STALLED)


def _not_negative(moments: np.ndarray, products: np.ndarray) -> np.ndarray:
    """The solution of the normal equations, with terms left out until none is below 0."""
    kept = list(range(len(products)))
    found = np.zeros(len(products))
    while kept:
        part = moments[np.ix_(kept, kept)]
        ridge = np.eye(len(kept)) * (1e-9 * np.trace(part) + 1e-12)
        values = np.linalg.solve(part + ridge, products[kept])
        if values.min() >= 0.0:
            found[kept] = values
            break
        del kept[int(values.argmin())]
    return found


class MeasuredSteps:
    """`StepTimes` of an engine that is watched; see the module's description."""

    def __init__(self) -> None:
        self._fits = (_Fit(), _Fit())
        self._begun: list[np.ndarray] = []
        """The last two steps in a row, the later one last."""
        self._last_s = 0.0
        self._floor = 1
        self._terms = (0.0, 0.0, 0.0, 0.0)

    @property
    def known(self) -> bool:
        """Whether enough steps were seen."""
        return self._fits[0].count >= ENOUGH

    def note(
        self, now: float, went_on: bool, computed_tokens: int, attention_pairs: float, kv_tokens: int
    ) -> None:
        """A step begins.  O(1), some tens of microseconds.

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
        step = np.empty((len(FLOORS), 4))
        step[:] = (1.0, computed_tokens, attention_pairs, kv_tokens)
        np.maximum(step[:, 1], FLOORS, out=step[:, 1])
        self._begun = [*self._begun[-1:], step]
        self._last_s = now
        count = self._fits[0].count
        if count >= ENOUGH and count % _SOLVE_EVERY == 0:
            self._solve()

    def _solve(self) -> None:
        _, place, found = min((fit.solve() for fit in self._fits if fit.count >= ENOUGH), key=_error)
        self._floor = FLOORS[place]
        fixed, token, pair, kv = (found * _UNITS).tolist()
        self._terms = (fixed, token, pair, kv)

    def step_s(self, computed_tokens: int, attention_pairs: float, kv_tokens: int) -> float:
        """Seconds for one step; O(1)."""
        fixed, token, pair, kv = self._terms
        computed = max(computed_tokens, self._floor)
        return max(fixed + token * computed + pair * attention_pairs + kv * kv_tokens, _SHORTEST_S)


def _error(solved: tuple[float, int, np.ndarray]) -> float:
    return solved[0]
