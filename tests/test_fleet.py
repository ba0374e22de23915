"""The fleet against its naive twin, under every history hypothesis thinks of.

Requests come, go away, start and end; replicas join, pause, leave and die.  Nothing is lost, nothing is sent
twice, a home is one of the cheapest, and no replica idles while another has work worth taking over.
`make explore EXAMPLES=10000 PYTEST_ARGS='-k test_fleet'` tries ten thousand histories.
"""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain, count, repeat
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.fleets import ModelReplica, NaiveCacheOf, tokens_of

from peek import (
    DuplicateRequest,
    InvalidConfig,
    InvalidKey,
    NoReplica,
    PeekConfig,
    PendingRequest,
    QueueFull,
    UnknownReplica,
    UnknownRequest,
)
from peek.fleet import FleetConfig, FleetPlanner, ReplicaStatus
from peek.fleet.placement import MOST_TURNS, Beginnings, by_backlog, cost, longest_first, waste_of
from peek.fleet.replicas import Ticket
from peek.fleet.stealing import Raid, budget
from peek.policy.default.policy import PeekPolicy
from peek.trie.keys import pack

NAMESPACES = st.sampled_from(["", "lora"])
PIECES = st.sampled_from([(1,) * 3, (2,) * 3, (3,), (4, 5)])
KEYS = st.lists(PIECES, min_size=1, max_size=4).map(lambda pieces: [s for piece in pieces for s in piece])
PRIORITIES = st.sampled_from([0, 0, 0, -1, 3])
UNIT = 4  # so that no prompt is long enough to go on from another one as a turn of its session
MAX_WAITING = 12


