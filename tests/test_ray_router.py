"""What a router of Ray Serve decides, and what routers tell each other; Ray itself is in tests/ray_serve."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loops import in_a_loop
from support.waiting import Clock

from peek.adapters.engine_adapter import Statements
from peek.adapters.prompts import ROOM, Prompt, beginning_of, prompt_of
from peek.adapters.ray_serve import decider as decider_module
from peek.adapters.ray_serve import exchange as exchange_module
from peek.adapters.ray_serve import fleet_options
from peek.adapters.ray_serve.decider import Asked, Decider, Sent
from peek.adapters.ray_serve.exchange import Exchange, ExchangeClient
from peek.adapters.ray_serve.routing import FleetRouting
from peek.adapters.ray_serve.settings import OPTIONS, checked, fleet_config
from peek.errors import InvalidConfig
from peek.fleet import openai_key, text_key, token_key


def asked(group: int, number: int = 0, session: str = "") -> Asked:
    key = token_key([group] * 3200 + [1000 + number] * 16)
    return Asked(key.key, key.num_tokens, "", 10, session)


def decider_of(replicas: int = 2, **options: Any) -> tuple[Decider, Clock]:
    clock = Clock()
    decider = Decider(checked(options), clock)
    decider.set_replicas([f"r{number}" for number in range(replicas)])
    return decider, clock


def ask(decider: Decider, request: Asked) -> list[Sent | None]:
    """Gets the answer, now or later."""
    answers: list[Sent | None] = []
    decider.ask(request, answers.append)
    return answers


def placed(decider: Decider, request: Asked, at: str = "") -> Sent:
    """A request that goes at once; where it is said, since Ray's own rule has chosen that."""
    (sent,) = [decider.note(request, at)] if at else ask(decider, request)
    assert sent is not None
    return sent


def under_way(decider: Decider) -> dict[str, int]:
    return {name: load["under_way"] for name, load in decider.status()["replicas"].items()}


# -- one router -------------------------------------------------------------------------------------------


def test_requests_that_come_together_are_ordered_together() -> None:
    turns: list[Callable[[], None]] = []
    decider = Decider(checked({"seats": 4, "cache_tokens": 7000}), Clock(), turns.append)
    decider.set_replicas(["r0", "r1"])
    for number in range(4):
        placed(decider, asked(100 + number))  # one replica's seats could take them all: no order is needed
    answers = [ask(decider, asked(number % 4, number)) for number in range(16)]
    assert not any(answers)
    assert len(turns) == 1
    turns.pop()()
    went = [number % 4 for number, answer in enumerate(answers) if answer]
    assert len(went) > len(set(went)), "whole families go, not one of each"
    assert not turns


def test_of_requests_that_end_together_the_seats_are_filled_together() -> None:
    turns: list[Callable[[], None]] = []
    decider = Decider(checked({"seats": 2}), Clock(), turns.append)
    decider.set_replicas(["r0"])
    first = [placed(decider, asked(number)) for number in (1, 2)]
    waits = [ask(decider, asked(number)) for number in (3, 4)]
    turns.pop()()
    assert not any(waits)
    for sent in first:
        decider.end(sent, True)
    assert len(turns) == 1
    turns.pop()()
    assert all(waits)


def test_a_session_has_a_home() -> None:
    decider, _ = decider_of(3, cache_tokens=0)
    homes = set()
    for number in range(6):
        sent = placed(decider, asked(number, number, "talk"))
        homes.add(sent.replica)
        decider.end(sent, True)
    assert len(homes) == 1


def test_what_rays_rule_has_chosen_is_load_too() -> None:
    decider, _ = decider_of()
    assert placed(decider, asked(1), "r1").replica == "r1"
    assert under_way(decider) == {"r0": 0, "r1": 1}
    assert decider.note(asked(1), "unknown") is None
    assert placed(decider, asked(2)).replica == "r0"


