"""SGLang's server is started as the readme and the documentation say, and `peek` orders its queue."""

from __future__ import annotations

from pathlib import Path

import pytest
from sglang_server import serving
from support.pages import Launch, engine_pages, launches, run_engine_page
from test_engine import ENGINE, HAS_PLUGINS, worked_prompts

from peek import PRESETS

pytestmark = pytest.mark.slow

LAUNCHES = launches("sglang")
SIZES = [f"--{name.replace('_', '-')}={value}" for name, value in ENGINE.items() if name != "schedule_policy"]


@pytest.mark.parametrize("launch", LAUNCHES, ids=[launch.where for launch in LAUNCHES])
def test_the_server_of_a_page_serves(launch: Launch, tmp_path: Path) -> None:
    if launch.program == "python -m sglang.launch_server" and not HAS_PLUGINS:
        pytest.skip("this version has no plug-ins")
    for name, text in launch.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with serving(
        tmp_path, *SIZES, *launch.flags, module=launch.program.removeprefix("python -m "), **launch.environ
    ) as server:
        for prompt in worked_prompts().values():
            assert len(server.generate(prompt)["output_ids"]) == 4
        if "--enable-metrics" in launch.flags:
            assert server.metric("peek_active") == 1
    log = server.log.read_text()
    assert "peek: active" in log
    label = launch.environ["PEEK_POLICY"]
    policy = PRESETS[label].policy if label in PRESETS else label
    assert f"policy={policy} " in log
    assert "internal error" not in log


@pytest.mark.parametrize("page", engine_pages("sglang"))
@pytest.mark.skipif(not HAS_PLUGINS, reason="this version has no plug-ins")
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_engine_page("sglang", page, SGLANG_USE_CPU_ENGINE="1", TORCH_COMPILE_DISABLE="1")
