"""SGLang's server with the flags and options of the recipes: in shadow, on, off, as the control file says."""

from __future__ import annotations

from pathlib import Path

import pytest
from sglang_server import serving
from support.recipes import Container, containers, roll_out, settle
from test_engine import ENGINE, HAS_PLUGINS, worked_prompts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_PLUGINS, reason="this version has no plug-ins"),
]

SIZES = [f"--{name.replace('_', '-')}={value}" for name, value in ENGINE.items() if name != "schedule_policy"]
RECIPES = {" ".join(each.flags): each for each in containers() if each.engine == "sglang"}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=[recipe.where for recipe in RECIPES.values()])
def test_a_recipe_goes_from_shadow_to_on_and_off(recipe: Container, tmp_path: Path) -> None:
    with serving(tmp_path, *SIZES, *recipe.flags, **settle(tmp_path)) as server:
        roll_out(server, tmp_path, lambda: [server.generate(prompt) for prompt in worked_prompts().values()])
