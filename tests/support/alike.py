"""What both engines' adapters do alike: one suite of behaviours, run over each engine's own scheduler.

An engine's `Lab` plays requests on its real scheduler.  Its test module has a fixture `lab` and a class that
derives from `Alike`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pytest

from peek.adapters.metrics import snapshot

A, B = list(range(100, 164)), list(range(200, 264))


@dataclass(frozen=True)
class Ask:
    """One request; its prompt, tokens to generate, and the tenant that it names."""

    name: str
    tokens: list[int]
    output: int = 1
    tenant: str | None = None


class Played(NamedTuple):
    """The order of admission, what was cached of each then, and the attachment, None of a stock engine."""

    order: list[str]
    cached: dict[str, int]
    beside: Any


class Lab(Protocol):
    """Plays requests on an engine's scheduler, with a cache of so many tokens and so many seats."""

    plan: str
    """The method of the planner that makes this engine's plans."""

    def play(
        self,
        asks: list[Ask],
        label: str | None = "peek",
        *,
        warm: list[Ask] | None = None,
        tokens: int = 1600,
        seats: int = 1,
        **options: Any,
    ) -> Played:
        """All of `asks` come at once, when `warm` have been served; nothing is left when this returns.

        Args:
            label: the policy; None for a stock engine.
            options: of `peek` besides the policy; `strict` unless they say otherwise.
        """
        ...

    def busy(self, label: str | None, method: str = "", after: int = 0, **options: Any) -> Played:
        """Sharing, pressure and an abort of `r11`, of `r0` to `r11`: every call into `peek` happens.

        Args:
            method: of planner, view or mirror, that fails after so many calls.
        """
        ...

    def check_stock_objects(self) -> None:
        """Nothing of `peek` is left in the engine that played last."""
        ...


def in_turns(own: int = 8) -> list[Ask]:
    """A and B in turns, A first."""
    return [Ask(f"{'AB'[i % 2]}{i}", (A, B)[i % 2] + [300 + i] * own) for i in range(6)]


def flood(named: bool) -> list[Ask]:
    """Six of a busy tenant came first, then two of another; nothing is shared."""
    names = [f"hot{i}" for i in range(6)] + [f"cold{i}" for i in range(2)]
    return [Ask(name, [400 + i] * 65, 1, name[:-1] if named else None) for i, name in enumerate(names)]


class Alike:
    """The suite."""

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

    # -- tenants -----------------------------------------------------------------------------------

    def test_the_tenant_named_in_a_request_gets_its_turn(self, lab: Lab) -> None:
        named = lab.play(flood(named=True), tenant_lead=0.0, tenants="named").order
        assert {name[:-1] for name in named[:2]} == {name[:-1] for name in named[2:4]} == {"hot", "cold"}
        assert lab.play(flood(named=False), tenant_lead=0.0, tenants="named").order[6:] == ["cold0", "cold1"]

    @pytest.mark.parametrize("tenants", ["none", "namespace"])
    def test_a_name_in_a_body_is_not_believed_unless_asked_for(self, lab: Lab, tenants: str) -> None:
        named, unnamed = (
            lab.play(flood(named), tenant_lead=0.0, tenants=tenants).order for named in (True, False)
        )
        assert named == unnamed

    # -- internal errors ---------------------------------------------------------------------------

    @pytest.mark.parametrize("after", [0, 1])
    def test_an_internal_error_leaves_the_engine_serving(
        self, lab: Lab, method: str, after: int, caplog: pytest.LogCaptureFixture
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
        failed = lab.busy("clpm+gm+dl+pe", lab.plan, strict=False)
        assert failed.order == lab.busy(None).order

    def test_strict_raises(self, lab: Lab, strict_method: str) -> None:
        with pytest.raises(RuntimeError, match=f"injected into {strict_method}"):
            lab.busy("clpm+gm+dl+pe", strict_method)

    # -- eviction ----------------------------------------------------------------------------------

    @pytest.mark.parametrize(("label", "cached"), [(None, 0), ("fcfs+pe", len(A)), ("peek", len(A))])
    def test_a_prefix_that_the_queue_needs_survives_a_burst(
        self, lab: Lab, label: str | None, cached: int
    ) -> None:
        """Under `peek` nothing that waits is shared, but what hits goes first."""
        burst = [Ask(f"burst{i}", [1000 * (i + 1) + j for j in range(90)]) for i in range(4)]
        played = lab.play([*burst, Ask("last", [*A, 2])], label, warm=[Ask("first", [*A, 1])], tokens=300)
        assert played.cached["last"] == cached