class FleetMachine(RuleBasedStateMachine):
    """A fleet, and beside it plain lists of what is where."""

    @initialize(
        stickiness=st.sampled_from([1.0, 4.0]),
        label=st.sampled_from(["peek", "lpm-nolimit+lru", "fcfs"]),
        warm=st.integers(2, 5),
        seats=st.sampled_from([0, 1, 2, 3]),
        large=st.booleans(),
    )
    def begin(self, stickiness: float, label: str, warm: int, seats: int, large: bool) -> None:
        self.config = FleetConfig(
            order=PeekConfig.from_label(label), unit_tokens=UNIT, stickiness=stickiness, window_tokens=50,
            seats=seats, window_requests=2, warm_requests=warm, max_waiting=MAX_WAITING,
            asked_whole=0 if large else 16,  # where none is asked whole all are among the few that are asked
        )  # fmt: skip
        self.fleet = FleetPlanner(self.config)
        self.replicas: dict[str, ModelReplica] = {}
        self.keys: dict[str, tuple[str, list[int]]] = {}
        self.answers: dict[str, int] = {}
        self.priorities: dict[str, int] = {}
        self.waiting: set[str] = set()
        self.unsent: dict[str, int] = {}  # `unsent_tokens` before the request at hand
        self.serial = 0
        self.clock = 0.0

    # -- helpers ---------------------------------------------------------------------------------------

    def name(self, letter: str) -> str:
        self.serial += 1
        return f"{letter}{self.serial}"

    def request(self, key: list[int], namespace: str, answer: int) -> PendingRequest:
        name = self.name("r")
        self.keys[name] = (namespace, key)
        self.answers[name] = answer
        self.priorities[name] = 0
        return PendingRequest(name, key, self.clock, namespace)

    def forget(self, name: str) -> None:
        del self.keys[name], self.answers[name], self.priorities[name]

    def some_replica(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.replicas)), label="replica")

    def sent(self) -> dict[str, str]:
        return {request: name for name, replica in self.replicas.items() for request in replica.under_way}

    def unsent_tokens(self) -> dict[str, int]:
        """Tokens of the requests that wait for each replica, as `Replica.check` sums them up."""
        return {name: self.fleet._replicas[name].waiting_tokens for name in self.replicas}

    def loads(self) -> dict[str, ReplicaStatus]:
        return {status.name: status for status in self.fleet.status()}

    def waits_at(self, name: str) -> list[str]:
        return [request for request in sorted(self.waiting) if self.fleet.home(request) == name]

    def added_tokens(self, request: str, name: str) -> int:
        """Prompt tokens that neither the replica nor what waits for it has in common with a request."""
        beside = [self.keys[other] for other in self.waits_at(name) if other != request]
        return self.replicas[name].cold_tokens(self.keys[request], beside, UNIT)

    def weight(self, load: ReplicaStatus, waste: float = 0.0) -> float:
        decoding = load.under_way - load.queued
        queued = load.waiting + load.queued + self.replicas[load.name].others[0]
        lost = 2.0 * waste if self.replicas[load.name].full else waste
        return min(self.config.stickiness, 1.0 + queued + 0.3 * decoding) + lost

    def waste(self, request: str, asked: list[str]) -> float:
        """Squared share of prompts that began otherwise where it adds least; of equals the first to join."""
        holder = self.replicas[min(asked, key=lambda name: self.added_tokens(request, name))]
        prompts = len(holder.coming) + len(holder.computed)
        return (1.0 - holder.askers(self.keys[request]) / prompts) ** 2 if prompts else 1.0

    def is_full(self, load: ReplicaStatus) -> bool:
        queued = min(1, load.queued) if self.replicas[load.name].tells else load.queued
        queued += self.replicas[load.name].others[0]
        return 0 < self.config.seats <= load.under_way - load.queued + queued

    def cost(self, request: str, load: ReplicaStatus, waste: float) -> float:
        """What all wait longer in tokens, if a request goes to a replica with this load before it."""
        replica = self.replicas[load.name]
        added = self.added_tokens(request, load.name)
        others, tokens = replica.others
        answers = tokens / others if others else 0.0
        if load.under_way:
            answers = sum(self.answers[other] for other in replica.under_way) / load.under_way
        wait = 0.0
        if self.is_full(load):
            queued = others + (load.queued if replica.tells else load.under_way - self.config.seats)
            wait = (queued + load.waiting + 1) / self.config.seats
        if load.under_way and replica.capacity:
            prompts = tokens_of((self.keys[other] for other in replica.under_way), UNIT)
            held = prompts + answers * load.under_way
            wait += max(0.0, held + added + answers - UNIT * replica.capacity) / held
        work = self.weight(load, waste) * added
        later = self.unsent[load.name] - load.waiting * added  # tokens that it overtakes
        overtaken = max(0, later) if self.config.order.policy != "fcfs" else 0
        return load.backlog + (150.0 * answers * wait + work - overtaken) / replica.speed

    def assert_cheapest(self, request: str, home: str, loads: dict[str, ReplicaStatus]) -> None:
        """`home` costs least; if that has no seat free, least of those where nobody waits; all before it."""
        staying = {name: replica for name, replica in self.replicas.items() if not replica.leaving}
        accepting = [name for name, replica in staying.items() if replica.accepting]
        asked = accepting if accepting and self.config.asked_whole == 0 else list(staying)
        waste = self.waste(request, asked)
        costs = {name: self.cost(request, loads[name], waste) for name in accepting or staying}
        spare = [
            name for name in accepting
            if not loads[name].queued + loads[name].waiting + self.replicas[name].others[0]
            and not self.is_full(loads[name])
        ]  # fmt: skip
        cheapest = [name for name in costs if costs[name] <= min(costs.values()) * (1 + 1e-9)]
        if home not in cheapest or self.is_full(loads[home]):
            assert not spare or home in spare
            costs = {name: costs[name] for name in spare} or costs
            assert any(self.is_full(loads[name]) for name in cheapest)
        assert costs[home] <= min(costs.values()) * (1 + 1e-9)

    def note_sent(self, pairs: list[tuple[str, str]]) -> None:
        for request, name in pairs:
            assert request in self.waiting, "sent twice, or never came"
            self.waiting.remove(request)
            replica = self.replicas[name]
            assert replica.accepting
            replica.begin(request, self.keys[request], UNIT)
            assert len(replica.coming) <= self.config.warm_requests

    # -- replicas --------------------------------------------------------------------------------------

    @rule(speed=st.sampled_from([0.5, 1.0, 2.0]), capacity=st.integers(0, 30), told=st.booleans())
    def join(self, speed: float, capacity: int, told: bool) -> None:
        if len(self.replicas) >= 4:
            return
        name = self.name("g")
        view = NaiveCacheOf([("", [1] * 6)], UNIT) if told else None
        self.replicas[name] = ModelReplica(speed, capacity, view)
        self.fleet.join(name, cache_tokens=capacity * UNIT, view=view, speed=speed)
        with pytest.raises(InvalidConfig, match=f"'{name}' is in the fleet already"):
            self.fleet.join(name)

    @precondition(lambda self: self.replicas)
    @rule(data=st.data())
    def pause_or_resume(self, data: st.DataObject) -> None:
        name = self.some_replica(data)
        replica = self.replicas[name]
        if replica.accepting:
            self.fleet.pause(name)
            replica.accepting = False
        else:
            self.fleet.resume(name)
            replica.accepting = True
            replica.leaving = False

    @precondition(lambda self: self.replicas)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = self.some_replica(data)
        self.fleet.leave(name)
        self.replicas[name].accepting = False
        self.replicas[name].leaving = True
        self.drop_those_who_left()
        assert not [request for request in self.waiting if self.fleet.home(request) == name]

    def drop_those_who_left(self) -> None:
        gone = [name for name, replica in self.replicas.items() if replica.leaving and not replica.under_way]
        for name in gone:
            del self.replicas[name]

    @precondition(lambda self: self.replicas)
    @rule(data=st.data(), requeue=st.booleans())
    def die(self, data: st.DataObject, requeue: bool) -> None:
        name = self.some_replica(data)
        back = self.fleet.lost(name, requeue=requeue)
        assert sorted(back) == sorted(self.replicas.pop(name).under_way)
        for request in back:
            if requeue:
                self.waiting.add(request)
            else:
                self.forget(request)
            assert not self.fleet.started(request, name)
            assert not self.fleet.finished(request, name)

    @rule()
    def empty_caches(self) -> None:
        self.fleet.forget_caches()
        for replica in self.replicas.values():
            replica.computed.clear()
            replica.full = False

    # -- requests --------------------------------------------------------------------------------------

    @rule(key=KEYS, namespace=NAMESPACES, answer=st.integers(0, 40), priority=PRIORITIES)
    def arrive(self, key: list[int], namespace: str, answer: int, priority: int) -> None:
        self.clock += 1.0
        request = self.request(key, namespace, answer)
        if len(self.waiting) >= MAX_WAITING:
            with pytest.raises(QueueFull, match=f"^{len(self.waiting)} requests wait"):
                self.fleet.add(request, answer)
            self.forget(request.request_id)
            return
        loads, self.unsent = self.loads(), self.unsent_tokens()
        home = self.fleet.add(request, answer, priority)
        self.priorities[request.request_id] = priority
        self.waiting.add(request.request_id)
        assert home == self.fleet.home(request.request_id)
        if any(not replica.leaving for replica in self.replicas.values()):
            self.assert_cheapest(request.request_id, home, loads)
        else:
            assert home == ""
        with pytest.raises(DuplicateRequest):
            self.fleet.place(PendingRequest(request.request_id, [1], 0.0))

    @rule(key=KEYS, namespace=NAMESPACES, answer=st.integers(0, 40))
    def place(self, key: list[int], namespace: str, answer: int) -> None:
        request = self.request(key, namespace, answer)
        loads, self.unsent = self.loads(), self.unsent_tokens()
        if not any(replica.accepting for replica in self.replicas.values()):
            counted = self.fleet.stats.as_dict()
            with pytest.raises(NoReplica):
                self.fleet.place(request, answer)
            assert self.fleet.stats.as_dict() == counted
            self.forget(request.request_id)
            return
        home = self.fleet.place(request, answer)
        self.assert_cheapest(request.request_id, home, loads)
        self.replicas[home].begin(request.request_id, self.keys[request.request_id], UNIT)

    @precondition(lambda self: self.replicas)
    @rule(data=st.data(), key=KEYS, namespace=NAMESPACES, answer=st.integers(0, 40))
    def place_where_the_host_says(
        self, data: st.DataObject, key: list[int], namespace: str, answer: int
    ) -> None:
        name = self.some_replica(data)
        request = self.request(key, namespace, answer)
        assert self.fleet.place(request, answer, name) == name
        self.replicas[name].begin(request.request_id, self.keys[request.request_id], UNIT)
        with pytest.raises(UnknownReplica):
            self.fleet.place(ask("of nobody", [1]), 0, "nobody")

    @precondition(lambda self: self.replicas)
    @rule(data=st.data(), requests=st.integers(0, 3), tokens=st.integers(0, 300))
    def others_load(self, data: st.DataObject, requests: int, tokens: int) -> None:
        name = self.some_replica(data)
        self.fleet.other_load(name, requests, tokens)
        self.replicas[name].others = (requests, tokens if requests else 0)
        with pytest.raises(UnknownReplica):
            self.fleet.other_load("nobody", requests, tokens)

    @precondition(lambda self: self.replicas)
    @rule(data=st.data(), key=KEYS, namespace=NAMESPACES)
    def others_send(self, data: st.DataObject, key: list[int], namespace: str) -> None:
        name = self.some_replica(data)
        told = self.name("o")
        self.fleet.other_prompt(ask(told, key, self.clock, namespace), name)
        self.replicas[name].hold(told, (namespace, key))

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.keys)), label="request")
        assert self.fleet.cancel(request) == self.sent().get(request, "")
        self.waiting.discard(request)
        for replica in self.replicas.values():
            replica.give_up(request)
        self.forget(request)
        self.drop_those_who_left()
        with pytest.raises(UnknownRequest):
            self.fleet.cancel(request)

    @precondition(lambda self: self.sent())
    @rule(data=st.data(), ends=st.booleans())
    def hear_of(self, data: st.DataObject, ends: bool) -> None:
        sent = self.sent()
        request = data.draw(st.sampled_from(sorted(sent)), label="request")
        self.tell(request, sent[request], ends)

    def tell(self, request: str, name: str, ends: bool) -> None:
        assert not self.fleet.finished(request, "somewhere else")
        replica = self.replicas[name]
        replica.start(request)
        if ends:
            assert self.fleet.finished(request, name)
            replica.under_way.remove(request)
            self.forget(request)
            self.drop_those_who_left()
        else:
            assert self.fleet.started(request, name)
            replica.tells = True

    # -- what goes where -------------------------------------------------------------------------------

    @precondition(lambda self: self.replicas)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        name = self.some_replica(data)
        self.clock += 1.0
        taken = self.fleet.take(name, self.clock)
        self.note_sent([(request, name) for request in taken])
        ranks = [self.priorities[request] for request in taken]
        assert ranks == sorted(ranks)
        assert all(self.priorities[request] >= ranks[-1] for request in self.waits_at(name) if ranks)

    @rule()
    def dispatch(self) -> None:
        self.clock += 1.0
        self.note_sent(self.fleet.dispatch(self.clock))
        for name, replica in self.replicas.items():
            if replica.accepting and self.has_room(name):
                assert not self.waits_at(name), "held back although there is room"
                self.assert_no_help_is_due(name)
        assert self.fleet.dispatch(self.clock) == [], "the same queue twice"

    def has_room(self, name: str) -> bool:
        queued = self.replicas[name].coming
        tokens = self.replicas[name].unstarted_tokens
        count = len(queued) + self.replicas[name].others[0]
        if count >= self.config.warm_requests:
            return False
        return count < self.config.window_requests or tokens < self.config.window_tokens

    def assert_no_help_is_due(self, thief: str) -> None:
        """The stated bound: no request waits at the longest backlog that it would pay to take over."""
        status = {each.name: each for each in self.fleet.status() if each.waiting}
        if not status:
            return
        victim = max(status.values(), key=lambda each: (not each.accepting, each.backlog))
        self.assert_a_search_finds_nothing(thief, victim.name)
        load = self.loads()[thief]
        idle = not load.under_way + self.replicas[thief].others[0]
        assert not (idle and victim.accepting and self.is_full(victim)), "idle beside a full one"
        half = (victim.backlog - load.backlog) / 2 * self.replicas[thief].speed
        budget = half if victim.accepting else inf
        for request in self.waits_at(victim.name):
            own = self.replicas[thief].cold_tokens(self.keys[request], [], UNIT) + self.answers[request]
            rest = self.added_tokens(request, victim.name) + self.answers[request]
            price = own + (self.weight(load) - 1.0) * max(0, own - rest)
            slack = self.config.stickiness  # a request counts with a token at least, here or there
            assert price > budget * (1 - 1e-9) - slack

    def assert_a_search_finds_nothing(self, thief: str, victim: str) -> None:
        """What was not searched again holds nothing; unless a cache has dropped something by itself."""
        if not self.replicas[victim].full:
            pair = self.fleet._replicas[victim], self.fleet._replicas[thief]
            assert budget(*pair) < 1.0 or not Raid(*pair, self.fleet._tickets).choose()

    # -- always ----------------------------------------------------------------------------------------

    @invariant()
    def books_are_in_order(self) -> None:
        self.fleet.check()
        assert len(self.fleet) == len(self.waiting)
        assert {status.name: status.under_way for status in self.fleet.status()} == {
            name: len(replica.under_way) for name, replica in self.replicas.items()
        }
        for status in self.fleet.status():
            replica = self.replicas[status.name]
            own = [self.answers[request] for request in replica.under_way] + [replica.unstarted_tokens]
            if not status.waiting:
                assert status.backlog * replica.speed == pytest.approx(sum(own) + replica.others[1])
        assert all(request in self.fleet for request in self.keys)

    def teardown(self) -> None:
        """Whoever waits is sent, and answered, in as many rounds as there are requests."""
        if not hasattr(self, "fleet"):
            return
        self.join(1.0, 10, False)
        for name, replica in self.replicas.items():
            self.fleet.other_load(name, 0, 0)
            replica.others = (0, 0)
            if not replica.accepting and not replica.leaving:
                self.fleet.resume(name)
                replica.accepting = True
        if not any(replica.accepting for replica in self.replicas.values()):
            return
        for _ in range(len(self.keys) + 1):
            self.dispatch()
            for request, name in self.sent().items():
                self.tell(request, name, ends=True)
        assert not self.keys
        assert len(self.fleet) == 0