def test_a_replica_that_refuses_is_left_alone_longer_each_time_until_it_answers() -> None:
    decider, clock = decider_of(1)
    waits = ask(decider, asked(1))
    for rest_s in (0.1, 0.2, 0.4, 0.8, 1.6, 1.6):
        assert waits[0] is not None
        assert decider.rest("r0") == rest_s
        decider.end(waits[0], False)
        waits = ask(decider, asked(1))
        clock.now += 0.9 * rest_s
        decider.tick()
        assert not waits
        clock.now += 0.2 * rest_s
        decider.tick()
        assert waits
    assert waits[0] is not None
    decider.rest("r0")
    more = ask(decider, asked(1))
    decider.end(waits[0], True)
    assert more[0] is not None
    assert decider.rest("r0") == 0.1
    assert decider.rest("gone") == 0.0


def test_what_finds_no_seat_waits_in_the_planned_order_unless_its_prompt_is_there() -> None:
    decider, _ = decider_of(2, seats=1, max_ongoing_requests=2)
    first, second = placed(decider, asked(1)), placed(decider, asked(2))
    assert placed(decider, asked(1, 5)).replica == first.replica
    waits = [ask(decider, asked(group, 7)) for group in (3, 1, 2)]
    assert [len(each) for each in waits] == [0, 0, 1]  # the last has half of its prompt where there is room
    assert decider.status()["waiting"] == 2
    decider.end(first, True)
    assert [len(each) for each in waits] == [0, 1, 1]
    decider.end(second, True)
    assert decider.status()["waiting"] == 1
    assert waits[2][0] is not None
    decider.end(waits[2][0], True)
    assert waits[0][0] is not None


def test_a_request_whose_end_was_never_told_is_forgotten() -> None:
    decider, clock = decider_of(1)
    refused, sent = placed(decider, asked(1)), placed(decider, asked(1))
    decider.tried("of which Ray tells nothing", refused)
    decider.end(refused, False)
    decider.tried("lost", sent)
    for later_s, left in ((decider_module.LONGEST_REQUEST_S, 2), (1, 1), (1, 0)):
        clock.now += later_s
        decider.tick()
        assert len(decider._tries) == left
        assert under_way(decider) == {"r0": min(left, 1)}


DEEDS = ["ask", "ask", "ask", "by Ray's rule", "end", "end", "refuse", "abort", "leave"]
DEEDS += ["replicas", "die", "others", "later"]
DONE = st.lists(st.tuples(st.sampled_from(DEEDS), st.integers(0, 7)), min_size=8, max_size=40)


class Played:
    """A router, and beside it plain lists of what waits, of what is where, and of what the planner counts."""

    def __init__(self, seats: int) -> None:
        self.most = seats + 1
        self.decider, self.clock = decider_of(2, seats=seats, max_ongoing_requests=self.most)
        self.there = {"r0", "r1"}
        self.waits: dict[int, list[Sent | None]] = {}
        self.going: list[Sent] = []
        self.counted: list[Sent] = []
        self.by_rays_rule: set[Sent] = set()
        self.finished = 0

    def do(self, what: str, number: int) -> None:
        decider, name = self.decider, f"r{number % 3}"
        if what == "ask":
            answers: list[Sent | None] = []
            self.waits[decider.ask(asked(number % 4, number), answers.append)] = answers
        elif what == "by Ray's rule" and (sent := decider.note(asked(number), name)):
            self.by_rays_rule.add(sent)
            self.went(sent)
        elif what in ("end", "refuse", "abort") and self.going:
            sent = self.going.pop(number % len(self.going))
            if what == "refuse":
                decider.rest(sent.replica)
            self.finished += what == "end" and sent in self.counted
            for _ in "12":  # told twice, counted once
                decider.give_up(sent.serial) if what == "abort" else decider.end(sent, what == "end")
            self.counted = [each for each in self.counted if each != sent]
        elif what == "leave" and self.waits:
            serial = sorted(self.waits)[number % len(self.waits)]
            del self.waits[serial]
            decider.give_up(serial)
            decider.give_up(serial)
        elif what in ("replicas", "die"):
            before = set(self.there)
            self.there = {f"r{place}" for place in range(3) if number >> place & 1}
            if what == "die":
                self.there = before - {name}
                decider.lose(name)
            else:
                decider.set_replicas(self.there)
            if what == "die":
                self.counted = [each for each in self.counted if each.replica not in before & {name}]
        elif what == "others":
            decider.set_others([{name: (number, 100 * number), "": (number, 0)}] if number else [])
        elif what == "later":
            self.clock.now += 0.5 * number
            decider.tick()

    def went(self, sent: Sent) -> None:
        assert sent.replica in self.there
        self.going.append(sent)
        self.counted.append(sent)

    def look(self) -> None:
        for serial in [serial for serial, answers in self.waits.items() if answers]:
            (sent,) = self.waits.pop(serial)
            assert sent is not None, "the planner decides"
            self.went(sent)
        status = self.decider.status()
        assert (status["waiting"], status["fallbacks"]) == (len(self.waits), 0)
        assert status["finished"] == self.finished
        assert set(self.decider._rest_s) <= self.there
        assert sorted(self.decider._under_way) == sorted(sent.serial for sent in self.going)
        counted = Counter(sent.replica for sent in self.counted)
        assert under_way(self.decider) == {name: counted[name] for name in self.there | set(counted)}
        planned = Counter(sent.replica for sent in self.counted if sent not in self.by_rays_rule)
        assert max(planned.values(), default=0) <= self.most


