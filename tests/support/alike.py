"""Behaviour that both engines' adapters share: one test suite, run on each engine's own scheduler.

An engine's test modules have a fixture `lab`, see `support.lab`, and classes that derive from these.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peek.adapters.containment import LASTING
from peek.adapters.engine_adapter import TESTED
from peek.adapters.metrics import snapshot
from peek.errors import InvalidKey
from support.lab import A, Ask, B, Lab

Log = pytest.LogCaptureFixture
FAIR: dict[str, Any] = {"tenant_lead": 0.0, "tenants": "named"}
SAYS = {"peek_session": "chat-7", "peek_ttft_target_s": "2.5"}
SAID = ("chat-7", 2.5)


def in_turns(own: int = 8) -> list[Ask]:
    """A and B in turns, A first."""
    return [Ask(f"{'AB'[i % 2]}{i}", (A, B)[i % 2] + [300 + i] * own) for i in range(6)]


def flood(named: bool) -> list[Ask]:
    """Four of one tenant came first, then four of another; nothing is shared.

    Both have equally many: where tenants are not named, SGLang's name of one is a session's.
    """
    names = [f"{tenant}{i}" for tenant in ("hot", "cold") for i in range(4)]
    return [Ask(name, [400 + i] * 65, 1, name[:-1] if named else None) for i, name in enumerate(names)]


def sixty() -> list[Ask]:
    """Six groups that share 128 tokens, in turns."""
    return [Ask(f"r{i}", [10 + i % 6] * 128 + [100 + i] * 16, 4) for i in range(60)]


def said(log: Log) -> list[str]:
    """The lines of `peek`."""
    return [record.getMessage() for record in log.records if record.name == "peek"]


def stated(lab: Lab, name: str) -> tuple[str, float | None]:
    """What the planner has of a waiting request: its session and target."""
    request = lab.adapter.planner.request(name)
    return request.session, request.ttft_target_s


class Alike:
    """The suite."""

    def test_the_version_is_one_of_those_that_are_named(self, lab: Lab) -> None:
        assert lab.version in TESTED[lab.engine]

    # -- policies of others ------------------------------------------------------------------------

    def test_a_policy_of_its_authors_own_orders_the_queue(self, lab: Lab, module: str) -> None:
        played = lab.play(in_turns(), f"{module}:MostCachedFirst", warm=[Ask("first", [*B, 1])])
        assert played.order == ["B1", "B3", "B5", "A0", "A2", "A4"]

    @pytest.mark.parametrize(("weight", "first"), [("", "short"), (":weight=-1", "long")])
    def test_one_with_an_option_a_memory_and_a_stream(
        self, lab: Lab, module: str, weight: str, first: str
    ) -> None:
        """Answers of 9 tokens to the longer prompts, of 2 to the others."""
        lengths = {"long": (65, 9), "short": (33, 2)}
        warm = [Ask(name, [7] * length, output) for name, (length, output) in lengths.items()]
        asks = [
            Ask(f"{name}{i}", [20 + i] * length, output)
            for i in range(3)
            for name, (length, output) in lengths.items()
        ]
        played = lab.play(asks, f"{module}:ByAnswer{weight}", warm=warm)
        second = {"long": "short", "short": "long"}[first]
        assert played.order == [f"{name}{i}" for name in (first, second) for i in range(3)]
        assert snapshot(played.beside.adapter)["peek_policy_faults"] == 0

    def test_one_that_fails_leaves_arrival_order_and_is_seen(self, lab: Lab, module: str) -> None:
        played = lab.play(in_turns(), f"{module}:Forgets", warm=[Ask("first", [*B, 1])], strict=False)
        assert played.order == [ask.name for ask in in_turns()]
        assert snapshot(played.beside.adapter)["peek_policy_faults"] >= 5
        assert (played.beside.shield.active, played.beside.shield.fallbacks) == (True, 0)

    # -- tenants, and what is learnt of answers ------------------------------------------------------

    def test_the_tenant_named_in_a_request_gets_its_turn(self, lab: Lab) -> None:
        named = lab.play(flood(named=True), **FAIR).order
        assert {name[:-1] for name in named[:2]} == {name[:-1] for name in named[2:4]} == {"hot", "cold"}
        assert lab.play(flood(named=False), **FAIR).order[4:] == [f"cold{i}" for i in range(4)]

    @pytest.mark.parametrize("tenants", ["none", "namespace"])
    def test_a_name_in_a_body_is_not_believed_unless_asked_for(self, lab: Lab, tenants: str) -> None:
        named, unnamed = (
            lab.play(flood(named), tenant_lead=0.0, tenants=tenants).order for named in (True, False)
        )
        assert named == unnamed

    def test_salts_are_tenants_where_that_is_asked_for(self, lab: Lab) -> None:
        salted = [Ask(f"hot{i}", [*A, i], salt="h") for i in range(6)] + [Ask("cold", [50] * 65, salt="c")]
        assert lab.play(salted, **FAIR).order[-1] == "cold"
        assert lab.play(salted, **{**FAIR, "tenants": "namespace"}).order[1] == "cold"

    def test_what_is_generated_is_charged(self, lab: Lab) -> None:
        """Both have as much to compute; one generates forty tokens, the other two."""
        asks = [
            Ask(f"{name}{i}", [i + first] * 65, output, name)
            for i in range(4)
            for name, first, output in (("long", 1, 40), ("short", 40, 2))
        ]
        order = lab.play(asks, **FAIR).order
        assert order.index("short3") < order.index("long3")
        assert order.index("short2") < order.index("long2")

    def test_a_template_is_known_by_the_answers_it_had(self, lab: Lab) -> None:
        """Of one template the answers have forty tokens, of the other two; then one more of each comes."""
        stepper = lab.start(seats=2)
        lab.add(Ask("long", [*A, 1], 40), Ask("short", [*B, 1], 2))
        stepper.run_out()
        lab.add(*[Ask(f"busy{i}", [500 + i] * 65, 40) for i in range(2)])
        stepper.step()
        lab.add(Ask("long again", [*A, 2], 40), Ask("short again", [*B, 2], 40), Ask("last", [9] * 65, 40))
        lab.plan()
        ratios = {name: told.ratio for name, told in lab.adapter.planner.policy.expectations.waiting.items()}
        # the mean of the two is 21, and counts as one more of each; 2 is the bound
        wanted = {"long again": 2.0 ** (1 / 2.4), "short again": 0.5 ** (1 / 2.4), "last": 1.0}
        assert ratios == pytest.approx(wanted)
        assert lab.beside.shield.fallbacks == 0

    # -- what requests state -----------------------------------------------------------------------

    @pytest.mark.parametrize("priority", [False, True], ids=["fcfs", "priority"])
    def test_the_planner_knows_what_a_request_states(self, lab: Lab, priority: bool) -> None:
        lab.start_busy(priority=priority)
        number = {"peek_session": 7, "peek_ttft_target_s": 3}
        known: dict[str, Any] = {
            "both": (SAYS, SAID),
            "number": (number, ("7", 3.0)),
            "other": ({"another": 1}, ("~other", None)),
            "none": (None, ("~none", None)),
        }
        lab.add(*[Ask(name, [*A, i], says=says) for i, (name, (says, _)) in enumerate(known.items())])
        lab.plan()
        assert {name: stated(lab, name) for name in known} == {
            name: told for name, (_, told) in known.items()
        }
        assert lab.beside.shield.fallbacks == 0

    def test_a_prompt_that_goes_on_from_another_is_of_its_session(self, lab: Lab) -> None:
        lab.start_busy()
        turns = [A + [9] * 32]
        for name in ("first", "second", "third"):
            lab.add(Ask(name, turns[-1]))
            turns.append(turns[-1] + [len(turns)] * 300)
        lab.add(Ask("other", A + [8] * 400))
        lab.plan()
        sessions = [stated(lab, name)[0] for name in ("first", "second", "third", "other")]
        assert sessions == ["~first", "~first", "~first", "~other"]

    def test_who_leaves_the_queue_and_comes_back_states_the_same(self, lab: Lab) -> None:
        lab.start_busy()
        request, _ = lab.add(Ask("asks", [*A, 1], says=SAYS), Ask("other", [*B, 2]))
        lab.plan()
        lab.withdraw(request)
        lab.plan()
        assert "asks" not in lab.adapter.planner
        lab.come_back(request)
        lab.plan()
        assert (stated(lab, "asks"), stated(lab, "other")) == (SAID, ("~other", None))

    def test_a_value_that_cannot_be_used_is_told_of_once(self, lab: Lab, caplog: Log) -> None:
        lab.start_busy()
        wrong = {"peek_session": ["chat"], "peek_ttft_target_s": "soon"}
        with caplog.at_level(logging.WARNING, "peek"):
            lab.add(*[Ask(f"r{i}", [*A, i], says=wrong) for i in range(3)])
            lab.plan()
        assert [stated(lab, f"r{i}") for i in range(3)] == [(f"~r{i}", None) for i in range(3)]
        session, target = said(caplog)
        assert "peek_session is ['chat'], which is ignored" in session
        assert "peek_ttft_target_s is 'soon', which is ignored" in target
        assert lab.beside.shield.fallbacks == 0

    def test_the_virtual_planner_of_a_shadow_knows_them(self, lab: Lab) -> None:
        lab.start_busy(mode="shadow")
        lab.add(Ask("asks", [*A, 1], says=SAYS), Ask("other", [*A, 2]))
        lab.stepper.step()
        engine = lab.beside.foretold.shadow.account._engine
        offered = [*(job.request for job in engine.jobs.values()), *(each[-1] for each in engine._arrivals)]
        assert {each.session: each.ttft_target_s for each in offered} == {"chat-7": 2.5, "": None}

    # -- internal errors ---------------------------------------------------------------------------

    @pytest.mark.parametrize("after", [0, 1])
    def test_an_internal_error_leaves_the_engine_serving(
        self, lab: Lab, method: str, after: int, caplog: Log
    ) -> None:
        # the in-flight gate tells of ended prefills; eviction asks for places and scores
        label = "peek" if method == "prefilled" else "clpm+gm+dl+pe"
        with caplog.at_level(logging.WARNING, "peek"):
            order, _, beside = lab.busy(label, method, after, strict=False)
        assert {f"r{i}" for i in range(11)} <= set(order)
        assert (beside.shield.active, beside.shield.fallbacks) == (False, 1)
        (record,) = [record for record in caplog.records if record.name == "peek"]
        assert "continues in the engine's own order" in record.getMessage()
        assert record.exc_info is not None
        assert f"injected into {method}" in str(record.exc_info[1])
        lab.check_stock_objects()

    def test_after_an_error_the_order_is_the_stock_order(self, lab: Lab) -> None:
        failed = lab.busy("clpm+gm+dl+pe", "lazy_plan", strict=False)
        assert failed.order == lab.busy(None).order

    def test_strict_raises(self, lab: Lab, strict_method: str) -> None:
        with pytest.raises(RuntimeError, match=f"injected into {strict_method}"):
            lab.busy("clpm+gm+dl+pe", strict_method)

    # -- requests that cannot be translated --------------------------------------------------------

    def test_a_bad_request_keeps_its_place_and_the_others_their_order(self, lab: Lab) -> None:
        """A bad one in front of the good one of each number; for the others it is as if it was not there."""
        names = [f"{'AB'[i % 2]}{i}" for i in range(8)]

        def planned(bad: set[int]) -> list[str]:
            lab.start_busy(strict=False)
            for i, name in enumerate(names):
                if i in bad:
                    self._add_bad(lab, f"bad{i}", [600 + i] * 64)
                lab.add(Ask(name, (A, B)[i % 2] + [300 + i] * 8))
            return lab.plan()

        undisturbed = planned(set())
        assert undisturbed != names

        @settings(max_examples=30)
        @given(spoilt=st.sets(st.integers(0, 7), max_size=4))
        def history(spoilt: set[int]) -> None:
            order = planned(spoilt)
            assert [name for name in order if name in names] == undisturbed
            for rank, i in enumerate(sorted(spoilt)):
                assert order[i + rank] == f"bad{i}", "out of its place"
            quarantine = lab.adapter.quarantine
            assert (quarantine.total, len(quarantine)) == (len(spoilt), len(spoilt))
            for i in spoilt:
                lab.stepper.abort(f"bad{i}")
            lab.stepper.run_out()
            lab.stepper.check_nothing_is_left()
            assert lab.adapter.planner.totals()["admitted"] == 9

        history()

    def _add_bad(self, lab: Lab, name: str, tokens: list[int]) -> str:
        request = lab.request(Ask(name, tokens, 2))
        shown = lab.spoil(request)
        lab.stepper.add(request)
        return shown

    def test_it_is_named_once_and_without_its_prompt(self, lab: Lab, caplog: Log) -> None:
        lab.start_busy(strict=False)
        with caplog.at_level(logging.WARNING, "peek"):
            for i in range(5):
                shown = self._add_bad(lab, f"bad{i}", [7] * 40)
            lab.plan()
        (line,) = said(caplog)
        assert "'bad0' keeps its own place" in line
        assert "InvalidKey" in line
        assert shown not in line
        assert lab.adapter.quarantine.total == 5
        lab.stepper.run_out()
        assert all(record.finished for record in lab.stepper.records.values()), "served all the same"

    def test_strict_raises_for_a_bad_request(self, lab: Lab) -> None:
        lab.start_busy()
        self._add_bad(lab, "bad", A)
        with pytest.raises(InvalidKey):
            lab.plan()

    def test_whatever_fails_in_translating_does_not_trip_the_shield(self, lab: Lab, translation: str) -> None:
        lab.start(seats=8, strict=False)
        lab.sabotage(translation, 1)
        for i in range(4):
            lab.add(Ask(f"a{i}", [*A, i]), Ask(f"b{i}", [*B, i]), Ask(f"short{i}", [i]))
        lab.stepper.run_out()
        assert all(record.finished for record in lab.stepper.records.values())
        assert lab.adapter.quarantine.total > 0
        lab.stepper.check_nothing_is_left()

    # -- what is foretold --------------------------------------------------------------------------

    @pytest.mark.parametrize("seats", [1, 8, 60])
    @pytest.mark.parametrize("kind", [{}, {"priority": True}, {"mode": "shadow"}], ids=str)
    def test_what_is_foretold_is_found(self, lab: Lab, seats: int, kind: dict[str, Any]) -> None:
        """Also what is shared within one batch, of which its plan knows nothing."""
        stepper = lab.start(tokens=12800, seats=seats, **kind)
        lab.add(*sixty())
        stepper.run_out()
        adapter = lab.adapter
        assert adapter.planner.totals()["cached_expected"] == adapter.cached_real
        assert adapter.cached_real == sum(each.cached for each in stepper.admissions)
        assert adapter.cached_real > 40 * 128 or (seats == 60 and not lab.caches_at_once)
        assert lab.beside.seen.surprises.sum == adapter.agreement.differed == 0
        assert adapter.agreement.compared == sum(each.cached > 0 for each in stepper.admissions)

    def test_what_is_foretold_of_one_that_waits_for_room_is_found(self, lab: Lab) -> None:
        """It alone waits for many steps; what runs meanwhile puts into the cache what it will find."""
        stepper = lab.start(tokens=144, seats=4)
        lab.add(*[Ask(f"r{i}", A + [300 + i] * 40, 12) for i in range(2)])
        stepper.run_out()
        adapter = lab.adapter
        assert stepper.admissions[-1].step > 10
        assert adapter.planner.totals()["cached_expected"] == adapter.cached_real > 0
        assert adapter.agreement.compared == 1

    def test_a_match_that_means_something_else_is_noticed(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: Log
    ) -> None:
        """Every name is there: the engine only finds less than it would."""
        lab.misread(monkeypatch)
        with caplog.at_level(logging.WARNING, "peek"):
            stepper = lab.start(tokens=960, seats=2, strict=False)
            lab.add(*sixty())
            while not lab.beside.aside:
                assert not stepper.idle, "it was not noticed"
                stepper.step()
        assert lab.adapter is None
        assert (lab.beside.active, lab.beside.shield.fallbacks) == (False, 0)
        stepper.run_out()
        lab.check_stock_objects()
        (line,) = [line for line in said(caplog) if "stands aside" in line]
        found = re.search(r"in (\d+) of (\d+) admissions", line)
        assert found
        assert LASTING <= int(found[1]) == int(found[2]) <= LASTING + 4, "it was seen within a batch"
        assert ", ".join(TESTED[lab.engine]) in line

    def test_who_is_not_followed_by_a_shadow(self, lab: Lab) -> None:
        """`peek_state` says so: counters that stand still look like nothing to gain."""
        lab.start_busy(priority=True, mode="shadow")
        assert lab.beside.foretold.shadow is None
        assert lab.beside.state == "shadow, foretells no hits: requests are scheduled by priority"
        texts = [[9] * 1000, *([7] * 64 + [i] for i in range(3))]
        lab.add(*[Ask(f"r{i}", text) for i, text in enumerate(texts)])
        assert lab.plan() == [f"r{i}" for i in range(4)]
        assert lab.beside.seen.shadow_reordered == 1, "what is counted without a virtual engine still is"
        lab.beside._turn("on")
        assert lab.beside.state == "on"
        lab.stepper.run_out()

    # -- metrics -----------------------------------------------------------------------------------

    def test_a_switch_loses_no_count(self, lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Series are written four times a second; an adapter that goes has counted since."""
        monkeypatch.setenv("PEEK_METRICS_DIR", str(tmp_path))
        monkeypatch.setattr("peek.adapters.metrics.EVERY_S", 1e9)
        lab.start()
        lab.add(*sixty())
        lab.stepper.step()
        counted = lab.adapter.planner.totals()
        lab.beside._turn("off")
        shown = lab.beside._metrics._counters
        assert counted["admitted"] == shown["peek_admitted_requests"] > 0
        assert counted["plans"] == shown["peek_cycles"] > 0

    def test_an_abort_that_empties_the_queue_is_shown(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """The engine may rest then: nothing that is admitted later brings the series up to date."""
        monkeypatch.setenv("PEEK_METRICS_DIR", str(tmp_path))
        monkeypatch.setattr("peek.adapters.metrics.EVERY_S", 1e9)
        lab.start_busy()
        lab.add(*in_turns())
        lab.plan()
        lab.beside.count(True)
        for name in ("running", *(ask.name for ask in in_turns())):
            lab.stepper.abort(name)
        lab.stepper.run_out()
        lab.stepper.step()
        shown = lab.beside._metrics
        assert (shown._counters["peek_withdrawn_requests"], shown._mark[0]) == (6, 0)

    # -- eviction ----------------------------------------------------------------------------------

    @pytest.mark.parametrize(("label", "cached"), [(None, 0), ("fcfs+pe", len(A)), ("peek", len(A))])
    def test_a_prefix_that_the_queue_needs_survives_a_burst(
        self, lab: Lab, label: str | None, cached: int
    ) -> None:
        """Under `peek` nothing that waits is shared, but what hits goes first."""
        burst = [Ask(f"burst{i}", [1000 * (i + 1) + j for j in range(90)]) for i in range(4)]
        played = lab.play([*burst, Ask("last", [*A, 2])], label, warm=[Ask("first", [*A, 1])], tokens=300)
        assert played.cached["last"] == cached
