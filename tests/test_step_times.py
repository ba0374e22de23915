"""Step times are learned from what an engine shows, whatever it shows late or lazily."""

from __future__ import annotations

from random import Random

import pytest

from peek.simulation.cost import ENOUGH, CostModel, MeasuredSteps

STEPS = ((16, 0.0, 16_000), (60, 4e4, 30_000), (300, 3e5, 20_000), (1200, 1e6, 16_000), (8000, 4e7, 1000))


def watched(true: CostModel, lag: int = 0, noise: float = 0.0, stall: float = 0.0) -> MeasuredSteps:
    """What is learned from 3,000 steps whose time shows `lag` intervals late."""
    rng = Random(3)
    learned = MeasuredSteps()
    now, spent = 0.0, [0.0] * lag
    for _ in range(3000):
        kind = rng.choice(STEPS)
        tokens, pairs, kv_tokens = (type(value)(value * rng.uniform(0.5, 1.5)) for value in kind)
        learned.note(now, True, tokens, pairs, kv_tokens)
        spent.append(true.step_s(tokens, pairs, kv_tokens) * rng.uniform(1 - noise, 1 + noise))
        now += spent[-1 - lag] + (stall if rng.random() < 0.001 else 0.0)
    return learned


@pytest.mark.parametrize("lag", [0, 1])
def test_the_cost_model_is_found(lag: int) -> None:
    true = CostModel()
    learned = watched(true, lag)
    for step in STEPS:
        assert learned.step_s(*step) == pytest.approx(true.step_s(*step), rel=0.06), step


def test_noise_and_stalls_do_not_matter() -> None:
    true = CostModel()
    learned = watched(true, noise=0.3, stall=2.0)
    for step in STEPS:
        assert learned.step_s(*step) == pytest.approx(true.step_s(*step), rel=0.12), step


def test_nothing_is_known_at_first_and_idle_time_is_no_step() -> None:
    learned = MeasuredSteps()
    now = 0.0
    for place in range(3 * ENOUGH):
        assert learned.known == (place >= 2 * ENOUGH)
        went_on = place % 2 == 1 or place > 2 * ENOUGH
        learned.note(now, went_on, 10, 0.0, 0)
        now += 0.02 if place % 2 == 0 or place >= 2 * ENOUGH else 60.0
    assert learned.step_s(10, 0.0, 0) == pytest.approx(0.02, rel=1e-3)


def test_no_term_is_negative() -> None:
    """Steps that get shorter with more tokens: the fit takes them for equally long."""
    learned = MeasuredSteps()
    now = 0.0
    for place in range(2 * ENOUGH):
        tokens = 1 + place % 7
        learned.note(now, True, tokens, 0.0, 0)
        now += 0.1 - 0.01 * tokens
    assert 0.02 < learned.step_s(1, 0.0, 0) <= learned.step_s(1000, 0.0, 0) < 0.2
