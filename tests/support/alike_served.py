"""Tests of what an operator sees and does, the same for both engines' real servers."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from peek import PRESETS
from support.mixed import BAD, Asked, burst
from support.pages import Launch, engine_pages, run_engine_page
from support.recipes import Container, roll_out, settle
from support.served import (
    WORDS,
    Answer,
    Server,
    admissions,
    all_at_once,
    changes,
    check_series,
    say,
    switching,
)
from support.waiting import until

REQUESTS = int(os.environ.get("MIXED_REQUESTS", "150"))
CHANGES = 12
"""Of the mode, as one batch after another was admitted."""


class Host:
    """How an engine's server is started.

    Attributes:
        engine: its name.
        sizes: flags of a server: `worked` holds one of the `prompts`; `roomy` has one seat, `small` a few;
            `traced` has a queue.
        grammars: whether structured output works.
        refuses_again: whether an id that waits already is refused.
        in_process: variables with which the code of a page runs.
    """

    engine: str
    sizes: ClassVar[dict[str, list[str]]]
    grammars = True
    refuses_again: bool
    in_process: ClassVar[dict[str, str]]

    prompts: Callable[[], list[list[int]]]
    """Eight of the worked check."""
    serving: Callable[..., AbstractContextManager[Server]]
    """A server in a folder, with these options of `peek`; None: what `flags` and `environ` say is all.

    By name: the `program`; whether it is `watched`, and has `words`; its number of `ranks`; an `environ`.
    """
    admitted: Callable[[Path], Path]
    """What a watched server notes in a folder."""

    def check_ranks(self, folder: Path, log: str) -> None:
        """Whatever two ranks must have in common."""


def controlled(folder: Path, **more: Any) -> dict[str, Any]:
    return {"policy": "peek", "control_file": str(folder / "mode"), "control_every": 1, **more}


def ask(server: Server, asked: Asked) -> Answer:
    salt = f"salt{asked.place % 3}" if asked.kind == "salted" else None
    regex = "[ab]{4}" if asked.kind == "structured" else None
    return server.ask(list(asked.tokens), rid=asked.rid, salt=salt, regex=regex)


class AlikeServed:
    """The suite; an engine's test module has a fixture `host`."""

    def test_everybody_is_served(self, host: Host, tmp_path: Path) -> None:
        with host.serving(tmp_path, {"policy": "peek"}, *host.sizes["worked"]) as server:
            with ThreadPoolExecutor(24) as clients:
                answers = list(clients.map(server.ask, host.prompts() * 3))
            log = server.log.read_text()
        assert [len(answer.tokens) for answer in answers] == [4] * 24
        assert sum(answer.cached for answer in answers) > 0
        assert "peek: active" in log
        assert "internal error" not in log

    def test_seen_switched_and_contained(self, host: Host, tmp_path: Path) -> None:
        options, sizes = controlled(tmp_path, explain=10), host.sizes["small"]
        with host.serving(tmp_path, options, *sizes, watched=True) as server:

            def serve() -> float:
                """Serve a few; whether peek is active then."""
                for _ in range(3):
                    assert len(server.ask([7] * 64, 2).tokens) == 2
                return server.metric("peek_active")

            assert serve() == 1
            check_series(server.series(), host.engine)
            assert server.metric("peek_admitted_requests_total") >= 3
            for word, active in (("off", 0), ("on", 1), ("shadow", 0), ("on", 1)):
                say(tmp_path, word)
                assert serve() == active, word
            assert server.metric("peek_fallbacks_total") == 0
            (tmp_path / "fail").touch()
            assert serve() == 0
            assert server.metric("peek_fallbacks_total") == 1
            assert [n for series, n in server.series().items() if 'reason="internal error"' in series] == [1]
            log = server.log.read_text()
        assert log.count(f"peek: active; {host.engine}") == 2  # at start, and when it was switched on again
        assert "peek: switched from on to off" in log
        assert "RuntimeError: injected" in log
        assert "tries again after 1000 calls" in log
        assert 'peek: admitted {"request_id": ' in log

    def test_bad_requests_among_many_change_nothing(self, host: Host, tmp_path: Path) -> None:
        everybody = burst(REQUESTS)
        good = [asked for asked in everybody if asked.kind not in BAD]
        spoilt = sum(asked.kind == "spoilt" for asked in everybody)
        options, sizes = controlled(tmp_path), host.sizes["roomy"]
        with host.serving(tmp_path, options, *sizes, watched=True, words=True) as server:
            order, answers = self._served(host, server, tmp_path, good)
            apart = server.metric("peek_quarantined_requests_total")
            mixed_order, mixed = self._served(host, server, tmp_path, everybody)
            assert server.metric("peek_quarantined_requests_total") - apart == spoilt > 3
            assert server.metric("peek_quarantined_waiting_requests") == 0
            assert server.metric("peek_fallbacks_total") == 0
            check_series(server.series(), host.engine)
            log = server.log.read_text()
        assert [name for name in mixed_order if not name.startswith(BAD)] == order
        assert set(order) == set(answers)
        assert order != [asked.rid for asked in good], "there was nothing to order"
        for asked in everybody:
            found = [answer for answer in mixed[asked.rid] if answer != 400]
            same = sum(each.rid == asked.rid for each in everybody)
            assert len(found) == (0 if asked.kind == "toolong" else 1 if host.refuses_again else same)
            if asked.kind == "structured" and host.grammars:
                assert all(re.fullmatch("[ab]{4}", answer.text) for answer in found)
            else:
                assert all(len(answer.tokens) == 4 for answer in found)
            if asked.kind not in BAD:
                before = [answer for answer in answers[asked.rid] if answer != 400]
                assert [answer.tokens for answer in found] == [answer.tokens for answer in before]
        assert re.search(r"peek: request '\S*spoilt\d+\S*' keeps its own place", log)
        assert "internal error" not in log

    def _served(
        self, host: Host, server: Server, folder: Path, requests: list[Asked]
    ) -> tuple[list[str], dict[str, Any]]:
        """Who is admitted, in order, and all answers: to a new adapter and an empty cache, all at once."""
        for word in ("off", "on"):
            say(folder, word)
            for _ in range(4):
                server.ask([5, 6, 7])
        server.empty()
        before = len(admissions(host.admitted(folder)))
        # An id that waits already is refused by some; whoever came with it first is served.
        served = [asked.rid for asked in requests if asked.kind != "toolong"]
        to_serve = len(set(served) if host.refuses_again else served)
        (folder / "hold").write_text(str(to_serve + 1))
        answers = all_at_once(
            lambda asked: ask(server, asked),
            requests,
            len(requests) - to_serve,
            lambda: server.ask([5, 6, 7], rid=f"last{10**6}"),
        )
        batches = admissions(host.admitted(folder))[before:]
        return [rid for _, rids in batches for rid in rids if not rid.startswith("last")], answers

    @pytest.mark.parametrize("ranks", [1, 2])
    def test_switched_under_load(self, host: Host, ranks: int, tmp_path: Path) -> None:
        """Nobody is lost and no token differs while the mode changes all the time."""
        requests = [asked for asked in burst(60) if asked.kind in ("text", "salted", "twin")]
        options = controlled(tmp_path, policy="clpm+gm+dl+pe")
        say(tmp_path, "off")
        with host.serving(tmp_path, options, *host.sizes["small"], watched=True, ranks=ranks) as server:
            plain = all_at_once(lambda asked: ask(server, asked), requests)
            with switching(tmp_path):
                for _ in range(50):
                    if changes(admissions(host.admitted(tmp_path))) >= CHANGES:
                        break
                    server.empty()
                    found = all_at_once(lambda asked: ask(server, asked), requests)
                    assert {rid: answer.tokens for rid, (answer,) in found.items()} == {
                        rid: answer.tokens for rid, (answer,) in plain.items()
                    }
            assert server.metric("peek_fallbacks_total") == 0
            assert server.metric("peek_waiting_requests") == 0
            check_series(server.series(), host.engine)  # of two ranks, too, one speaks
            log = server.log.read_text()
        batches = admissions(host.admitted(tmp_path))
        assert {mode for mode, _ in batches} == set(WORDS)
        assert changes(batches) >= CHANGES
        if ranks > 1:
            host.check_ranks(tmp_path, log)

    @pytest.mark.parametrize(("mode", "ranks"), [("on", 1), ("shadow", 1), ("off", 2)])
    def test_a_trace_from_inside_holds_what_was_asked(
        self, host: Host, mode: str, ranks: int, tmp_path: Path
    ) -> None:
        """Exact tokens and lengths of answers, under load; without a policy from one of two ranks."""
        rnd = random.Random(1)
        heads = [[rnd.randrange(20, 1000) for _ in range(256)] for _ in range(4)]
        prompts = [rnd.choice(heads) + rnd.choices(range(20, 1000), k=1 + i % 40) for i in range(60)]
        path = tmp_path / "inside.jsonl"
        policy = "off" if mode == "off" else "peek"
        options = controlled(tmp_path, policy=policy, mode=mode, trace_file=str(path))

        def asked_in() -> list[dict[str, Any]]:
            """Whole rows, without those of the requests by which an engine warms up."""
            whole = path.read_text().rpartition("\n")[0].splitlines()
            return [row for row in map(json.loads, whole) if row["input_length"] > 256]

        with (
            host.serving(tmp_path, options, *host.sizes["traced"], ranks=ranks) as server,
            ThreadPoolExecutor(12) as clients,
        ):
            list(clients.map(lambda i: server.ask(prompts[i], 4 + i % 5), range(len(prompts))))
            until(lambda: len(asked_in()) >= len(prompts), "all rows")
        rows = asked_in()
        asked = sorted((len(each), 4 + i % 5) for i, each in enumerate(prompts))
        assert sorted((row["input_length"], row["output_length"]) for row in rows) == asked
        whole = {tuple(each[: 16 * (place + 1)]) for each in prompts for place in range(-(-len(each) // 16))}
        assert len({found for row in rows for found in row["hash_ids"]}) == len(whole)
        times = [row["timestamp"] for row in rows]
        assert max(times) - min(times) < 300_000.0

    # -- as the pages and the recipes say ------------------------------------------------------------

    def test_the_server_of_a_page_serves(self, host: Host, launch: Launch, tmp_path: Path) -> None:
        for name, text in launch.files.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        flags = [*host.sizes["worked"], *launch.flags]
        started = host.serving(tmp_path, None, *flags, program=launch.program, environ=launch.environ)
        with started as server:
            assert [len(server.ask(prompt, 2).tokens) for prompt in host.prompts()] == [2] * 8
            if host.engine == "vllm" or "--enable-metrics" in launch.flags:
                assert server.metric("peek_active") == 1
                assert server.metric("peek_admitted_requests_total") >= 8
                assert server.metric("peek_fallbacks_total") == 0
                assert server.metric("peek_policy_faults_total") == 0
            log = server.log.read_text()
        label = launch.environ["PEEK_POLICY"]
        policy = PRESETS[label].policy if label in PRESETS else label
        assert "peek: active" in log
        assert f"policy={policy} " in log
        assert "internal error" not in log

    def test_the_python_of_the_pages_runs(
        self, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for page in engine_pages(host.engine):
            run_engine_page(host.engine, page, **host.in_process)

    def test_a_recipe_goes_from_shadow_to_on_and_off(
        self, host: Host, recipe: Container, tmp_path: Path
    ) -> None:
        flags = [*host.sizes["worked"], *recipe.flags]
        with host.serving(tmp_path, None, *flags, environ=settle(tmp_path)) as server:
            roll_out(server, tmp_path, lambda: [server.ask(prompt, 16) for prompt in host.prompts()])
