"""The lane for those whom arrival order would have served: its rule, and the bound that follows from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.queues import cache_of

from peek import AdmissionPolicy, Cycle, InvalidConfig, PeekConfig, PeekPolicy, PendingRequest, Planner
from peek.policy.base import ADMITTED, HELD, Listed, everybody
from peek.policy.default import PeekOptions
from peek.policy.default.overdue import MEMORY, OverdueLane
from peek.policy.default.tenants import DECODE_WEIGHT
from peek.policy.lanes import CACHE_LANE, FAIR_LANE
from peek.trie.pending_tree import PendingTree

SHARES = st.sampled_from([0.1, 0.25, 0.5, 0.9])
GRACES = st.sampled_from([0.0, 50.0, 1000.0])
WHAT = st.sampled_from(["arrive", "arrive", "admit", "admit", "abort"])
EVENTS = st.lists(st.tuples(WHAT, st.integers(1, 60)), max_size=120)
ABORT_BEFORE_ONE_HELD = "arrive arrive hold abort arrive arrive admit arrive resume"
HELD_AFTER_A_PREEMPTION = "arrive admit arrive preempt hold arrive resume"
NOTHING = cache_of([])


class Youngest(AdmissionPolicy):
    """The latest arrival first, which starves the others as long as requests come; turns for the overdue."""

    def __init__(self, lane: OverdueLane) -> None:
        super().__init__()
        self.lane = lane

    def arrived(self, request: PendingRequest) -> None:
        self.lane.arrived(request)

    def left(self, request: PendingRequest, how: str, cost_tokens: int) -> None:
        if how == ADMITTED:
            self.lane.charge(request, cost_tokens)
        elif how == HELD:
            self.lane.held(request.request_id)
        else:
            self.lane.withdrawn(request.request_id)

    def answered(self, request_id: str, tokens: int) -> None:
        self.lane.answered(tokens, request_id)

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        self.lane.price(cycle.tree.n_namespaces > 1)
        return everybody(self.lane.merge(Listed(queue[::-1]), cycle.tree))


class World:
    """A planner whose policy starves, and the virtual engine kept by hand: a list, in arrival order.

    Nothing is ever cached, so that each costs its length in both.
    """

    def __init__(self, share: float, grace: float) -> None:
        self.grace = grace
        self.lane = OverdueLane(share, grace)
        self.planner = Planner(policy=Youngest(self.lane))
        self.clock = 0.0
        self.line: list[tuple[str, float]] = []
        """Those whom the virtual engine has not finished, with what is left of each."""
        self.came: dict[str, float] = {}
        self.before: dict[str, float] = {}
        self.length: dict[str, int] = {}
        self.waiting: list[str] = []
        self.held: list[str] = []
        self.passed: dict[str, float] = {}
        """Of those admitted, the work between arrival and admission."""

    def arrive(self, length: int) -> None:
        name = f"r{len(self.length)}"
        self.length[name] = length
        self.planner.add(PendingRequest(name, [len(self.length)], 0.0, num_tokens=length))
        self.came[name] = self.clock
        self.before[name] = sum(left for _, left in self.line)
        self.line.append((name, float(length)))
        self.waiting.append(name)
        self.plan()

    def due(self, name: str) -> float:
        turn = self.lane.turn_of(name)
        assert turn is not None
        return turn.due

    def plan(self) -> list[str]:
        return list(self.planner.plan(NOTHING, 0.0))

    def admit(self, _: int = 0) -> None:
        if self.waiting:
            name = self.plan()[0]
            self.planner.remove(name, True, self.length[name])
            self.waiting.remove(name)
            self.passed[name] = self.clock - self.came[name]
            self.work(self.length[name])

    def work(self, tokens: float) -> None:
        self.clock += tokens
        while tokens and self.line:
            name, left = self.line[0]
            done = min(left, tokens)
            tokens -= done
            self.line[0] = (name, left - done)
            if left == done:
                self.line.pop(0)

    def preempt(self, number: int) -> None:
        """One that was admitted queues again; the virtual engine, where nobody was, knows nothing of it."""
        queue = self.waiting + self.held
        running = [name for name in self.length if name in self.passed and name not in queue]
        if running:
            name = running[number % len(running)]
            length = self.length[name]
            self.planner.add(PendingRequest(name, [int(name[1:])], 0.0, num_tokens=length))
            self.waiting.append(name)

    def abort(self, number: int) -> None:
        if self.waiting:
            name = self.waiting.pop(number % len(self.waiting))
            self.planner.remove(name, admitted=False)
            self.line = [each for each in self.line if each[0] != name]

    def hold(self, number: int) -> None:
        if self.waiting:
            self.held.append(self.waiting.pop(number % len(self.waiting)))
            self.planner.hold(self.held[-1])

    def resume(self, number: int) -> None:
        if self.held:
            self.waiting.append(self.held.pop(number % len(self.held)))
            self.planner.resume(self.waiting[-1], [int(self.waiting[-1][1:])])

    def play(self, events: list[tuple[str, int]]) -> Iterator[None]:
        for what, number in events:
            getattr(self, what)(number)
            yield


@given(share=SHARES, grace=GRACES, events=EVENTS)
def test_who_is_due_is_whom_arrival_order_would_have_served(
    share: float, grace: float, events: list[tuple[str, int]]
) -> None:
    world = World(share, grace)
    for _ in world.play([event for event in events if event[0] != "abort"]):
        for name in world.waiting:
            due = max(world.came[name] + world.before[name], world.came[name] + grace)
            assert world.due(name) == due
        assert world.lane.clock == world.clock


@given(
    grace=GRACES,
    events=st.lists(
        st.tuples(st.sampled_from(["arrive", "arrive", "admit", "preempt"]), st.integers(1, 60)), max_size=120
    ),
)
def test_who_comes_back_after_a_preemption_has_the_place_that_it_had(
    grace: float, events: list[tuple[str, int]]
) -> None:
    """It is due when it was, whoever came meanwhile; of those overdue the first to be due goes first."""
    world = World(0.5, grace)
    for _ in world.play(events):
        due = {name: world.came[name] + max(world.before[name], grace) for name in world.waiting}
        assert {name: world.due(name) for name in due} == due
        world.lane.lead = 0.0  # the turn is the overdue lane's
        if due and min(due.values()) < world.clock:
            assert due[world.plan()[0]] == min(due.values())
        else:
            assert world.plan() == world.waiting[::-1]


@given(
    grace=GRACES,
    events=st.lists(
        st.tuples(
            st.sampled_from(["arrive", "arrive", "admit", "preempt", "hold", "resume", "abort"]),
            st.integers(1, 60),
        ),
        max_size=120,
    ),
)
@example(50.0, list(zip(ABORT_BEFORE_ONE_HELD.split(), (9999, 10, 1, 0, 10, 60, 0, 10, 0), strict=True)))
@example(0.0, list(zip(HELD_AFTER_A_PREEMPTION.split(), (10, 0, 10, 0, 1, 10, 0), strict=True)))
def test_of_those_overdue_the_first_to_be_due_goes_first(grace: float, events: list[tuple[str, int]]) -> None:
    """Whatever each of them has been through: none is hidden behind one that is due later."""
    world = World(0.5, grace)
    for _ in world.play(events):
        world.plan()
        due = {name: world.due(name) for name in world.waiting}
        world.lane.lead = 0.0  # the turn is the overdue lane's
        if due and min(due.values()) < world.clock:
            assert due[world.plan()[0]] == min(due.values())


def test_an_id_that_is_used_again_is_another_request() -> None:
    """Its end was told, or it came later."""
    for later, is_told in ((0.0, True), (1.0, False)):
        world = World(0.5, 0.0)
        world.arrive(10)
        world.arrive(20)
        world.planner.remove("r0", True, 10)
        if is_told:
            world.planner.answered(0, "r0")
        world.planner.add(PendingRequest("r0", [0], later, num_tokens=10))
        world.plan()
        assert world.due("r0") == 30.0


@given(share=SHARES, grace=GRACES, events=EVENTS)
def test_the_bound_holds_for_every_admission_pattern(
    share: float, grace: float, events: list[tuple[str, int]]
) -> None:
    world = World(share, grace)
    for _ in world.play(events):
        pass
    while world.waiting:
        world.admit()
    largest = float(max(world.length.values(), default=1))
    for name, passed in world.passed.items():
        before = world.before[name]
        assert passed <= max(before, grace) + (before + 2 * largest) / share


def test_an_abort_makes_room_for_those_who_came_before_the_next_one() -> None:
    """Else the one behind the aborted batch would hide a later one, which is due sooner."""
    world = World(0.5, 50.0)
    world.arrive(2_000_000)
    world.arrive(10)
    assert world.due("r1") == 2_000_000.0
    world.abort(0)
    world.arrive(10)
    assert world.due("r1") == world.due("r2") == 50.0


def test_a_request_that_was_held_hurries_no_other_one() -> None:
    world = World(0.5, 50.0)
    world.arrive(10)
    world.planner.hold("r0")
    for _ in range(3):
        world.arrive(100)
    world.planner.resume("r0", [0])
    world.arrive(10)
    assert [world.due(f"r{i}") for i in range(5)] == [50.0, 50.0, 100.0, 200.0, 310.0]


def test_the_bound_is_used() -> None:
    """With a policy that starves, the wait is within a few admissions of what the bound allows without it."""
    world = World(0.5, 0.0)
    for _ in range(10):
        world.arrive(10)
    for _ in range(200):
        world.arrive(10)
        world.admit()
    assert world.passed["r9"] > world.before["r9"], "arrival order would have been earlier"
    assert world.passed["r9"] <= 3 * world.before["r9"] + 40


@given(events=EVENTS)
def test_nobody_is_treated_differently_before_he_is_overdue(events: list[tuple[str, int]]) -> None:
    world = World(0.5, 1e9)
    for _ in world.play(events):
        assert world.plan() == world.waiting[::-1]


def lane_with(
    spent: float, *rows: tuple[int, float]
) -> tuple[OverdueLane, PendingTree, list[PendingRequest]]:
    """A lane whose clock is at `spent`, and requests by (length, due)."""
    lane, tree = OverdueLane(0.5, 0.0), PendingTree()
    lane.clock = spent
    requests = []
    for i, (length, due) in enumerate(rows):
        request = PendingRequest(f"r{i}", [i], 0.0, num_tokens=length)
        tree.add(request)
        lane.arrived(request)
        turn = lane.turn_of(request.request_id)
        assert turn is not None
        turn.due = due
        requests.append(request)
    return lane, tree, requests


def test_lanes_take_turns_by_work() -> None:
    """The oldest who is overdue; then the policy's until the same work has gone there; and so on."""
    lane, tree, requests = lane_with(100.0, (30, 1.0), (10, 2.0), (10, 200.0), (10, 300.0), (10, 400.0))
    order = everybody(lane.merge(Listed(requests[::-1]), tree))
    assert [r.request_id for r in order] == ["r0", "r4", "r3", "r2", "r1"]
    assert [r.lane for r in order] == [FAIR_LANE, CACHE_LANE, CACHE_LANE, CACHE_LANE, FAIR_LANE]