TestHistories = FleetMachine.TestCase


# -- by hand -------------------------------------------------------------------------------------------


def ask(name: str, key: list[int], at_s: float = 0.0, namespace: str = "") -> PendingRequest:
    return PendingRequest(name, key, at_s, namespace)


def turn(name: str, session: str, key: list[int], namespace: str = "") -> PendingRequest:
    return PendingRequest(name, key, 0.0, namespace, session=session)


def fleet_of(*names: str, **options: object) -> FleetPlanner:
    fleet = FleetPlanner(FleetConfig(**options))  # type: ignore[arg-type]
    for name in names:
        fleet.join(name, cache_tokens=100_000)
    return fleet


def tell_load(says: FleetPlanner, hears: FleetPlanner, told: dict[FleetPlanner, dict[str, int]]) -> None:
    """What a planner's own requests are at each replica; `told` is what each was told before."""
    for status in says.status():
        own = int(status.backlog) - told[says].get(status.name, 0)
        hears.other_load(status.name, status.under_way, own)
        told[hears][status.name] = own


@given(st.lists(st.tuples(KEYS, NAMESPACES, st.integers(0, 40), st.integers(0, 2)), max_size=30), KEYS)
def test_two_planners_that_tell_each_other_what_they_do_see_what_one_sees_that_does_it_all(
    plays: list[tuple[list[int], str, int, int]], probe: list[int]
) -> None:
    whole, one, other = [fleet_of("a", "b", "c", unit_tokens=UNIT, seats=3) for _ in range(3)]
    told: dict[FleetPlanner, dict[str, int]] = {one: {}, other: {}}
    under_way: list[tuple[FleetPlanner, str, str]] = []
    for number, (key, namespace, answer, ends) in enumerate(plays):
        says, hears = (one, other) if number % 2 else (other, one)
        request = f"r{number}"
        home = whole.place(ask(request, key, namespace=namespace), answer)
        assert says.place(ask(request, key, namespace=namespace), answer, home) == home
        hears.other_prompt(ask(request, key, namespace=namespace), home)
        under_way.append((says, request, home))
        for planner, ended, at in [under_way.pop(0) for _ in range(min(ends, len(under_way)))]:
            assert planner.finished(ended, at)
            assert whole.finished(ended, at)
        tell_load(one, other, told)
        tell_load(other, one, told)
        loads = {status.name: status.backlog for status in whole.status()}
        assert loads == {status.name: status.backlog for status in one.status()}
        assert loads == {status.name: status.backlog for status in other.status()}
    for name in ("a", "b", "c"):
        works = [
            fleet._replicas[name].added_tokens(ask("probe", probe), pack(probe)) for fleet in (whole, one)
        ]
        assert works[0] == works[1]
        assert whole._replicas[name].weight(0.5) == one._replicas[name].weight(0.5)
        assert whole._replicas[name].is_full == one._replicas[name].is_full


