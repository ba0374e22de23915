"""What an operator sees and does on vLLM's real server: log, /metrics, bad requests, error, live switch."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from support.mixed import BAD, Asked, burst
from support.served import WORDS, admissions, all_at_once, changes, check_series, say, switching
from test_engine import BLOCK, pytestmark
from vllm_server import Server, serving

from peek import InvalidConfig

__all__ = ["pytestmark"]

REQUESTS = int(os.environ.get("MIXED_REQUESTS", "150"))
WATCHED = "vllm_watched.Scheduler"
CHANGES = 12
"""Of the mode, as one batch after another was admitted."""
ROOMY = {"num_gpu_blocks_override": 6000, "max_model_len": 320, "max_num_seqs": 1}


def environ(folder: Path) -> dict[str, str]:
    return {"WATCH_FOLDER": str(folder), "VLLM_SERVER_DEV_MODE": "1"}


def test_seen_switched_and_contained(tmp_path: Path) -> None:
    options = {"policy": "peek", "control_file": str(tmp_path / "mode"), "control_every": 1, "explain": 10}
    with serving(tmp_path, WATCHED, options, **environ(tmp_path)) as server:

        def serve() -> float:
            """Serve one request; whether peek is active then."""
            assert server.complete([7] * (2 * BLOCK), 2)["usage"]["completion_tokens"] == 2
            return server.metric("peek_active")

        assert serve() == 1
        check_series(server.series(), "vllm")
        assert server.metric("peek_admitted_requests_total") == 1
        for word, active in (("off", 0), ("on", 1), ("shadow", 0), ("on", 1)):
            say(tmp_path, word)
            assert serve() == active, word
        assert server.metric("peek_fallbacks_total") == 0
        (tmp_path / "fail").touch()
        assert serve() == 0
        assert server.metric("peek_fallbacks_total") == 1
        assert serve() == 0
        assert [n for series, n in server.series().items() if 'reason="internal error"' in series] == [1]
        log = server.log.read_text()
    assert log.count("peek: active; vllm") == 2  # at start, and when it was switched on again
    assert "peek: switched from on to off" in log
    assert "RuntimeError: injected" in log
    assert "tries again after 1000 calls" in log
    assert 'peek: admitted {"request_id": ' in log


def ask(server: Server, asked: Asked) -> Any:
    more: dict[str, Any] = {}
    if asked.kind == "structured":
        more = {"structured_outputs": {"regex": "[ab]{4}"}, "max_tokens": 8, "ignore_eos": False}
    elif asked.kind == "salted":
        more = {"cache_salt": f"salt{asked.place % 3}"}
    return server.complete(list(asked.tokens), **{"max_tokens": 4, "rid": asked.rid, **more})


def served(server: Server, folder: Path, requests: list[Asked]) -> tuple[list[str], dict[str, Any]]:
    """Whoever is admitted, in order, and all answers: to a new adapter and an empty cache, all at once."""
    for word in ("off", "on"):
        say(folder, word)
        server.complete([7] * BLOCK, 4)
    server.post("/reset_prefix_cache")
    before = len(admissions(folder / "admitted"))
    (folder / "hold").write_text(str(sum(asked.kind != "toolong" for asked in requests)))
    answers = all_at_once(lambda asked: ask(server, asked), requests)
    batches = admissions(folder / "admitted")[before:]
    return [name for _, names in batches for name in names], answers


def test_bad_requests_among_many_change_nothing(tmp_path: Path) -> None:
    everybody = burst(REQUESTS)
    good = [asked for asked in everybody if asked.kind not in BAD]
    spoilt = sum(asked.kind == "spoilt" for asked in everybody)
    options = {"policy": "peek", "control_file": str(tmp_path / "mode"), "control_every": 1}
    with serving(tmp_path, WATCHED, options, words=True, engine=ROOMY, **environ(tmp_path)) as server:
        order, answers = served(server, tmp_path, good)
        assert server.metric("peek_quarantined_requests_total") == 0
        mixed_order, mixed = served(server, tmp_path, everybody)
        assert server.metric("peek_quarantined_requests_total") == spoilt > 3
        assert server.metric("peek_quarantined_waiting_requests") == 0
        assert server.metric("peek_fallbacks_total") == 0
        check_series(server.series(), "vllm")
        log = server.log.read_text()
    assert [name for name in mixed_order if not name.startswith(BAD)] == order
    assert sorted(order) == sorted(asked.rid for asked in good)
    assert order != [asked.rid for asked in good], "there was nothing to order"
    for asked in everybody:
        check(asked, mixed[asked.rid], answers.get(asked.rid, []))
    assert len(re.findall(r"peek: request 'cmpl-spoilt\d+-\S+' keeps its own place", log)) == 1
    assert "internal error" not in log


def check(asked: Asked, answers: list[Any], before: list[Any]) -> None:
    """Everybody is served as before, also who has the id of another; who is too long is refused."""
    if asked.kind == "toolong":
        assert answers == [400]
        return
    choices = [answer["choices"][0] for answer in answers]
    if asked.kind == "structured":
        assert all(re.fullmatch("[ab]{4}", choice["text"]) for choice in choices)
    assert all(len(choice["token_ids"]) >= 4 for choice in choices)
    if asked.kind not in BAD:
        assert [choice["token_ids"] for choice in choices] == [
            answer["choices"][0]["token_ids"] for answer in before
        ]


@pytest.mark.parametrize("ranks", [1, 2])
def test_switched_under_load(ranks: int, tmp_path: Path) -> None:
    """Nobody is lost and no token differs while the mode changes all the time."""
    requests = [asked for asked in burst(60) if asked.kind in ("text", "salted", "twin")]
    options = {"policy": "clpm+gm+dl+pe", "control_file": str(tmp_path / "mode"), "control_every": 2}
    cores = sorted(os.sched_getaffinity(0))
    flags = [f"--tensor-parallel-size={ranks}"]
    more = {
        **environ(tmp_path),
        "VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}" if ranks > 1 else "auto",
    }
    small = {**ROOMY, "num_gpu_blocks_override": 24, "max_num_seqs": 4}
    say(tmp_path, "off")
    with serving(tmp_path, WATCHED, options, *flags, engine=small, **more) as server:
        plain = all_at_once(lambda asked: ask(server, asked), requests)
        rounds = 1
        with switching(tmp_path):
            while rounds < 50 and changes(admissions(tmp_path / "admitted")) < CHANGES:
                rounds += 1
                for rid, (answer,) in all_at_once(lambda asked: ask(server, asked), requests).items():
                    assert answer["choices"][0]["token_ids"] == plain[rid][0]["choices"][0]["token_ids"]
        assert server.metric("peek_fallbacks_total") == 0
        assert server.metric("peek_waiting_requests") == 0
        assert server.metric("vllm:kv_cache_usage_perc") == 0
        check_series(server.series(), "vllm")  # of two ranks, too, one speaks
    batches = admissions(tmp_path / "admitted")
    assert {mode for mode, _ in batches} == set(WORDS)
    assert changes(batches) >= CHANGES
    assert sum(len(names) for _, names in batches) == rounds * len(requests)


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