@given(DONE, st.integers(1, 3))
def test_whatever_comes_in_whatever_order_is_counted_once_and_nobody_waits_in_vain(
    done: list[tuple[str, int]], seats: int
) -> None:
    played = Played(seats)
    for deed in [*done, ("others", 0), ("replicas", 7), ("later", 7)]:
        played.do(*deed)
        played.look()
    while played.going:
        played.do("end", 0)
        played.look()
    assert not played.waits


def test_after_an_error_rays_rule_decides_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    decider, clock = decider_of()
    sent = placed(decider, asked(1))
    decider._fleet = object()  # type: ignore[assignment]
    waits = ask(decider, asked(7))
    assert ask(decider, asked(2)) == [None] == waits
    assert decider.note(asked(3), "r0") is None
    decider.end(sent, True)
    decider.rest("r0")
    decider.lose("r0")
    decider.set_replicas(["r1", "r2"])
    decider.set_others([{"r1": (1, 10)}])
    decider.hear(asked(1)._replace(replica="r1"))
    assert decider.loads() == {}
    status = decider.status()
    assert (status["active"], status["fallbacks"], status["replicas"]) == (False, 1, {})
    clock.now += decider_module.ASIDE_S
    decider.tick()
    assert decider.status()["active"]
    assert placed(decider, asked(4)).replica == "r2"  # the other has something of others'
    assert under_way(decider) == {"r1": 0, "r2": 1}
    assert len([record for record in caplog.records if "peek failed" in record.message]) == 1


def test_who_came_first_goes_first_also_after_a_refusal() -> None:
    decider, _ = decider_of(1, seats=1, max_ongoing_requests=1, policy="fcfs")
    first = placed(decider, asked(1))
    young = ask(decider, asked(2))
    old: list[Sent | None] = []
    decider.ask(asked(3), old.append, 5.0)
    decider.end(first, True)
    assert old
    assert not young


@pytest.mark.parametrize(
    "name", ["join", "leave", "pause", "resume", "lost", "other_load", "finished", "place"]
)
def test_no_error_of_the_planner_gets_out(name: str) -> None:
    decider, clock = decider_of()
    sent = placed(decider, asked(1))
    decider.rest("r0")
    whole = decider._fleet

    class Broken:
        def __getattr__(self, asked: str) -> Any:
            if asked == name:
                raise RuntimeError(name)
            return getattr(whole, asked)

        def __contains__(self, request: object) -> bool:
            return True

    decider._fleet = Broken()  # type: ignore[assignment]
    clock.now += 1.0
    decider.set_others([{"r0": (1, 1)}])
    answers = ask(decider, asked(2))
    decider.end(sent, True)
    decider.rest("r1")
    decider.set_replicas(["r1", "r2"])
    decider.lose("r1")
    assert decider.fallbacks == 1
    assert len(answers) == 1