def test_nobody_behind_one_who_is_not_overdue() -> None:
    lane, tree, requests = lane_with(100.0, (10, 150.0), (10, 1.0))
    order = Listed(requests[::-1])
    assert lane.merge(order, tree) is order


def test_an_order_without_turns_is_charged_to_no_lane() -> None:
    """Where nothing is shared, the policy leaves the queue alone, and does not save turns up meanwhile."""
    tenants = ("a", "b")
    options = PeekOptions(unshared="arrival", grace_tokens=0.0, tenant_lead=1e9)
    planner = Planner(policy=PeekPolicy(options))
    for place in range(4):
        planner.add(PendingRequest(f"r{place}", [1, 2, place], 0.0, tenant=tenants[place % 2]))
    planner.plan(NOTHING, 1.0)
    planner.remove("r3")
    planner.plan(NOTHING, 1.0)
    assert planner.request("r0").lane == FAIR_LANE
    for name in ("r1", "r2"):
        planner.remove(name, admitted=False)
    for place in range(4, 8):
        planner.add(PendingRequest(f"r{place}", [place] * 50, 2.0, tenant=tenants[place % 2]))
    order = planner.plan(NOTHING, 2.0)
    assert order == ["r0", "r4", "r5", "r6", "r7"]
    for name in order:
        planner.remove(name)
    assert (planner.policy.overdue.lead, planner.stats.fair_admitted) == (0.0, 0)