def test_a_session_goes_where_others_sent_its_last_turn() -> None:
    fleet = fleet_of("a", "b", "c")
    fleet.other_prompt(turn("o1", "talk", [1] * 100), "b")
    fleet.other_prompt(ask("o2", [2] * 9000), "c")
    assert fleet.place(turn("r1", "talk", [1] * 100 + [5])) == "b"
    assert fleet.place(ask("r2", [2] * 9000 + [3])) == "c"
    fleet.other_prompt(turn("o3", "talk", [9]), "a")
    assert fleet.stats.sessions_moved == 0


def test_seats_that_others_have_taken_are_taken() -> None:
    fleet = fleet_of("a", "b", seats=1)
    for number in range(2):
        fleet.place(ask(f"r{number}", [1] * 5000), 100, "a")
        fleet.finished(f"r{number}", "a")
        fleet.other_load("a", 1 - number, 10)
        assert fleet.place(ask("probe", [1] * 5000 + [2])) == "ba"[number]
        fleet.cancel("probe")


def test_a_priority_costs_others_nothing_once_its_request_has_gone() -> None:
    fleet = fleet_of("a", "b")
    for name in ("a", "b"):
        fleet.pause(name)
    homes = [fleet.add(ask(f"r{i}", [i] * 600), 0, priority) for i, priority in enumerate((0, 0, 3, -1, 0))]
    ranked = {name: homes[2:4].count(name) for name in ("a", "b")}
    assert {name: fleet._replicas[name].ranked for name in ("a", "b")} == ranked
    fleet.cancel("r2")
    fleet.lost(homes[3])
    for name in {"a", "b"} - {homes[3]}:
        fleet.resume(name)
    while sent := fleet.dispatch(0.0):
        for pair in sent:
            assert fleet.started(*pair)
    assert [replica.ranked for replica in fleet._replicas.values()] == [0]


class Visits(OrderedDict[str, Ticket]):
    """Counts the requests without a home that are looked at."""

    count = 0

    def items(self) -> Any:
        for item in super().items():
            self.count += 1
            yield item

    def values(self) -> Any:
        for item in super().values():
            self.count += 1
            yield item


def test_while_there_is_no_replica_an_arrival_looks_at_one_request() -> None:
    fleet = FleetPlanner()
    visits = fleet._placement._unplaced = Visits()
    for number in range(100):
        assert fleet.add(ask(f"r{number}", [number])) == ""
    assert visits.count <= 100
    fleet.join("a")
    assert [fleet.home(f"r{number}") for number in range(100)] == ["a"] * 100


class Flaky(NaiveCacheOf):
    """Holds nothing, and fails at the questions that `fails` names."""

    def __init__(self, fails: Iterator[bool]) -> None:
        super().__init__([], 1)
        self.fails = fails

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        if next(self.fails):
            raise ConnectionError("no news from that replica")
        return super().advance(cursor, segment, offset)


def with_one_sent_and_not_reported() -> FleetPlanner:
    """Of two requests that wait for "a" one is sent; at the other one the view fails."""
    fleet, view = FleetPlanner(), Flaky(repeat(False))
    fleet.join("a", view=view)
    for number in range(2):
        fleet.add(ask(f"r{number}", [number] * 600, float(number)))
    view.fails = chain([False] * 3, [True], repeat(False))  # two are planned, one is sent
    with pytest.raises(ConnectionError):
        fleet.take("a", 1.0)
    assert (len(fleet), fleet.home("r0")) == (1, "a")
    fleet.join("b")
    return fleet


def test_what_was_sent_before_an_error_is_reported_once_and_to_the_replica_that_has_it() -> None:
    fleet = with_one_sent_and_not_reported()
    fleet.add(ask("other", [7] * 600, 2.0))
    assert fleet.home("other") == "b"
    assert fleet.take("b", 2.0) == ["other"]
    assert fleet.take("a", 2.0) == ["r0", "r1"]
    assert fleet.dispatch(3.0) == fleet.take("a", 3.0) == []


def test_what_was_cancelled_or_lost_after_an_error_is_not_reported() -> None:
    fleet = with_one_sent_and_not_reported()
    assert fleet.cancel("r0") == "", "no host has sent it"
    assert fleet.dispatch(2.0) == [("r1", "a")]
    assert fleet.cancel("r1") == "a"
    fleet = with_one_sent_and_not_reported()
    assert fleet.lost("a") == ["r0"]
    assert fleet.dispatch(2.0) == [("r0", "b"), ("r1", "b")], "once, and where it is now"
    fleet = with_one_sent_and_not_reported()
    fleet.lost("a", requeue=False)
    assert fleet.dispatch(2.0) == [("r1", "b")]


def test_a_family_has_one_home_and_families_spread() -> None:
    fleet = fleet_of("a", "b", "c", "d")
    for stranger in range(16):  # nobody idles: a second copy would be at somebody's cost
        fleet.add(ask(f"stranger {stranger}", [100 + stranger] * 100))
    homes = [
        {fleet.add(ask(f"{family}/{member}", [family] * 3000 + [member])) for member in range(5)}
        for family in range(8)
    ]
    assert all(len(home) == 1 for home in homes)
    assert sorted(home.pop() for home in homes) == ["a", "a", "b", "b", "c", "c", "d", "d"]


def test_a_session_goes_where_its_first_round_went() -> None:
    fleet = fleet_of("a", "b", "c")
    words = list(range(1000, 4000))
    fleet.add(ask("other", [1] * 100))
    first = fleet.add(ask("round 1", words[:2000]))
    for request, name in fleet.dispatch(1.0):
        fleet.finished(request, name)
    assert fleet.add(ask("round 2", words)) == first
    assert fleet.stats.sticky == 1


def test_what_is_held_goes_at_once_and_the_rest_waits() -> None:
    fleet = fleet_of("a", order=PeekConfig.from_label("lpm-nolimit"), window_requests=2)
    for number in range(4):
        fleet.add(ask(f"cold {number}", [number] * 1000))
    assert len(fleet.dispatch(1.0)) == 2
    fleet.add(ask("warm", [0] * 1000 + [9]))
    assert fleet.dispatch(2.0) == [("warm", "a")]
    assert len(fleet) == 2


def test_among_equals_the_first_arrival_goes_first_also_after_a_death() -> None:
    fleet = fleet_of("a")
    for number in range(6):
        fleet.add(ask(str(number), [number] * 1000, at_s=float(number)))
    went = [request for request, _ in fleet.dispatch(10.0)]
    assert fleet.lost("a") == went
    fleet.join("b")
    assert [request for request, _ in fleet.dispatch(11.0)] == went


def test_an_idle_replica_takes_a_whole_cold_family_rather_than_half_a_hot_one() -> None:
    fleet = fleet_of("a", window_requests=2, warm_requests=32)
    fleet.add(ask("hot", [1] * 3000))
    fleet.dispatch(0.0)
    fleet.started("hot", "a")
    for family in (2, 3, 4):
        for member in range(3):
            fleet.add(ask(f"{family}/{member}", [family] * 3000 + [member]))
    for member in range(200):
        fleet.add(ask(f"hot/{member}", [1] * 3000 + [member] * 10))
    fleet.dispatch(1.0)
    fleet.join("b")
    got = [request for request, name in fleet.dispatch(2.0) if name == "b"]
    assert got
    assert not [request for request in got if request.startswith("hot")]
    assert len({request.split("/")[0] for request in got}) == 1
    assert fleet.stats.steals == 1


