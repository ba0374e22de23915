"""A real HTTP server with `peek`, started as the documentation says, and many clients at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sglang_server import Server, serving
from test_engine import ENGINE, worked_prompts

pytestmark = pytest.mark.slow

MODULE = "peek.adapters.sglang.launch_server"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the worked check's engine."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in ENGINE.items()]
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, *flags, module=MODULE, PEEK_POLICY="peek") as server:
        yield server


def test_the_log_says_at_start_what_is_active(server: Server) -> None:
    text = server.log.read_text()
    assert "peek: takes the place of --schedule-policy fcfs" in text
    assert "peek: active" in text


def test_everybody_is_served(server: Server) -> None:
    prompts = list(worked_prompts().values())
    with ThreadPoolExecutor(24) as clients:
        answers = list(clients.map(server.generate, prompts * 3))
    assert [len(answer["output_ids"]) for answer in answers] == [4] * 24
    assert sum(answer["meta_info"]["cached_tokens"] for answer in answers) > 0
    assert len(server.generate(prompts[0])["output_ids"]) == 4
    assert "internal error" not in server.log.read_text()
