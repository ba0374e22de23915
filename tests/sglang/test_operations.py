"""What an operator sees and does on SGLang's real server."""

from __future__ import annotations

import pytest
from sglang_server import SglangHost
from support.alike_served import AlikeServed
from support.pages import Launch, launches
from support.recipes import Container, containers
from test_engine import HAS_PLUGINS

pytestmark = pytest.mark.slow

RECIPES = {" ".join(each.flags): each for each in containers() if each.engine == "sglang"}
WITHOUT_PLUGINS = ("test_everybody_is_served", "test_the_server_of_a_page_serves", "test_a_trace_from_inside")


@pytest.fixture
def host(request: pytest.FixtureRequest) -> SglangHost:
    if not HAS_PLUGINS and not request.node.name.startswith(WITHOUT_PLUGINS):
        pytest.skip("a plug-in watches, and this version has none")
    return SglangHost()


@pytest.fixture(params=launches("sglang"), ids=lambda launch: launch.where)
def launch(request: pytest.FixtureRequest) -> Launch:
    if request.param.program == "python -m sglang.launch_server" and not HAS_PLUGINS:
        pytest.skip("this version has no plug-ins")
    return request.param


@pytest.fixture(params=RECIPES.values(), ids=lambda recipe: recipe.where)
def recipe(request: pytest.FixtureRequest) -> Container:
    return request.param


class TestServed(AlikeServed):
    """On SGLang."""
