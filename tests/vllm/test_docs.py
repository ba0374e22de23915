"""vLLM's server is started as the readme and the documentation say, and `peek` orders its queue."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pages import Launch, engine_pages, launches, run_engine_page
from test_engine import pytestmark, worked_prompts
from vllm_server import serving

from peek import PRESETS

__all__ = ["pytestmark"]

LAUNCHES = launches("vllm")
IN_PROCESS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@pytest.mark.parametrize("launch", LAUNCHES, ids=[launch.where for launch in LAUNCHES])
def test_the_server_of_a_page_serves(launch: Launch, tmp_path: Path) -> None:
    assert launch.program == "vllm serve"  # which `serving` runs
    for name, text in launch.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with serving(tmp_path, "", None, *launch.flags, **launch.environ) as server:
        for prompt in worked_prompts().values():
            server.complete(prompt, 2)
        assert server.metric("peek_active") == 1
        assert server.metric("peek_admitted_requests_total") == 8
        assert server.metric("peek_fallbacks_total") == server.metric("peek_policy_faults_total") == 0
    log = server.log.read_text()
    assert "peek: active" in log
    label = launch.environ["PEEK_POLICY"]
    policy = PRESETS[label].policy if label in PRESETS else label
    assert f"policy={policy} " in log


@pytest.mark.parametrize("page", engine_pages("vllm"))
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_engine_page("vllm", page, **IN_PROCESS)
