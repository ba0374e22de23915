"""What an operator sees and does on vLLM's real server, and in it alone."""

from __future__ import annotations

import pytest
from support.alike_served import AlikeServed
from support.pages import Launch, launches
from support.recipes import Container, containers
from test_engine import pytestmark
from vllm_server import VllmHost

from peek import InvalidConfig

__all__ = ["pytestmark"]

ALL = [each for each in containers() if each.engine == "vllm"]
RECIPES = {" ".join(one.flags): one for one in ALL if not any({*one.flags} < {*each.flags} for each in ALL)}
"""Those with fewer flags than another are left out."""


@pytest.fixture
def host() -> VllmHost:
    return VllmHost()


@pytest.fixture(params=launches("vllm"), ids=lambda launch: launch.where)
def launch(request: pytest.FixtureRequest) -> Launch:
    return request.param


@pytest.fixture(params=RECIPES.values(), ids=lambda recipe: recipe.where)
def recipe(request: pytest.FixtureRequest) -> Container:
    return request.param


class TestServed(AlikeServed):
    """On vLLM."""


def test_a_mistake_in_a_setting_ends_the_start_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import vllm.plugins

    monkeypatch.setenv("PEEK_CONFIG", '{"policy": "peek", "slo_s": 2}')
    # The plug-in of the metrics names no folder here: servers that tests start later would inherit it.
    monkeypatch.setenv("PEEK_METRICS_DIR", "named")
    monkeypatch.setattr(vllm.plugins, "plugins_loaded", False)
    with pytest.raises(InvalidConfig, match="'slo_s' is not one of policy 'peek'"):
        vllm.plugins.load_general_plugins()