def test_users_of_one_long_system_prompt_spread_over_idle_replicas() -> None:
    fleet = fleet_of(*"abcd")
    for user in range(100):
        fleet.add(ask(str(user), [7] * 16_384 + [100 + user] * 200), 128)
        fleet.dispatch(user / 100)
    assert all(20 <= status.under_way <= 30 for status in fleet.status())


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("others", [0, 1, 6])
@pytest.mark.parametrize("told", [False, True])
def test_the_more_prompts_begin_otherwise_the_longer_one_waits_where_it_is(
    full: bool, others: int, told: bool
) -> None:
    """Twice as long where a second copy takes the room of something else."""
    dear = 1000 + 1000 * (1 + full) * (others / (3 + others)) ** 2  # of a second copy
    for wait in (int(dear) - 4, int(dear) + 4):
        fleet = FleetPlanner()
        for name, held in (("a", [("", [7] * 1000)]), ("b", [])):
            fleet.join(name, cache_tokens=2000, view=NaiveCacheOf(held, 1) if told else None)
        theirs = [[7] * 1000 + [number] for number in range(2)] + [[50 + number] for number in range(others)]
        for name, prompts in (
            ("a", theirs),
            ("b", [[20 + number] * 900 for number in range(3 if full else 1)]),
        ):
            for number, prompt in enumerate(prompts):
                fleet.place(ask(f"{name}{number}", prompt), at=name)
                fleet.finished(f"{name}{number}", name)
        fleet.place(ask("other", [7] * 1000 + [98]), at="a")
        fleet.started("other", "a")
        fleet.other_load("a", 1, wait)
        assert fleet.place(ask("new", [7] * 1000 + [99])) == ("a" if wait < dear else "b")


@pytest.mark.parametrize("told", [False, True])
def test_where_no_seat_is_free_a_long_prefix_is_copied(told: bool) -> None:
    fleet = fleet_of("a", "b", seats=4)
    home = fleet.add(ask("first", [7] * 9000))
    fleet.dispatch(0.0)
    fleet.finished("first", home)
    for user in range(4):
        assert fleet.add(ask(str(user), [7] * 9000 + [user]), 10) == home, "there is a seat"
        for name, replica in fleet.dispatch(0.0):
            assert not told or fleet.started(name, replica)
    assert fleet.add(ask("late", [7] * 9000 + [9]), 10) != home


@pytest.mark.parametrize(
    ("cache_tokens", "news_s", "is_home"),
    [(100_000, 0.0, True), (9_000, 0.0, False), (9_000, 1.0, True), (0, 0.0, True)],
)
def test_where_answers_fill_the_memory_a_long_prefix_is_copied(
    cache_tokens: int, news_s: float, is_home: bool
) -> None:
    """Not with late news: of those that seem to hold memory many have ended."""
    fleet = FleetPlanner(FleetConfig(news_s=news_s))
    for name in "ab":
        fleet.join(name, cache_tokens=cache_tokens, view=NaiveCacheOf([("", [7] * 5000)] * (name == "a"), 1))
    for user in range(10):
        assert fleet.place(ask(str(user), [7] * 5000 + [user]), 400) == "a"
        fleet.started(str(user), "a")
    assert fleet.place(ask("late", [7] * 5000 + [99]), 400) == ("a" if is_home else "b")
    assert fleet.finished("0", "a"), "and its memory is free"
    assert fleet.place(ask("later", [7] * 5000 + [100]), 400) == "a"


def test_of_requests_without_a_first_token_one_takes_a_seat() -> None:
    fleet = fleet_of("a", "b", seats=2)
    fleet.place(ask("first", [7] * 9000), at="a")
    assert fleet.started("first", "a")
    fleet.finished("first", "a")
    homes = [fleet.place(ask(str(user), [7] * 9000 + [user])) for user in range(3)]
    assert homes == ["a"] * 3
    for user in range(2):
        assert fleet.started(str(user), "a")
    assert fleet.place(ask("late", [7] * 9000 + [9])) == "b", "two decode, so no seat is free"


def test_an_idle_replica_takes_from_a_full_one_whatever_the_prefix_costs() -> None:
    fleet = fleet_of("a", seats=2, window_requests=2, warm_requests=2)
    for user in range(4):
        fleet.add(ask(str(user), [7] * 16_384 + [user]), 10)
    assert len(fleet.dispatch(0.0)) == 2
    fleet.join("b", cache_tokens=100_000)
    assert "b" in [name for _, name in fleet.dispatch(1.0)]


def test_a_session_of_another_namespace_is_another_one() -> None:
    fleet = fleet_of("a", "b")
    home = fleet.add(turn("1", "s", [1] * 100, "x"))
    fleet.pause(home)
    assert fleet.add(turn("2", "s", [1] * 100, "y")) != home
    assert fleet.stats.sessions_moved == 0


def test_a_turn_that_shares_nothing_stays_at_home_where_all_caches_are_full() -> None:
    fleet = FleetPlanner()
    for name in "abc":
        fleet.join(name, cache_tokens=1000)
        for number in range(3):
            fleet.place(ask(f"{name}{number}", [ord(name) + number] * 600), at=name)
            fleet.finished(f"{name}{number}", name)
    homes = set()
    for number in range(9):
        homes.add(fleet.place(turn(f"t{number}", "s", [1000 + number] * 500)))
        fleet.finished(f"t{number}", fleet.home(f"t{number}"))
    assert len(homes) == 1


def test_a_turn_leaves_home_only_when_waiting_costs_more_than_computing_again() -> None:
    fleet = fleet_of("a", "b")
    home = fleet.add(turn("1", "s", [1] * 1000))
    for request, name in fleet.dispatch(0.0):
        fleet.finished(request, name)
    assert fleet.add(turn("2", "s", [1] * 1000 + [2] * 10)) == home
    assert fleet.add(turn("3", "s", [1] * 1000 + [3] * 10)) == home
    assert fleet.stats.sessions_moved == 0
    fleet.pause(home)
    assert fleet.add(turn("4", "s", [1] * 1000 + [4] * 10)) != home
    assert fleet.stats.sessions_moved == 1


@pytest.mark.parametrize("later", [1, 3, 20])
def test_a_session_begins_where_its_later_turns_wait_least(later: int) -> None:
    """The replica that has its beginning is idle now, but had 2,000 tokens to do when two requests asked."""
    usual = 2000 * (1 - (63 / 64) ** 2) * 63 / 64
    turns = min(later, MOST_TURNS) / 2  # of the session "one", and of that which "known" begins
    weight = 1 + 0.5**2  # of a second copy: every second prompt at "a" begins otherwise
    for known in (int(turns * usual / weight) + offset for offset in (-1, 2)):
        fleet = fleet_of("a", "b")
        for place in range(later + 1):
            fleet.place(turn(f"t{place}", "one", [9] * 60), at="b")
            fleet.finished(f"t{place}", "b")
        fleet.place(turn("known", "known", [7] * known), at="a")
        fleet.finished("known", "a")
        fleet.place(ask("busy", [8]), 1999, at="a")
        for short in (5, 6):
            assert fleet.place(ask(f"short {short}", [short])) == "b"  # too short to be of a session
            fleet.finished(f"short {short}", "b")
        fleet.finished("busy", "a")
        home = fleet.place(turn("new", "new", [7] * known + [6]))
        assert home == ("a" if weight * known > turns * usual else "b")