def test_one_request_that_cannot_be_read_goes_alone(caplog: pytest.LogCaptureFixture) -> None:
    decider, _ = decider_of()
    broken = asked(1)._replace(key=b"123")
    assert ask(decider, broken) == [None]
    assert decider.note(broken, "r0") is None
    decider.hear(broken._replace(replica="r0"))
    assert ask(decider, broken._replace(num_tokens=-1)) == [None]
    placed(decider, asked(1))
    assert decider.fallbacks == 0
    assert "cannot place" in caplog.text


# -- several routers --------------------------------------------------------------------------------------


def told(one: Decider, other: Decider) -> None:
    """What one has and sent reaches the other."""
    other.set_others([one.loads()])
    for request in one.take_sent():
        other.hear(request)


def test_equal_prompts_find_the_same_home_through_two_routers() -> None:
    one, _ = decider_of(4)
    other, _ = decider_of(4)
    for number in range(40):
        says, hears = (one, other) if number % 2 else (other, one)
        sent = placed(says, asked(number % 5, number))
        told(says, hears)
        says.end(sent, True)
    homes = [placed(one, asked(group, 99)).replica for group in range(5)]
    told(one, other)
    assert [placed(other, asked(group, 98)).replica for group in range(5)] == homes


def test_the_load_of_others_counts_until_nothing_is_heard_of_them() -> None:
    one, _ = decider_of(2)
    other, _ = decider_of(2)
    sent = [placed(one, asked(number), "r0") for number in range(3)]
    told(one, other)
    assert {placed(other, asked(10 + number)).replica for number in range(3)} == {"r1"}
    assert other.loads()["r1"][0] == 3
    told(other, one)
    requests, tokens = one.loads()["r0"]
    assert requests == 3
    assert tokens == pytest.approx(3 * (3216 + 10))
    for each in sent:
        one.end(each, True)
    assert one.loads() == {}
    other.set_others([])
    assert all(load["backlog"] == 0 for load in other.status()["replicas"].values() if not load["under_way"])


def test_where_seats_are_too_few_routers_share_them_by_what_they_have() -> None:
    one, _ = decider_of(2, seats=4, max_ongoing_requests=4)
    other, _ = decider_of(2, seats=4, max_ongoing_requests=4)
    waits = [ask(one, asked(number)) for number in range(24)]
    sent = [each[0] for each in waits if each and each[0]]
    assert len(sent) == 8
    told(one, other)
    late = [ask(other, asked(100 + number)) for number in range(8)]
    assert sum(map(len, late)) == 2  # one at each replica: else it would never get any
    told(other, one)
    told(one, other)
    assert sum(map(len, late)) == 2  # a quarter of all seats
    for each in sent[:2]:
        one.end(each, True)
    assert sum(map(len, waits)) == 8  # what gets free is for the other
    for each in sent[2:4]:
        one.end(each, True)
    assert sum(map(len, waits)) == 8 + 2
    one.set_others([])
    assert sum(map(len, waits)) == 8 + 4


def test_news_of_a_replica_that_is_not_there_changes_nothing() -> None:
    decider, _ = decider_of(1)
    decider.set_others([{"r7": (3, 100)}, {"r7": (1, 1)}])
    decider.hear(asked(1)._replace(replica="r7"))
    assert decider.loads() == {}
    decider.set_replicas(["r0", "r7"])
    decider.set_others([{"r7": (3, 100)}, {"r7": (1, 1)}])
    assert decider.status()["replicas"]["r7"]["backlog"] == 101
    assert placed(decider, asked(1)).replica == "r0"


def test_a_router_that_tells_nobody_keeps_the_newest_prompts_only() -> None:
    decider, _ = decider_of(1)
    for number in range(decider_module.MOST_UNTOLD + 5):
        decider.end(placed(decider, asked(1, number)), True)
    sent = decider.take_sent()
    assert len(sent) == decider_module.MOST_UNTOLD
    assert sent[-1] == asked(1, decider_module.MOST_UNTOLD + 4)._replace(replica="r0")
    assert decider.take_sent() == []