def test_what_the_lane_had_placed_and_nobody_took_is_forgotten() -> None:
    lane, tree, requests = lane_with(100.0, (10, 1.0), (10, 200.0))
    assert everybody(lane.merge(Listed(requests[::-1]), tree))[0] is requests[0]
    lane.clock = 0.0
    lane.merge(Listed(requests), tree)
    assert requests[0].lane != FAIR_LANE


def test_answers_are_work_too() -> None:
    world = World(0.5, 0.0)
    for tokens in (10, 20, 30):
        world.planner.answered(tokens)
    assert world.lane.answers.mean == 20.0
    world.planner.add(PendingRequest("a", [1], 0.0, num_tokens=7))
    world.planner.add(PendingRequest("b", [2], 0.0, num_tokens=9))
    world.plan()
    assert world.due("b") == 7 + DECODE_WEIGHT * 20
    world.planner.remove("a", True, 3)
    assert world.lane.clock == 3 + DECODE_WEIGHT * 20


def test_the_mean_answer_forgets() -> None:
    lane = OverdueLane(0.15, 500_000.0)
    for _ in range(1000):
        lane.answered(100)
    for _ in range(int(5 * MEMORY)):
        lane.answered(10)
    assert 10.0 < lane.answers.mean < 11.0


@given(
    events=st.lists(st.tuples(st.sampled_from(["a", "b", "admit"]), st.integers(0, 3)), max_size=60),
    texts=st.lists(st.integers(0, 2), min_size=60, max_size=60),
    others=st.lists(st.integers(0, 2), min_size=60, max_size=60),
)
def test_what_another_namespace_has_cached_moves_only_turns(
    events: list[tuple[str, int]], texts: list[int], others: list[int]
) -> None:
    """Neither who of ours is overdue, nor our order beside the turns; only when turns come."""

    def orders(theirs: list[int], grace: str) -> list[list[tuple[str, bool, float]]]:
        planner = Planner(PeekConfig.from_label(f"peek:fair_share=0.5,grace_tokens={grace}"))
        warm = cache_of([("b", (0, 0, 0, 0))])
        planner.add(PendingRequest("a", [9] * 4, 0.0, "a"))
        planner.add(PendingRequest("b", [9] * 4, 0.0, "b"))
        policy = planner.policy
        assert isinstance(policy, PeekPolicy)
        found = []
        for i, (what, number) in enumerate(events):
            if what == "admit":
                mine = [r.request_id for r in planner.tree.requests() if len(r.request_id) > 1]
                if mine:
                    planner.remove(mine[number % len(mine)])
                continue
            text = texts[i] if what == "a" else theirs[i]
            planner.add(PendingRequest(f"{what}{i}", [text] * 3 + [number], float(i), what))
            ours = [planner.request(name) for name in planner.plan(warm, 100.0) if name.startswith("a")]
            found.append([(r.request_id, r.lane == FAIR_LANE, policy.overdue.rank_of(r)) for r in ours])
        return found

    without = [[name for name, _, _ in order] for order in orders(texts, "inf")]
    assert without == [[name for name, _, _ in order] for order in orders(others, "inf")]
    worlds = [orders(texts, "0.0"), orders(others, "0.0")]
    assert [sorted((name, due) for name, _, due in order) for order in worlds[0]] == [
        sorted((name, due) for name, _, due in order) for order in worlds[1]
    ]
    for world in worlds:
        for order, plain in zip(world, without, strict=True):
            turns = [name for name, is_turn, _ in order if is_turn]
            assert turns == sorted(turns, key=lambda name: int(name[1:] or 0)), "the oldest first"
            beside = [name for name, is_turn, _ in order if not is_turn]
            assert beside == [name for name in plain if name not in turns]