@pytest.mark.parametrize("leaves", [False, True])
def test_a_turn_pays_for_no_home_that_leaves(leaves: bool) -> None:
    """`b` has the turn's whole prompt but for the end, `c` nothing and less to do."""
    fleet = fleet_of("a")
    assert fleet.place(turn("1", "s", [1] * 1000)) == "a"
    fleet.join("b", cache_tokens=100_000)
    fleet.join("c", cache_tokens=100_000)
    fleet.other_load("b", 1, 1000)
    if leaves:
        fleet.leave("a")
    else:
        fleet.pause("a")
    fleet.other_prompt(PendingRequest("2", [1] * 800, 0.0), "b")
    assert fleet.place(turn("3", "s", [1] * 1000)) == ("c" if leaves else "b")


def test_when_all_caches_are_empty_no_session_has_a_home() -> None:
    fleet = fleet_of("a", "b")
    home = fleet.add(turn("1", "s", [1] * 1000))
    fleet.dispatch(0.0)
    fleet.forget_caches()
    assert fleet.add(turn("2", "s", [2] * 2000)) != home  # the other is idle
    assert fleet.stats.sessions_moved == 0


def test_sessions_that_were_silent_longest_are_forgotten() -> None:
    fleet = fleet_of("a", "b")
    fleet._placement.most_sessions = 2
    homes = {s: fleet.add(turn(f"{s}1", s, [ord(s)] * 100)) for s in "xyz"}
    for session, moved in (("z", 1), ("x", 1)):  # x is not known any more: it cannot have moved
        fleet.pause(homes[session])
        assert fleet.add(turn(f"{session}2", session, [ord(session)] * 100)) != homes[session]
        fleet.resume(homes[session])
        assert fleet.stats.sessions_moved == moved


def test_help_goes_where_somebody_waits_not_where_most_is_decoded() -> None:
    fleet = FleetPlanner(FleetConfig(window_requests=1, window_tokens=0))
    fleet.join("full")
    fleet.join("decodes")
    fleet.pause("full")
    assert fleet.place(PendingRequest("long answer", [9] * 10, 0.0), 1_000_000) == "decodes"
    fleet.resume("full")
    for number in range(3):
        assert fleet.add(PendingRequest(f"r{number}", [number] * 1000, float(number))) == "full"
    assert fleet.dispatch(3.0) == [("r0", "full")]
    fleet.join("idle")
    ((taken, taker),) = fleet.dispatch(4.0)
    assert taken in ("r1", "r2")
    assert taker == "idle"


def test_counters_tell_what_happened() -> None:
    fleet = fleet_of("a", max_waiting=1)
    fleet.add(ask("1", [1]))
    with pytest.raises(QueueFull, match="1 requests wait, max_waiting is 1"):
        fleet.add(ask("2", [1]))
    fleet.dispatch(0.0)
    fleet.lost("a")
    fleet.cancel("1")
    counted = {name: count for name, count in fleet.stats.as_dict().items() if count}
    assert counted == {"added": 1, "refused": 1, "dispatched": 1, "requeued": 1, "cancelled": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unit_tokens", 0), ("unit_tokens", 16.0), ("stickiness", 0.9), ("seats", -1), ("seats", 4.0),
        ("window_tokens", -1), ("window_requests", 0),
        ("warm_requests", 1), ("news_s", -1.0), ("tokens_per_s", -1.0), ("max_waiting", 0),
        ("asked_whole", -1),
    ],
)  # fmt: skip
def test_settings_out_of_range_and_counts_that_are_none_are_refused(name: str, value: float) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(InvalidConfig, match=f"{name} is "):
        FleetConfig(**settings)


class InPairs(NaiveCacheOf):
    block_symbols = 2


OTHER_SIZES = "view of 'b' has {} tokens a symbol and {} symbols a block; need 1 and 1"
NO_INTEGER = (InvalidConfig, TypeError)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda f: f.take("x", 0.0), UnknownReplica, "replica 'x' is not in the fleet; there are: a"),
        (lambda f: f.join("b", speed=0.0), InvalidConfig, "speed is 0"),
        (lambda f: f.join("b", speed=0.9e-6), InvalidConfig, "speed"),
        (lambda f: f.join("b", cache_tokens=-1), InvalidConfig, "cache_tokens"),
        (lambda f: f.join("b", view=NaiveCacheOf([], 4)), InvalidConfig, OTHER_SIZES.format(4, 1)),
        (lambda f: f.join("b", view=InPairs([], 1)), InvalidConfig, OTHER_SIZES.format(1, 2)),
        (lambda f: f.add(ask("1", [])), InvalidKey, "empty key"),
        (lambda f: f.add(ask("1", [1]), decode_tokens=-1), InvalidConfig, "decode_tokens is -1"),
        (lambda f: f.add(ask("1", [1]), 0, 2**41), NO_INTEGER, "priority|int"),
        (lambda f: f.add(ask("1", [1]), 0, "high"), NO_INTEGER, "priority|int"),
        (lambda f: f.add(ask("1", [1]), 0, None), NO_INTEGER, "priority|int"),
        (lambda f: f.home("1"), UnknownRequest, "request '1' neither waits nor is under way"),
        (lambda f: f.other_load("a", -1, 0), InvalidConfig, "requests is -1"),
        (lambda f: f.other_load("a", 0, -1), InvalidConfig, "tokens is -1"),
    ],
)
def test_wrong_calls_say_what_was_wrong_and_change_nothing(
    call: Callable[[FleetPlanner], object], error: type[Exception], said: str
) -> None:
    fleet = fleet_of("a")
    with pytest.raises(error, match=said):
        call(fleet)
    fleet.check()
    assert (len(fleet), len(fleet.status())) == (0, 1)


def test_a_view_that_fails_now_and_then_loses_no_request() -> None:
    fleet, chance = fleet_of("a"), Random(1)
    fleet.join("b", view=Flaky(chance.random() < 0.1 for _ in count()))
    sent: list[str] = []
    failures = 0
    for number in range(200):
        try:
            if number < 20:
                fleet.add(ask(str(number), [number % 7] * 100 + [number], at_s=float(number)))
            pairs = fleet.dispatch(float(number))
        except ConnectionError:
            failures += 1
            continue
        sent += [request for request, _ in pairs]
        for request, name in pairs:
            assert fleet.finished(request, name)
        fleet.check()
    assert failures > 5
    assert sorted(sent) == sorted(map(str, range(20)))
    assert len(fleet) == 0