PLAY = st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans(), st.sampled_from([0.0, 1.0, 4.0]))
PLAYS = st.lists(PLAY, min_size=4)


@given(PLAYS, st.booleans())
def test_each_router_hears_each_prompt_of_the_others_once(
    plays: list[tuple[str, int, bool, float]], small: bool
) -> None:
    asyncio.run(play_exchange(plays, small))


async def play_exchange(plays: list[tuple[str, int, bool, float]], small: bool) -> None:
    """Beside it a plain list of all that was ever told; without room, only what is still there is heard."""
    clock = Clock()
    exchange = Exchange(clock)
    room = 3 * exchange_module._size(asked(0)) if small else 10**9
    everything: list[tuple[str, Asked]] = []
    heard: dict[str, int] = {}
    reached: dict[str, int] = {}
    loads: dict[str, tuple[float, dict[str, tuple[int, int]]]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange_module, "PROMPT_BYTES", room)
        for router, count, begins_anew, later_s in plays:
            clock.now += later_s
            sent = [asked(len(everything) + place) for place in range(count)]
            mine = {"r0": (count, len(everything))}
            at = 0 if begins_anew else heard.get(router, 0)
            others, news, heard[router] = await exchange.swap(router, mine, sent, at)
            loads[router] = (clock.now, mine)
            theirs = [told for name, told in loads.items() if name != router]
            recent = [each for at_s, each in theirs if clock.now - at_s <= 3.0]
            assert sorted(map(str, others)) == sorted(map(str, recent))
            begin = 0 if begins_anew else reached.get(router, 0)
            expected = [each for name, each in everything[begin:] if name != router]
            assert news == (expected[len(expected) - len(news) :] if small else expected)
            assert not small or len(news) <= 3
            everything += [(router, each) for each in sent]
            reached[router] = len(everything)


@in_a_loop
async def test_a_new_exchange_is_told_and_tells_from_the_beginning() -> None:
    exchange = Exchange()
    await exchange.swap("a", {}, [asked(1), asked(2)], 0)
    assert await exchange.swap("b", {}, [], 999) == ([{}], [asked(1), asked(2)], 2)
    status = await exchange.status()
    assert status == {"routers": {"a": {}, "b": {}}, "prompts": 2}


class Handle:
    """Calls as an actor's handle makes them: one that has died, or is stopped, as it is told."""

    def __init__(self) -> None:
        self.exchange = Exchange()
        self.dead = False
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any) -> Any:
            await self.goes_on.wait()
            if self.dead:
                raise ConnectionError("the actor died\nand more")
            return await getattr(self.exchange, name)(*args)

        return SimpleNamespace(remote=call)


@pytest.fixture
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "EXCHANGE_S", 0.01)
    monkeypatch.setattr(exchange_module, "IDLE_S", 0.1)


def client_of(decider: Decider, find: Callable[[], Any]) -> ExchangeClient:
    client = ExchangeClient(decider, find)
    client.want(True)
    return client


async def until(happened: Callable[[], Any]) -> None:
    while not happened():
        await asyncio.sleep(0.01)


def backlog(decider: Decider, replica: str) -> float:
    found: float = decider.status()["replicas"][replica]["backlog"]
    return found