@pytest.mark.parametrize("value", [-1.0, float("nan"), "10", None, True])
def test_absurd_grace(value: object) -> None:
    with pytest.raises(InvalidConfig, match=r"grace_tokens is .*; need a number from 0, or infinity"):
        PeekConfig(options={"grace_tokens": value})


@pytest.mark.parametrize("share", [0.0, 1.0, float("nan")])
def test_absurd_shares(share: float) -> None:
    with pytest.raises(InvalidConfig, match="fair_share is"):
        PeekOptions(fair_share=share)


def test_it_is_the_default() -> None:
    lane = PeekPolicy().overdue
    assert (lane.fair_share, lane.grace_tokens) == (0.15, 500_000.0)


@given(
    events=st.lists(
        st.tuples(st.sampled_from(["arrive", "arrive", "admit", "abort"]), st.integers(0, 9)), max_size=60
    ),
    cached=st.booleans(),
)
def test_a_lazy_plan_has_the_same_turns(events: list[tuple[str, int]], cached: bool) -> None:
    config = PeekConfig.from_label("peek:fair_share=0.5,grace_tokens=0.0")
    policies = PeekPolicy(config.options), PeekPolicy(config.options)
    whole, lazy = (Planner(policy=policy) for policy in policies)
    view = cache_of([("", (1, 1, 1))] if cached else [])
    for i, (what, number) in enumerate(events):
        if what == "arrive":
            key = [number % 3] * (1 + number) + [100 + i]
            for planner in (whole, lazy):
                planner.add(PendingRequest(f"r{i}", list(key), float(i)))
        elif len(whole):
            plan = whole.plan(view, 100.0)
            name = plan[0] if what == "admit" else plan[number % len(plan)]
            for planner in (whole, lazy):
                planner.remove(name, what == "admit")
        if len(whole):
            assert list(lazy.lazy_plan(view, 100.0)) == whole.plan(view, 100.0)
            assert policies[0].overdue.lead == policies[1].overdue.lead


@pytest.mark.parametrize(("gone", "until"), [("r0", 80.0), ("r2", 60.0)])
def test_what_the_virtual_engine_has_done_is_not_taken_back(gone: str, until: float) -> None:
    """It is through with r0, and has 10 of r1 and all of r2 to do; the grace is no work."""
    world = World(0.5, 1e6)
    for length in (10, 50, 20):
        world.arrive(length)
    world.planner.remove("r1", True, 50)
    assert (world.lane.clock, world.lane.virtual) == (50.0, 80.0)
    world.planner.remove(gone, admitted=False)
    assert world.lane.virtual == until
