"""vLLM's server with the flags and options of the recipes: in shadow, on, off, as the control file says."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.recipes import Container, containers, roll_out, settle
from test_engine import pytestmark, worked_prompts
from vllm_server import serving

__all__ = ["pytestmark"]

ALL = [each for each in containers() if each.engine == "vllm"]
RECIPES = {" ".join(one.flags): one for one in ALL if not any({*one.flags} < {*each.flags} for each in ALL)}
"""Those with fewer flags than another are left out."""


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=[recipe.where for recipe in RECIPES.values()])
def test_a_recipe_goes_from_shadow_to_on_and_off(recipe: Container, tmp_path: Path) -> None:
    with serving(tmp_path, "", None, *recipe.flags, **settle(tmp_path)) as server:
        roll_out(
            server, tmp_path, lambda: [server.complete(prompt, 16) for prompt in worked_prompts().values()]
        )