@pytest.mark.usefixtures("_in_a_hurry")
@in_a_loop
async def test_routers_hear_of_each_other_through_an_actor() -> None:
    handle = Handle()
    deciders = [decider_of()[0] for _ in range(2)]
    clients = [client_of(decider, lambda: handle) for decider in deciders]
    sent = [placed(deciders[0], asked(number), "r0") for number in range(100)]
    await until(lambda: backlog(deciders[1], "r0") > 0)
    await until(lambda: [client.routers for client in clients] == [2, 2])
    for each in sent:
        deciders[0].end(each, True)
    await until(lambda: backlog(deciders[1], "r0") == 0)
    assert placed(deciders[1], asked(99, 5)).replica == "r0"  # its prompt was told
    assert [client.failures for client in clients] == [0, 0]


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.usefixtures("_in_a_hurry")
@in_a_loop
async def test_without_an_answer_a_router_goes_on_alone_and_says_so_once(
    stopped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ray.serve.peek")
    handle = Handle()
    deciders = [decider_of()[0] for _ in range(2)]
    clients = [client_of(decider, lambda: handle) for decider in deciders]
    placed(deciders[0], asked(1), "r0")
    await until(lambda: backlog(deciders[1], "r0") > 0)
    if stopped:
        handle.goes_on.clear()
    handle.dead = True
    await until(lambda: backlog(deciders[1], "r0") == 0)
    assert clients[1].routers == 1
    placed(deciders[1], asked(1))
    await until(lambda: clients[1].failures > 1)
    handle.dead = False
    handle.goes_on.set()
    await until(lambda: clients[1].routers == 2 and clients[0].routers == 2)
    await until(lambda: backlog(deciders[1], "r0") > 0)
    said = [record.message for record in caplog.records if "alone" in record.message]
    why = "no answer within 0.1 s" if stopped else "the actor died"
    assert said == [f"a router goes on alone: ConnectionError, {why}"] * 2
    assert len([record for record in caplog.records if "hears of the others" in record.message]) == 2


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.usefixtures("_in_a_hurry")
@in_a_loop
async def test_what_was_sent_while_the_exchange_was_away_is_told_once_it_is_back(stopped: bool) -> None:
    handle = Handle()
    decider, _ = decider_of()
    client = client_of(decider, lambda: handle)
    handle.dead = True
    if stopped:
        handle.goes_on.clear()
    await until(lambda: client.failures > 0)
    for number in range(decider_module.MOST_UNTOLD + 5):
        decider.end(placed(decider, asked(1, number)), True)
    failures = client.failures
    await until(lambda: client.failures > failures + 1)
    decider.end(placed(decider, asked(2)), True)
    handle.dead = False
    handle.goes_on.set()
    await until(lambda: client.routers == 1 and handle.exchange._count)
    told = [each for _, each in handle.exchange._sent]
    assert len(told) == handle.exchange._count == decider_module.MOST_UNTOLD
    assert [each._replace(replica="") for each in told[-2:]] == [
        asked(1, decider_module.MOST_UNTOLD + 4),
        asked(2),
    ]


@in_a_loop
async def test_without_replicas_nobody_is_asked_and_without_an_actor_it_is_looked_for() -> None:
    looked: list[int] = []
    decider, _ = decider_of()
    client = ExchangeClient(decider, lambda: looked.append(1))
    await asyncio.sleep(0.05)
    assert not looked
    client.want(True)
    await until(lambda: len(looked) > 2)
    client.want(False)
    assert client.failures >= 2


@in_a_loop
async def test_a_client_ends_when_it_is_cancelled_just_as_its_answer_comes() -> None:
    asked_for: list[asyncio.Future[Any]] = []

    def swap(*_: Any) -> asyncio.Future[Any]:
        asked_for.append(asyncio.get_running_loop().create_future())
        return asked_for[-1]

    decider, _ = decider_of()
    client = ExchangeClient(decider, lambda: SimpleNamespace(swap=SimpleNamespace(remote=swap)))
    client.want(True)
    await until(lambda: bool(asked_for))
    asked_for[0].set_result(([], [], 0))
    client._task.cancel()
    await until(client._task.done)
    assert client._task.cancelled()


# -- options and prompts ----------------------------------------------------------------------------------


def test_options_are_checked() -> None:
    with pytest.raises(InvalidConfig, match="'windows' is unknown; valid: cache_tokens, decode_tokens"):
        fleet_options(windows=3)
    with pytest.raises(InvalidConfig, match="'False'"):
        fleet_options(policy=False)
    for name in OPTIONS:
        with pytest.raises(InvalidConfig, match="'none'" if name == "policy" else name):
            checked({name: "none" if name == "policy" else -1})
        if type(OPTIONS[name]) is int:
            with pytest.raises(InvalidConfig, match=f"^{name} is 256.0; need a whole number from"):
                checked({name: 256.0})
    assert fleet_config(checked({"max_ongoing_requests": 5})).seats == 5
    assert fleet_config(checked({"policy": "fcfs"})).order.policy == "fcfs"


def test_without_its_ray_it_stands_aside(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peek.adapters.ray_serve.settings.VERSIONS", ("0.0.",))
    assert fleet_options(max_ongoing_requests=40) == {"max_ongoing_requests": 40}
    assert "peek stands aside" in caplog.text


def test_where_a_prompt_is_in_a_call() -> None:
    body = {"model": "m", "prompt": "p" * 200, "max_tokens": 7}
    chat = [{"role": "user", "content": "c" * 200}]
    tokens = token_key([1, 2, 3])
    assert prompt_of([None, body], {}) == Prompt(openai_key(body), 7)
    assert prompt_of([SimpleNamespace(**body, tools=None)], {}) == Prompt(openai_key(body), 7)
    assert prompt_of([SimpleNamespace(messages=chat)], {}) == Prompt(openai_key({"messages": chat}), 0)
    assert prompt_of([body], {}, "adapter") == Prompt(openai_key(body)._replace(namespace="m\0adapter"), 7)
    assert prompt_of([[1, 2, 3]], {}) == Prompt(tokens, 0)
    assert prompt_of([body], {"prompt_token_ids": [1, 2, 3]}) == Prompt(tokens, 0)
    parameters = {"peek_session": "s"}
    for name in ("vllm_xargs", "custom_params"):
        more = {**body, name: parameters}
        for call in (more, SimpleNamespace(**more)):
            assert prompt_of([call], {}) == Prompt(openai_key(body), 7, parameters)
    assert prompt_of(["some text"], {}) == Prompt(text_key("some text"), 0)
    assert prompt_of([object(), 3, []], {"other": None}) is None


UNUSUAL: list[Any] = [
    {1: "a", "b": 2},
    {"messages": [{"role": "user", "content": "a", "x": {1: "a", "b": 2}}]},
    {"messages": [{"role": "user", "content": [{1: "a", "b": 2}]}]},
    {"prompt": [{(1, 2): "a"}]},
    {"tools": [{1: "a", "b": 2}], "messages": ["a"]},
]
UNUSUAL[2]["messages"][0]["self"] = UNUSUAL[2]


@pytest.mark.parametrize("body", UNUSUAL)
def test_a_body_that_is_no_json_has_no_prompt(body: object) -> None:
    assert prompt_of([body], {}) is None
    assert beginning_of([body], {}) is None


@pytest.mark.parametrize("by_name", [False, True])
def test_prompts_that_cannot_be_read_are_logged_once(by_name: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Clients can send as many as they like."""
    router: Any = FleetRouting.__new__(FleetRouting)
    router._blind, router._options, router._statements = False, {"decode_tokens": 5}, Statements()
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    body = {"messages": nested}
    for number in range(3):
        metadata = SimpleNamespace(multiplexed_model_id="", internal_request_id=f"r{number}", session_id="")
        args, kwargs = ((), {"body": body}) if by_name else ((body,), {})
        asked = router._asked(SimpleNamespace(args=args, kwargs=kwargs, metadata=metadata))
        assert asked.key == text_key(f"r{number}").key
    said = [record.getMessage().partition(" (")[0] for record in caplog.records]
    assert said == ["a request's prompt could not be read", "a request shows peek no prompt"]


def test_a_long_prompt_keeps_the_routers_loop_for_its_beginning_only() -> None:
    of = SimpleNamespace(
        args=[{"prompt": "p" * 2**22}], kwargs={}, metadata=SimpleNamespace(multiplexed_model_id="")
    )
    found = FleetRouting.prompt_of(None, of)  # type: ignore[arg-type]
    assert found == beginning_of(of.args, {})
    assert found is not None
    assert (len(found.key.key), found.key.num_tokens) == (ROOM // 16, 2**20)
