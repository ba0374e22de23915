"""What an operator sees and does on SGLang's real server: log, /metrics, bad requests, error, live switch."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from sglang_lab import RELEASE
from sglang_server import Server, serving
from support.mixed import BAD, Asked, burst
from support.served import WORDS, admissions, all_at_once, changes, check_series, say, switching
from test_engine import HAS_PLUGINS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_PLUGINS, reason="a plug-in watches, and this version has none"),
]

REQUESTS = int(os.environ.get("MIXED_REQUESTS", "150"))
FLAGS = ["--enable-metrics", "--served-model-name=m", "--context-length=2150", "--max-total-tokens=200000"]
GRAMMARS = RELEASE >= (0, 5, 23)
"""Whether structured output works on a CPU; elsewhere these requests are ordinary ones."""
CHANGES = 12
"""Of the mode, as one batch after another was admitted."""
ONE_SEAT = [*FLAGS, "--max-running-requests=1"]


def options(folder: Path) -> dict[str, str]:
    options = {"control_file": str(folder / "mode"), "control_every": 2}
    return {"PEEK_POLICY": "peek", "PEEK_CONFIG": json.dumps(options)}


def ask(server: Server, asked: Asked) -> Any:
    more: dict[str, Any] = {"rid": asked.rid}
    if asked.kind == "structured" and GRAMMARS:
        more["sampling"] = {"regex": "[ab]{4}", "max_new_tokens": 8, "ignore_eos": False}
    elif asked.kind == "salted":
        more["extra_key"] = f"salt{asked.place % 3}"
    return server.generate(list(asked.tokens), **more)


def served(server: Server, folder: Path, requests: list[Asked]) -> tuple[list[str], dict[str, Any]]:
    """Whoever is admitted, in order, and all answers: to a new adapter and an empty cache, all at once."""
    for word in ("off", "on"):
        say(folder, word)
        for _ in range(4):
            server.generate([5, 6, 7])
    assert server.flush().startswith("Cache flushed")
    before = len(admissions(folder / "admitted-0"))
    # An id that is waiting already is refused; whoever came with it first is served.
    to_serve = len({asked.rid for asked in requests if asked.kind != "toolong"})
    (folder / "hold").write_text(str(to_serve + 1))
    answers = all_at_once(
        lambda asked: ask(server, asked),
        requests,
        len(requests) - to_serve,
        lambda: server.generate([5, 6, 7], rid=f"last{10**6}"),
    )
    batches = admissions(folder / "admitted-0")[before:]
    return [rid for _, rids in batches for rid in rids if not rid.startswith("last")], answers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operations")


@pytest.fixture(scope="module")
def first(folder: Path) -> set[str]:
    """The series of a server on which a mixed burst was served with and without its bad requests."""
    with serving(folder, *ONE_SEAT, words=True, **options(folder)) as server:
        everybody = burst(REQUESTS)
        good = [asked for asked in everybody if asked.kind not in BAD]
        apart = server.metric("peek_quarantined_requests_total")
        order, answers = served(server, folder, good)
        assert server.metric("peek_quarantined_requests_total") == apart
        mixed_order, mixed = served(server, folder, everybody)
        assert [rid for rid in mixed_order if not rid.startswith(BAD)] == order
        assert order != list(answers), "there was nothing to order"
        check_answers(everybody, mixed, answers)
        spoilt = sum(asked.kind == "spoilt" for asked in everybody)
        assert spoilt > 3
        assert server.metric("peek_quarantined_requests_total") - apart == spoilt
        assert server.metric("peek_quarantined_waiting_requests") == 0
        assert server.metric("peek_fallbacks_total") == 0
        log = server.log.read_text()
        assert len(re.findall(r"peek: request 'spoilt\d+' keeps its own place", log)) >= 1
        assert "internal error" not in log
        return set(server.series())


def check_answers(everybody: list[Asked], found: dict[str, list[Any]], before: dict[str, list[Any]]) -> None:
    """One of each id is served as it was before, the others are refused; who is too long is refused, too."""
    for asked in everybody:
        answers = [answer for answer in found[asked.rid] if answer != 400]
        if asked.kind == "toolong":
            assert answers == []
            continue
        (answer,) = answers
        if asked.kind == "structured" and GRAMMARS:
            assert re.fullmatch("[ab]{4}", answer["text"])
        else:
            assert len(answer["output_ids"]) == 4
        if asked.kind not in BAD:
            (same,) = [answer for answer in before[asked.rid] if answer != 400]
            assert answer["output_ids"] == same["output_ids"]


def test_bad_requests_among_many_change_nothing(first: set[str]) -> None:
    assert first


def test_all_series_are_there_with_their_labels(first: set[str]) -> None:
    check_series(first, "sglang")


# -- a server started anew, and two ranks -------------------------------------------------------------


def without_states(series: set[str]) -> set[str]:
    return {name for name in series if not name.startswith("peek_state")}


def switch_under_load(server: Server, folder: Path) -> None:
    """The mode changes while a burst is served again and again: nobody is lost, and no token differs."""
    requests = [asked for asked in burst(60) if asked.kind in ("text", "salted", "twin")]
    say(folder, "off")
    plain = all_at_once(lambda asked: ask(server, asked), requests)
    with switching(folder):
        for _ in range(50):
            if changes(admissions(folder / "admitted-0")) >= CHANGES:
                break
            server.flush()
            for rid, (answer,) in all_at_once(lambda asked: ask(server, asked), requests).items():
                assert answer["output_ids"] == plain[rid][0]["output_ids"]
    assert server.metric("peek_fallbacks_total") == 0
    assert server.metric("peek_waiting_requests") == 0
    batches = admissions(folder / "admitted-0")
    assert {mode for mode, _ in batches} == set(WORDS)
    assert changes(batches) >= CHANGES


def an_error_shows(server: Server, folder: Path) -> None:
    say(folder, "on")
    requests = [asked for asked in burst(50, bad_share=0.0) if asked.kind != "again"]
    all_at_once(lambda asked: ask(server, asked), requests)
    assert (server.metric("peek_active"), server.metric("peek_fallbacks_total")) == (1, 0)
    (folder / "fail").touch()
    answers = all_at_once(lambda asked: ask(server, asked), requests)
    assert all(answer["output_ids"] for (answer,) in answers.values())
    assert (server.metric("peek_active"), server.metric("peek_fallbacks_total")) == (0, 1)
    assert [n for series, n in server.series().items() if 'reason="internal error"' in series] == [1]
    log = server.log.read_text()
    assert "RuntimeError: injected" in log
    assert "tries again after 1000 calls" in log


def test_started_anew_switched_under_load_and_contained(first: set[str], folder: Path) -> None:
    say(folder, "on")
    (folder / "admitted-0").unlink()
    with serving(folder, *ONE_SEAT, words=True, **options(folder)) as server:
        assert without_states(set(server.series())) == without_states(first)
        switch_under_load(server, folder)
        an_error_shows(server, folder)


def test_two_ranks_are_switched_in_the_same_call(first: set[str], tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    environ = {"SGLANG_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}", **options(tmp_path)}
    with serving(tmp_path, *FLAGS, "--max-running-requests=4", "--tp-size=2", **environ) as server:
        assert without_states(set(server.series())) == without_states(first), "one rank of two speaks"
        switch_under_load(server, tmp_path)
        log = server.log.read_text()
    assert admissions(tmp_path / "admitted-0") == admissions(tmp_path / "admitted-1")
    assert "is not looked at" not in log
    assert log.count("TP0] peek: switched from") == log.count("TP1] peek: switched from") >= CHANGES
