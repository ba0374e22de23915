"""GRPO groups on two real vLLM engines behind verl's own balancer, and behind ours, on a real Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm_rollouts import GROUPS, SAMPLES, TURNS, Rolled, cluster, roll_out, router_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with cluster(tmp_path_factory.mktemp("model")) as two:
        yield two


@pytest.fixture(scope="module")
def theirs(servers: dict[str, Any]) -> Rolled:
    """What verl's own balancer makes of it."""
    return roll_out(servers, None)


def test_answers_are_the_same_and_more_is_cached(
    servers: dict[str, Any], theirs: Rolled, tmp_path: Path
) -> None:
    ours = roll_out(servers, router_config(tmp_path))
    assert ours.answers == theirs.answers
    assert len({str(said) for said in ours.answers.values()}) == GROUPS * SAMPLES
    assert all(len(said) == TURNS for said in ours.answers.values())
    assert ours.asked == theirs.asked
    assert ours.cached > theirs.cached


def test_answers_are_the_same_while_servers_come_and_go(
    servers: dict[str, Any], theirs: Rolled, tmp_path: Path
) -> None:
    ours = roll_out(servers, router_config(tmp_path), changing=True)
    assert (ours.answers, ours.asked) == (theirs.answers, theirs.asked)