def test_what_a_replica_holds_goes_there_also_after_an_error() -> None:
    """Although it has no room for what it does not hold."""
    failed = True
    asked = 0
    while failed:
        fleet, view = FleetPlanner(FleetConfig(window_requests=1, window_tokens=0)), Flaky(repeat(False))
        fleet.join("a", view=view)
        fleet.add(ask("first", [1] * 600, 0.0))
        sent = fleet.dispatch(0.0)
        fleet.add(ask("second", [1] * 599 + [2], 1.0))
        view.fails = chain([False] * asked, [True], repeat(False))
        failed = False
        for now_s in (1.0, 2.0):
            try:
                sent += fleet.dispatch(now_s)
            except ConnectionError:
                failed = True
        assert sent == [("first", "a"), ("second", "a")]
        asked += 1
    assert asked > 2


def test_a_view_that_fails_while_a_replica_takes_over_a_backlog_loses_no_request() -> None:
    failed = True
    asked = 0
    while failed:
        fleet, view = fleet_of("a"), Flaky(repeat(False))
        for number in range(6):
            fleet.add(ask(str(number), [number] * 600, float(number)))
        fleet.join("b", view=view)
        view.fails = chain([False] * asked, [True], repeat(False))
        sent: dict[str, str] = {}
        failed = False
        for now_s in range(20):
            try:
                sent.update(fleet.dispatch(float(now_s)))
            except ConnectionError:
                failed = True
            for request, name in sent.items():
                fleet.finished(request, name)
        assert sorted(sent) == sorted(map(str, range(6)))
        asked += 1
    assert asked > 10


# -- help that is not searched for again --------------------------------------------------------------


class Counting(NaiveCacheOf):
    """Holds nothing, and counts the questions."""

    asked = 0

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        self.asked += 1
        return super().advance(cursor, segment, offset)


SYSTEM = [5] * 50


def document(number: int) -> list[int]:
    return [*SYSTEM, *[100 + number] * 400]


def a_crowd_that_stays() -> tuple[FleetPlanner, list[Counting]]:
    """A hundred questions on documents that only "busy" has, and three replicas with little to do."""
    fleet = fleet_of("busy")
    for number in range(100):
        fleet.place(ask(f"d{number}", document(number)), at="busy")
        fleet.finished(f"d{number}", "busy")
    fleet.other_load("busy", 2000, 1)
    views = [Counting([("", SYSTEM)], 1) for _ in "xyz"]
    for name, view in zip("xyz", views, strict=True):
        fleet.join(name, view=view)
        fleet.place(ask(f"at {name}", [ord(name)] * 500), 10, name)
        fleet.started(f"at {name}", name)
    add_at_busy(fleet, *[ask(f"r{each}", [*document(each), *[7] * 4], float(each)) for each in range(100)])
    for view in views:
        view.asked = 0
    assert fleet.dispatch(100.0) == []
    assert all(view.asked > 100 for view in views), "each question is looked at once"
    return fleet, views


def add_at_busy(fleet: FleetPlanner, *requests: PendingRequest) -> None:
    for name in "xyz":
        fleet.pause(name)
    assert {fleet.add(request) for request in requests} == {"busy"}
    for name in "xyz":
        fleet.resume(name)


@pytest.mark.parametrize(
    "happens",
    [
        lambda fleet: fleet.add(ask("new", [*document(1), 9])),
        lambda fleet: fleet.add(ask("elsewhere", [9] * 40)),
        lambda fleet: fleet.started("p", fleet.place(ask("p", [9] * 50), at="x")),
        lambda fleet: fleet.place(ask("p", [*SYSTEM, *[9] * 50]), at="x"),
        lambda fleet: fleet.cancel("r50"),
        lambda fleet: fleet.other_load("busy", 1999, 1),
        lambda fleet: fleet.other_prompt(ask("theirs", [9] * 400), "x"),
        lambda fleet: None,
    ],
)
def test_where_nothing_was_worth_taking_over_it_is_not_searched_for_again(
    happens: Callable[[FleetPlanner], object],
) -> None:
    fleet, views = a_crowd_that_stays()
    for view in views:
        view.asked = 0
    happens(fleet)
    assert [pair for pair in fleet.dispatch(101.0) if pair[0].startswith("r")] == []
    assert sum(view.asked for view in views) < 20
    assert fleet.stats.steals == 0


def more_to_do(fleet: FleetPlanner, views: list[Counting]) -> None:
    add_at_busy(fleet, *[ask(f"n{i}", [*document(i), *[9] * 200]) for i in range(100)])


def a_short_one(fleet: FleetPlanner, views: list[Counting]) -> None:
    add_at_busy(fleet, ask("short", [9] * 20))


def news_of_an_engine(fleet: FleetPlanner, views: list[Counting]) -> None:
    """It counts from the end of a request."""
    views[0].prompts.append(("", document(3)))
    fleet.finished("at x", "x")


@pytest.mark.parametrize(
    ("happens", "taken"),
    [
        (more_to_do, None),
        (lambda fleet, views: fleet.pause("busy"), None),  # else nobody would answer
        (a_short_one, ["short"]),
        (news_of_an_engine, ["r3"]),
    ],
)
def test_what_has_become_worth_taking_over_is_found(
    happens: Callable[[FleetPlanner, list[Counting]], object], taken: list[str] | None
) -> None:
    fleet, views = a_crowd_that_stays()
    happens(fleet, views)
    found = [request for request, _ in fleet.dispatch(101.0)]
    assert found
    assert found == taken or taken is None
    assert fleet.stats.steals > 0


@pytest.mark.parametrize(
    "happens",
    [
        lambda fleet: fleet.other_prompt(ask("theirs", document(3)), "guessed"),
        lambda fleet: fleet.finished("copy", fleet.place(ask("copy", document(3)), at="guessed")),
    ],
)
def test_a_prompt_that_has_come_to_a_replica_makes_others_worth_taking_over(
    happens: Callable[[FleetPlanner], object],
) -> None:
    fleet, _ = a_crowd_that_stays()
    fleet.join("guessed")
    fleet.place(ask("at guessed", [1] * 500), 10, "guessed")
    fleet.started("at guessed", "guessed")
    assert fleet.dispatch(101.0) == []
    happens(fleet)
    assert fleet.dispatch(102.0) == [("r3", "guessed")]


def test_a_request_that_shared_its_prefix_with_a_cancelled_one_only_is_taken_over() -> None:
    """Alone it is not computed twice.  "busy", where both wait, has not computed it either."""
    fleet, _ = a_crowd_that_stays()
    add_at_busy(fleet, *[ask(f"pair {number}", [8] * 300 + [number] * 50) for number in range(2)])
    assert fleet.dispatch(101.0) == []
    fleet.cancel("pair 1")
    assert [request for request, _ in fleet.dispatch(102.0)] == ["pair 0"]


def test_a_prefix_that_was_too_dear_is_copied_once_fewer_would_wait_for_it() -> None:
    fleet = fleet_of("busy", "calm")
    fleet.place(ask("first", [7] * 150), at="busy")
    fleet.finished("first", "busy")
    fleet.other_load("busy", 2000, 1)
    for number in range(5):
        fleet.started(f"d{number}", fleet.place(ask(f"d{number}", [20 + number] * 10), 1, "calm"))
    fleet.pause("calm")
    for number in range(100):
        fleet.add(ask(f"r{number}", [7] * 150 + [100 + number] * 4, float(number)))
    fleet.resume("calm")
    assert fleet.dispatch(100.0) == [], "weight 2.5"
    for number in range(5):
        assert fleet.finished(f"d{number}", "calm")
    assert fleet.dispatch(101.0), "weight 1"


