"""Policies are ordinary: the default is one of them, and what it does anybody's can do.

A copy of the default under another name gives the same orders; a policy of a user has options, hears what
happens, and gives its order as a stream; and one that fails in any of this costs the order and nothing else.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import NOW, cache_of, rows_of

import peek.policy.default
from peek import (
    AdmissionPolicy,
    Cycle,
    InvalidConfig,
    PeekConfig,
    PeekPolicy,
    PendingRequest,
    Planner,
    PolicyFault,
)
from peek.policy.base import ADMITTED, WITHDRAWN
from peek.settings import require_within
from peek.simulation.cells import cell
from peek.simulation.simulate import simulate
from peek.testing import check_policy

CACHE = cache_of([("", (1, 2))])

# -- the default under another name -------------------------------------------------------------------


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[type[AdmissionPolicy]]:
    """`PeekPolicy` from a copy of its package, which imports nothing of the original."""
    folder = tmp_path_factory.mktemp("copied")
    package = folder / "a_stranger"
    package.mkdir()
    for source in Path(peek.policy.default.__file__).parent.glob("*.py"):
        text = re.sub(r"\bpeek\.policy\.default\b", "a_stranger", source.read_text(encoding="utf-8"))
        (package / source.name).write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        policy: type[AdmissionPolicy] = import_module("a_stranger.policy").PeekPolicy
        yield policy
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == "a_stranger"]:
            del sys.modules[name]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrive"] * 5 + ["admit", "admit", "abort", "answer", "generate"]),
        st.lists(st.integers(0, 2), min_size=1, max_size=5),
        st.integers(0, 40),
        st.sampled_from(["", "", "salt"]),
        st.sampled_from(["", "a", "b"]),
    ),
    max_size=30,
)
TEXTS = st.sampled_from(
    [
        "",
        ":mean_bias=0.5",
        ":grace_tokens=20,fair_share=0.4",
        ":tenant_lead=5",
        ":unshared=arrival,tenant_lead=0",
    ]
)


@given(steps=STEPS, text=TEXTS, lazily=st.booleans(), gated=st.booleans())
def test_a_copy_of_the_default_gives_its_orders(
    copied: type[AdmissionPolicy],
    steps: Sequence[tuple[str, list[int], int, str, str]],
    text: str,
    lazily: bool,
    gated: bool,
) -> None:
    config = PeekConfig.from_label(f"peek{text}")
    theirs = copied(options=copied.Options(**asdict(config.options)))
    planners = [
        Planner(policy=policy, in_flight_gate=gated, strict=True)
        for policy in (PeekPolicy(config.options), theirs)
    ]
    cache = cache_of([("", (0, 1)), ("salt", (2,))])
    for at, (what, prompt, number, namespace, tenant) in enumerate(steps):
        waiting = [request.request_id for request in planners[0].tree.requests()]
        for planner in planners:
            if what == "arrive":
                key = [*prompt, *[9] * number]
                planner.add(PendingRequest(f"r{at}", key, float(at), namespace, tenant=tenant))
            elif what == "answer":
                planner.answered(number * 10, f"r{number}")
            elif what == "generate":
                planner.generated(tenant, number)
            elif waiting:
                planner.remove(waiting[number % len(waiting)], what == "admit")
        orders = [list((p.lazy_plan if lazily else p.plan)(cache, at + number / 7)) for p in planners]
        assert orders[0] == orders[1]


def test_the_copy_shares_no_class_with_the_default(copied: type[AdmissionPolicy]) -> None:
    assert not issubclass(copied, PeekPolicy)
    assert type(copied().expectations) is not type(PeekPolicy().expectations)  # type: ignore[attr-defined]


# -- a user's policy with everything ------------------------------------------------------------------


class Patient(AdmissionPolicy):
    """Little work first, unless a request has waited; keeps count of what happens."""

    @dataclass(frozen=True)
    class Options:
        """patience_s: seconds after which a request goes before all that have waited less."""

        patience_s: float = 20.0

        def __post_init__(self) -> None:
            require_within("patience_s", self.patience_s, 0.0, 1e6)

    sees_prefills = True

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(reads_tree=False, options=options)
        self.waiting: dict[str, int] = {}
        self.seen: list[tuple[object, ...]] = []
        self.answers = 0

    def arrived(self, request: PendingRequest) -> None:
        self.waiting[request.request_id] = request.num_tokens
        self.seen.append(("arrived", request.request_id))

    def left(self, request: PendingRequest, how: str, cost_tokens: int) -> None:
        del self.waiting[request.request_id]
        self.seen.append((how, request.request_id, cost_tokens))

    def answered(self, request_id: str, tokens: int) -> None:
        self.answers += tokens
        self.seen.append(("answered", request_id, tokens))

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        assert {request.request_id for request in queue} == set(self.waiting)
        late = [r for r in queue if cycle.now - r.arrival_time >= self.options.patience_s]
        rest = [r for r in queue if cycle.now - r.arrival_time < self.options.patience_s]
        return late + sorted(rest, key=lambda request: request.num_tokens - request.cached_len)

    def stream(self, cycle: Cycle) -> Iterator[PendingRequest]:
        yield from self.order(cycle.tree.requests(), cycle)


def test_it_passes_what_every_policy_must() -> None:
    check_policy(Patient, stateful=True, examples=20)


def test_a_policy_hears_what_happens_in_order() -> None:
    policy = Patient()
    planner = Planner(policy=policy, strict=True)
    for row in rows_of([1, 2, 3], [1, 2, 4], [5, 6]):
        planner.add(row.request())
    planner.plan(CACHE, NOW)
    planner.remove("r1")
    planner.remove("r2", admitted=False)
    planner.remove("r0", uncached_tokens=3)
    planner.answered(7, "r1")
    assert policy.seen == [
        *(("arrived", name) for name in ("r0", "r1", "r2")),
        (ADMITTED, "r1", 1),
        (WITHDRAWN, "r2", 0),
        (ADMITTED, "r0", 3),
        ("answered", "r1", 7),
    ]


@pytest.mark.parametrize("cache", ["radix", "blocks"])
def test_it_runs_on_the_simulated_engines(cache: str) -> None:
    workload = cell("w1c", "moderate", 7)
    runs = {}
    for patience in (0, 1000):
        runs[patience] = simulate(workload, f"{__name__}:Patient:patience_s={patience}", cache)
        assert runs[patience]["finished"] == len(workload.requests)
    arrival = simulate(workload, "fcfs+lru", cache)["ttft_s"]["mean"]
    # not the same to the last bit: in arrival order SGLang refreshes what waits
    assert runs[0]["ttft_s"]["mean"] == pytest.approx(arrival, rel=0.03)
    assert runs[1000]["ttft_s"]["mean"] < 0.8 * arrival


def test_its_options_are_named_where_they_are_wrong() -> None:
    label = f"{__name__}:Patient"
    assert PeekConfig.from_label(f"{label}:patience_s=5").build_policy().options.patience_s == 5
    assert str(PeekConfig.from_label(f"{label}:patience_s=5")) == f"{label}:patience_s=5"
    assert PeekConfig.from_label(label).sees_prefills
    for text, words in (
        ("patience_s=-1", "patience_s is -1; need a number from 0"),
        ("patience_s=x", "patience_s is 'x'; need a number"),
        ("patience=1", "option 'patience' is not one of policy .*; valid: policy, patience_s, lanes"),
    ):
        with pytest.raises(InvalidConfig, match=words):
            PeekConfig.from_label(f"{label}:{text}")


# -- streams and hooks that fail ----------------------------------------------------------------------


class Streams(AdmissionPolicy):
    """Gives what a function makes of the queue."""

    def __init__(self, make: object) -> None:
        super().__init__()
        self.make = make

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        return queue[::-1]

    def stream(self, cycle: Cycle) -> Iterator[PendingRequest]:
        return self.make(cycle.tree.requests())  # type: ignore[operator,no-any-return]


def raising(queue: list[PendingRequest]) -> Iterator[PendingRequest]:
    yield queue[2]
    raise ValueError("no more")


FAILING = {
    "raises": (raising, "Streams raised ValueError: no more", ["r2", "r0", "r1", "r3"]),
    "raises at once": (lambda queue: 1 // 0, "Streams raised ZeroDivisionError", ["r0", "r1", "r2", "r3"]),
    "is no iterator": (lambda queue: 7, "Streams raised TypeError", ["r0", "r1", "r2", "r3"]),
    "ends early": (lambda queue: iter(queue[3:]), "Streams left out 3 requests", ["r3", "r0", "r1", "r2"]),
    "is empty": (lambda queue: iter([]), "Streams left out 4 requests", ["r0", "r1", "r2", "r3"]),
    "doubles one": (
        lambda queue: iter([queue[1]] * 2),
        "Streams returned request 'r1' twice",
        ["r1", "r0", "r2", "r3"],
    ),
    "gives ids": (lambda queue: iter(["r0"]), "Streams returned a str among", ["r0", "r1", "r2", "r3"]),
    "gives a stranger": (
        lambda queue: iter([PendingRequest("r1", [1], 0.0)]),
        "Streams returned request 'r1', which is not the one that waits",
        ["r0", "r1", "r2", "r3"],
    ),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_stream_that_fails_leaves_the_rest_in_arrival_order(case: str) -> None:
    make, words, order = FAILING[case]

    def planner(strict: bool) -> Planner:
        made = Planner(policy=Streams(make), strict=strict)
        for row in rows_of([1, 2, 3], [1, 2, 4], [1, 5], [6]):
            made.add(row.request())
        return made

    lenient = planner(False)
    assert list(lenient.lazy_plan(CACHE, NOW)) == order
    assert lenient.stats.policy_faults == 1
    assert lenient.plan(CACHE, NOW) == ["r3", "r2", "r1", "r0"]
    with pytest.raises(PolicyFault, match=re.escape(words)):
        list(planner(True).lazy_plan(CACHE, NOW))


@pytest.mark.parametrize("hook", ["arrived", "left", "answered", "generated"])
def test_a_hook_that_fails_is_counted_and_loses_nobody(hook: str) -> None:
    def fail(self: AdmissionPolicy, *args: object) -> None:
        raise KeyError(hook)

    policy = type(
        "Failing", (AdmissionPolicy,), {hook: fail, "order": lambda self, queue, cycle: queue[::-1]}
    )

    def live(planner: Planner) -> None:
        for row in rows_of([1, 2], [3, 4]):
            planner.add(row.request())
        assert planner.plan(CACHE, NOW) == ["r1", "r0"]
        planner.remove("r1")
        planner.remove("r0", admitted=False)
        planner.answered(3, "r1")
        planner.generated("", 3)

    planner = Planner(policy=policy())
    live(planner)
    assert len(planner) == 0
    assert planner.stats.policy_faults == {"arrived": 2, "left": 2, "answered": 1, "generated": 1}[hook]
    with pytest.raises(PolicyFault, match=f"Failing raised KeyError: '{hook}'"):
        live(Planner(policy=policy(), strict=True))