def test_nothing_is_remembered_of_replicas_that_are_gone() -> None:
    fleet, _ = a_crowd_that_stays()
    assert [len(known) for known in fleet._looks._by_thief.values()] == [1, 1, 1]
    fleet.lost("x")
    assert len(fleet._looks._by_thief) == 2
    fleet.lost("busy")
    assert [len(known) for known in fleet._looks._by_thief.values()] == [0, 0]


# -- what is remembered --------------------------------------------------------------------------------


def test_sessions_that_never_end_stay_at_home() -> None:
    """Each turn once expected all the turns that sessions had before it, and went wherever less was to do."""
    fleet, rng = fleet_of(*"abcd", unit_tokens=16), Random(1)
    under_way: list[tuple[str, str]] = []
    for round_ in range(120):
        for user in rng.sample(range(30), 30):
            key = [1_000_000 * user + place for place in range(400 + round_)]
            name = f"{user}/{round_}"
            under_way.append((name, fleet.place(turn(name, str(user), key), 100 + rng.randrange(100))))
            if len(under_way) > 12:
                assert fleet.finished(*under_way.pop(rng.randrange(12)))
    assert fleet.stats.sessions_moved < 30


@pytest.mark.parametrize(("label", "home"), [("peek", "a"), ("fcfs", "b")])
def test_a_short_request_waits_at_its_home_where_the_order_lets_it_go_before_long_ones(
    label: str, home: str
) -> None:
    fleet = fleet_of("a", "b", order=PeekConfig.from_label(label))
    fleet.place(ask("first", [1] * 1000), 0, "a")
    assert fleet.finished("first", "a")
    fleet.pause("b")
    for number in range(4):
        assert fleet.add(ask(f"long {number}", [100 + number] * 5000)) == "a"
    fleet.resume("b")
    assert fleet.add(ask("short", [1] * 1000 + [2] * 10)) == home


def test_a_replicas_planner_remembers_no_request_that_it_has_let_go() -> None:
    fleet = fleet_of("a")
    for number in range(50):
        fleet.add(turn(f"r{number}", f"s{number}", [number] * 600, "lora"))
        for pair in fleet.dispatch(float(number)):
            assert fleet.finished(*pair)
    policy = fleet._replicas["a"].planner.policy
    assert isinstance(policy, PeekPolicy)
    assert (policy.expectations.running, len(policy.expectations.sessions)) == (0, 0)
    assert (policy.expectations.namespaces, policy.reads_heads) == (0, False)


# -- large fleets --------------------------------------------------------------------------------------


@given(
    families=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), min_size=15, max_size=80),
    ended=st.lists(st.integers(0, 79), max_size=40),
    shared=st.integers(8, 30),  # an eighth of the prompt or more: of less the few need not know
)
def test_the_few_of_a_large_fleet_are_as_good_as_all(
    families: list[tuple[int, int]], ended: list[int], shared: int
) -> None:
    fleet = FleetPlanner(FleetConfig(stickiness=1.0))
    for number in range(40):
        fleet.join(f"gpu{number}")
    for number, (family, own) in enumerate(families):
        key = [family] * shared + [1000 + number] * own
        ticket = Ticket(ask(f"asked {number}", key), pack(key), 0, 0)
        ticket.request.num_tokens = len(key)
        everyone = list(fleet._replicas.values())
        works = [each.added_tokens(ticket.request, ticket.key) for each in everyone]
        waste = waste_of(ticket, everyone, works)
        costs = []
        for whole in (0, 10**6):
            fleet._placement.asked_whole = whole
            replica, work = fleet._placement.choose(ticket)
            assert replica is not None
            costs.append(cost(replica, work, False, 0.0, waste))
        assert costs[0] == costs[1]
        fleet._placement.asked_whole = 0
        fleet.place(ask(f"r{number}", key))
        if number in ended and f"r{number}" in fleet:
            assert fleet.finished(f"r{number}", fleet.home(f"r{number}"))


def test_a_session_of_a_large_fleet_goes_home() -> None:
    fleet = fleet_of(*[f"gpu{number}" for number in range(40)])
    homes = [fleet.place(turn(f"a{number}", f"s{number}", [number] * 50)) for number in range(40)]
    assert sorted(homes) == sorted(f"gpu{number}" for number in range(40)), "in turn among equals"
    for number in range(40):
        assert fleet.finished(f"a{number}", homes[number])
    fleet.forget_caches()
    assert fleet.place(turn("b0", "s0", [0] * 50)) == fleet.home("b0")
    fleet = fleet_of(*[f"gpu{number}" for number in range(40)])
    home = fleet.place(turn("a", "s", [7] * 50))
    for number in range(39):
        fleet.place(turn(f"other{number}", f"o{number}", [100 + number] * 60))
    assert fleet.place(turn("b", "s", [7] * 50 + [8])) == home


def test_beginnings_are_remembered_by_who_was_sent_them_last() -> None:
    known = Beginnings()
    numbers = known.numbers(pack([1, 2, 3, 4]), "")
    assert len(numbers) == 3, "beginnings of 3, 2 and 1 symbols"
    assert known.numbers(pack([1, 2, 3, 9]), "") == numbers
    assert known.numbers(pack([1, 2, 9]), "")[1:] == numbers[1:], "two prompts meet where they part"
    asked = pack([1, 2, 3, 4])
    assert known.numbers(asked, "") == known.numbers(asked, "") == numbers
    assert not set(known.numbers(asked, "lora")) & set(numbers), "the last answer is one namespace's"
    known.note(numbers, "a")
    known.note(numbers[1:], "b")
    known.note(numbers[2:], "a")
    assert [known.holders(number) for number in numbers] == [["a"], ["a", "b"], ["b", "a"]]
    known.most = 2
    known.note(known.numbers(pack([5]), ""), "c")  # one more than there is room for
    assert known.holders(numbers[0]) == ["a"], "the older half is remembered, too"
    known.note(known.numbers(pack([6, 6, 6]), ""), "c")
    assert known.holders(numbers[0]) == []
    known.clear()
    assert known.holders(known.numbers(pack([6]), "")[0]) == []


def test_the_slowest_replica_without_a_cache_may_join() -> None:
    FleetPlanner().join("slowest", speed=1e-6, cache_tokens=0)


def test_among_equals_the_first_that_joined() -> None:
    fleet = FleetPlanner()
    for name in "cab":
        fleet.join(name)
    replicas = [fleet._replicas[name] for name in "bac"]
    assert [replica.number for replica in replicas] == [3, 2, 1]
    assert max(replicas, key=longest_first).name == min(replicas, key=by_backlog).name == "c"


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_fleet_is_not_copied(how: Callable[[object], object]) -> None:
    """Two planners would share replicas and tickets, and each count them for itself."""
    with pytest.raises(TypeError, match="a FleetPlanner cannot be copied or pickled"):
        how(FleetPlanner())
