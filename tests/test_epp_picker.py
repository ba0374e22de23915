"""The endpoint picker's decisions, in an event loop; gRPC and Envoy are in tests/epp."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.loops import in_a_loop
from support.waiting import Clock

from peek.adapters.epp import server
from peek.adapters.epp.picker import (
    ASIDE_S,
    HUNG_S,
    LONGEST_READ,
    MOST_CALLS,
    REST_S,
    Brain,
    Options,
    Picked,
    Picker,
)
from peek.adapters.epp.server import ADVICE, NEEDED, EndpointList, addresses, listed
from peek.adapters.prompts import MOST_PARTS, ROOM, TEXTS, beginning, beginning_of, prompt_of
from peek.errors import InvalidConfig, NoReplica

ABC = ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]
LONG = "You are a helpful assistant who answers in one short sentence. " * 40


def picker(endpoints: list[str] = ABC, **options: Any) -> tuple[Picker, Clock]:
    clock = Clock()
    made = Picker(Options(deadline_s=10.0, **options), clock)
    made.set_endpoints(endpoints)
    return made, clock


def body(prompt: str, **more: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": prompt, "max_tokens": 8, **more}).encode()


async def caught_up(of: Picker) -> Brain:
    """The planner has heard of all news."""
    await of._brain.call(lambda: None)
    await asyncio.sleep(0)
    return of._brain


async def loads(of: Picker) -> dict[str, int]:
    """Requests at each endpoint as the planner knows them; those that rest are missing."""
    return {each.name: each.under_way for each in (await caught_up(of)).fleet.status()}


@in_a_loop
async def test_a_prefix_goes_where_it_was_and_strangers_spread() -> None:
    made, _ = picker()
    strangers = [await made.pick(body(f"{n} {LONG}")) for n in range(3)]
    assert {each.endpoint for each in strangers} == set(ABC)
    for each in strangers:
        made.began(each)
        made.ended(each, True)
    for n, each in enumerate(strangers):
        assert (await made.pick(body(f"{n} {LONG} and a question"))).endpoint == each.endpoint
    assert (await caught_up(made)).fleet.stats.sticky == 3


@pytest.mark.parametrize("name", ["user", "prompt_cache_key", "header"])
@in_a_loop
async def test_the_next_turn_of_a_session_goes_where_the_last_one_was(name: str) -> None:
    """All endpoints hold the prompt, so that nothing but the session decides."""
    made, _ = picker()
    for endpoint in ABC:
        made.ended(await made.pick(body(LONG), subset=[endpoint]), True)

    async def turn(session: str) -> str:
        in_body = {} if name == "header" else {name: session}
        picked = await made.pick(body(LONG, **in_body), session if name == "header" else "")
        made.ended(picked, True)
        return picked.endpoint

    homes = {session: await turn(session) for session in "abcde"}
    assert len(set(homes.values())) > 1
    for session in "edcbaacebd":
        assert await turn(session) == homes[session]
    assert (await caught_up(made)).fleet.stats.sessions_moved == 0


@in_a_loop
async def test_a_salt_and_a_model_share_nothing() -> None:
    made, _ = picker()
    made.ended(await made.pick(body(LONG)), True)
    await made.pick(body(LONG, cache_salt="other"))
    await made.pick(body(LONG, model="adapter"))
    assert (await caught_up(made)).fleet.stats.sticky == 0
    await made.pick(body(LONG))
    assert (await caught_up(made)).fleet.stats.sticky == 1


@pytest.mark.parametrize(
    "sent", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": "m"}', b"[" * 100_000, b'{"messages": 3}']
)
@in_a_loop
async def test_a_body_without_a_prompt_gets_an_endpoint_from_the_planner(sent: bytes) -> None:
    made, _ = picker()
    picked = await made.pick(sent)
    assert picked.endpoint in ABC
    assert picked.brain is made._brain
    assert (await loads(made))[picked.endpoint] == 1


@in_a_loop
async def test_only_candidates_are_picked_and_others_are_used_again() -> None:
    made, _ = picker()
    for _ in range(4):
        assert (await made.pick(body(LONG), subset=[ABC[1], "10.9.9.9:1"])).endpoint == ABC[1]
    for nobody in ([], ["10.9.9.9:1"]):
        with pytest.raises(NoReplica, match="none of 3 endpoints may be picked"):
            await made.pick(body(LONG), subset=nobody)
    others = {(await made.pick(body(f"{n} {LONG}"))).endpoint for n in range(4)}
    assert others >= {ABC[0], ABC[2]}


Step = tuple[str, int, int]
KINDS = ["pick", "pick", "began", "ended", "gone", "elsewhere", "endpoints", "tick"]
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 7)), min_size=8, max_size=40
)


@settings(max_examples=60)
@given(STEPS)
def test_both_counts_are_those_of_a_naive_twin(steps: list[Step]) -> None:
    """Whatever comes in whatever order: a request counts where it is, once, until it ends."""

    async def play() -> None:
        made, clock = picker()
        going: list[Picked] = []
        for what, one, other in steps:
            clock.now += 0.4
            picked = going[one % len(going)] if going else None
            if what == "pick":
                try:
                    going.append(await made.pick(body(f"{one} {LONG}")))
                except NoReplica:
                    assert not made.endpoints
            elif what == "endpoints":
                there = [name for place, name in enumerate(ABC) if one >> place & 1]
                made.set_endpoints(there)
                assert set(made.endpoints) == set(there)
            elif what == "tick":
                made.tick()
            elif picked is not None and what in ("began", "elsewhere"):
                made.began(picked, "" if what == "began" else ABC[other % 3])
            elif picked is not None:
                made.ended(picked, what == "ended")
                made.ended(picked, True)  # said twice, counted once
                going.remove(picked)
        brain = await caught_up(made)
        brain.fleet.check()
        planned = Counter(each.endpoint for each in going if each.brain is not None)
        assert Counter({each.name: each.under_way for each in brain.fleet.status()}) == planned
        for name, count in made.endpoints.items():
            assert count == sum(each.endpoint == name for each in going)
        for picked in going:
            made.ended(picked, True)
        assert sum((await loads(made)).values()) == 0
        assert made._loads == {}
        made.close()

    asyncio.run(play())


# -- endpoints that do not serve ------------------------------------------------------------------------


@pytest.mark.parametrize("told", [True, False])
@in_a_loop
async def test_an_endpoint_that_did_not_serve_rests_longer_each_time_until_it_serves(told: bool) -> None:
    """Also where a gateway does not tell when an answer begins."""
    made, clock = picker()
    dead = ABC[0]
    for rest_s in (REST_S, 2 * REST_S, 4 * REST_S):
        picked = await made.pick(body(LONG), subset=[dead])
        made.began(picked, ABC[1])
        assert (picked.endpoint, made.endpoints[dead]) == (ABC[1], 0)
        assert dead not in await loads(made)
        assert {(await made.pick(body(f"{n} {LONG}"))).endpoint for n in range(4)} == set(ABC[1:])
        clock.now += rest_s - 0.01
        made.tick()
        assert dead not in await loads(made)
        clock.now += 0.02
        made.tick()
        assert (await loads(made))[dead] == 0
    served = await made.pick(body(LONG), subset=[dead])
    if told:
        made.began(served)
    else:
        made.ended(served, True)
    made.began(await made.pick(body(LONG), subset=[dead]), ABC[1])
    clock.now += REST_S
    made.tick()
    assert dead in await loads(made)


@in_a_loop
async def test_where_all_rest_the_fewest_requests_decide() -> None:
    made, _ = picker(ABC[:2])
    for name, other in ((ABC[0], ABC[1]), (ABC[1], ABC[0])):
        made.began(await made.pick(body(LONG), subset=[name]), other)
    assert await loads(made) == {}
    assert {(await made.pick(body(LONG))).endpoint for _ in range(2)} == set(ABC[:2])


@in_a_loop
async def test_an_endpoint_that_is_taken_off_the_list_ends_what_it_has_and_may_come_back() -> None:
    made, _ = picker()
    picked = await made.pick(body(LONG))
    rest = [name for name in ABC if name != picked.endpoint]
    made.set_endpoints(rest)
    assert (await loads(made))[picked.endpoint] == 1
    assert (await made.pick(body(LONG))).endpoint in rest
    made.set_endpoints(ABC)
    assert (await loads(made))[picked.endpoint] == made.endpoints[picked.endpoint] == 1
    made.ended(picked, True)
    assert (await loads(made))[picked.endpoint] == made.endpoints[picked.endpoint] == 0
    made.set_endpoints(rest)
    assert set(await loads(made)) == set(rest)


# -- when something of ours goes wrong --------------------------------------------------------------------


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


def break_planner(made: Picker, name: str, call: Callable[..., Any]) -> None:
    """The planner's method is another one from now on, as after a bug; the class may be compiled."""
    real = made._brain.fleet

    class Broken:
        def __getattr__(self, asked: str) -> Any:
            return call if asked == name else getattr(real, asked)

        def __contains__(self, serial: str) -> bool:
            return serial in real

    made._brain.fleet = Broken()  # type: ignore[assignment]


def bug(*_: Any, **__: Any) -> None:
    raise AssertionError("a bug")


async def until_set(event: Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.001)


def slow_planner(made: Picker) -> tuple[Event, Event]:
    """It decides once the first event is set; the second is when it is asked."""
    free, asked = Event(), Event()
    real = made._brain.fleet.place

    def slow(*args: Any) -> str:
        asked.set()
        free.wait()
        return real(*args)

    break_planner(made, "place", slow)
    return free, asked


@in_a_loop
async def test_after_an_error_the_fewest_requests_decide_until_the_planner_begins_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, clock = picker()
    break_planner(made, "place", bug)
    picked = [await made.pick(body(LONG)) for _ in range(6)]
    assert made.endpoints == dict.fromkeys(ABC, 2)
    assert errors(caplog) == [f"peek's planner failed; the fewest requests decide for {ASIDE_S:.0f} s"]
    assert (made._brain.metrics.fallbacks, made._brain.metrics.active) == (6, False)
    for each in picked[:3]:
        made.ended(each, True)
    clock.now += ASIDE_S
    made.tick()
    again = await made.pick(body(LONG))
    assert again.brain is made._brain
    assert (made._brain.metrics.fallbacks, made._brain.metrics.active) == (6, True)


@pytest.mark.parametrize("name", ["started", "finished", "cancel"])
@in_a_loop
async def test_an_error_in_news_is_one_of_the_planner_too(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    made, _ = picker()
    picked = await made.pick(body(LONG))
    break_planner(made, name, bug)
    made.began(picked)
    made.ended(picked, name != "cancel")
    for _ in range(3):
        await caught_up(made)
    assert len(errors(caplog)) == 1
    assert (await made.pick(body(LONG))).brain is None


@in_a_loop
async def test_a_request_that_the_planner_refuses_does_not_set_it_aside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, _ = picker()

    def refuse(*_: Any) -> str:
        raise InvalidConfig("no")

    real = made._brain.place
    made._brain.place = refuse  # type: ignore[method-assign]
    assert [(await made.pick(body(LONG))).brain for _ in range(3)] == [None] * 3
    assert errors(caplog) == ["peek's planner refuses a request: no; the fewest requests decide meanwhile"]
    made._brain.place = real  # type: ignore[method-assign]
    assert (await made.pick(body(LONG))).brain is made._brain


@in_a_loop
async def test_a_planner_that_is_late_is_asked_again_when_it_has_come_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, _ = picker()
    made.options = Options(deadline_s=0.05)
    free, _ = slow_planner(made)
    late = [await made.pick(body(f"{number} {LONG}"), f"talk {number}") for number in range(6)]
    assert made.endpoints == dict.fromkeys(ABC, 2)
    assert errors(caplog) == [
        "peek's planner has not answered within its deadline; the fewest requests decide meanwhile"
    ]
    free.set()
    assert await loads(made) == dict.fromkeys(ABC, 2), "where they went counts, not what was asked in vain"
    made.options = Options(deadline_s=10.0)
    for number, first in enumerate(late):
        made.ended(first, True)
        again = await made.pick(body(f"{number} {LONG} again"), f"talk {number}")
        assert (again.endpoint, again.brain) == (first.endpoint, made._brain)
        made.ended(again, True)
    assert sum((await loads(made)).values()) == 0


@in_a_loop
async def test_a_planner_that_hangs_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    made, clock = picker()
    made.options = Options(deadline_s=0.05)
    free, _ = slow_planner(made)
    hung = made._brain
    lost = await made.pick(body(LONG))
    clock.now += HUNG_S
    made.tick()
    assert made._brain is hung
    clock.now += 0.1
    made.tick()
    assert made._brain is not hung
    assert errors(caplog)[1:] == [f"peek's planner has hung; the fewest requests decide for {ASIDE_S:.0f} s"]
    clock.now += ASIDE_S
    made.tick()
    made.options = Options(deadline_s=10.0)
    assert (await made.pick(body(LONG))).brain is made._brain
    made.ended(lost, True)
    assert sum(made.endpoints.values()) == 1
    free.set()


@in_a_loop
async def test_a_call_that_outlives_its_planner_does_not_keep_the_new_one_from_being_asked() -> None:
    """A deadline may be longer than the time after which a planner counts as hung."""
    made, clock = picker()
    made.options = Options(deadline_s=0.2)
    free, asked = slow_planner(made)
    late = asyncio.create_task(made.pick(body(LONG)))
    await until_set(asked)
    clock.now += HUNG_S + 0.1
    made.tick()
    await late
    clock.now += ASIDE_S
    made.tick()
    made.options = Options(deadline_s=10.0)
    await made.pick(body(LONG))
    assert made._brain.metrics.fallbacks == 1, "of the late one"
    free.set()


@in_a_loop
async def test_requests_that_were_not_waited_for_count_once() -> None:
    """Their calls have not had their turn at the deadline: nothing is placed for them in vain."""
    made, _ = picker()
    made.options = Options(deadline_s=0.05)
    free = Event()
    busy = made._brain.call(free.wait)
    together = await asyncio.gather(*(made.pick(body(f"{number} {LONG}")) for number in range(6)))
    free.set()
    await busy
    for each in together:
        made.ended(each, True)
    stats = (await caught_up(made)).fleet.stats
    assert (stats.added, stats.dispatched, stats.finished, stats.cancelled) == (6, 6, 6, 0)
    assert made._brain.abandoned == set()


@in_a_loop
async def test_a_client_that_leaves_while_the_planner_decides_leaves_nothing_behind() -> None:
    made, _ = picker()
    free, asked = slow_planner(made)
    task = asyncio.create_task(made.pick(body(LONG)))
    await until_set(asked)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    free.set()
    assert sum((await loads(made)).values()) == 0
    assert made.endpoints == dict.fromkeys(ABC, 0)


@in_a_loop
async def test_a_planner_that_is_kept_busy_by_one_call_after_another_has_not_hung() -> None:
    made, clock = picker()
    made.options = Options(deadline_s=0.05)
    free, asked = ([Event() for _ in range(3)] for _ in "ab")

    def keep_busy(number: int) -> None:
        asked[number].set()
        free[number].wait()

    busy = made._brain
    calls = [busy.call(keep_busy, number) for number in range(3)]
    late = await made.pick(body(LONG))
    for number in range(3):
        await until_set(asked[number])
        clock.now += 0.9 * HUNG_S
        made.tick()
        free[number].set()
        await calls[number]
    assert made._brain is busy
    assert late.brain is busy
    assert (await loads(made))[late.endpoint] == 1


@in_a_loop
async def test_a_planner_with_more_to_do_than_it_can_catch_up_with_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, _ = picker()
    free, asked = Event(), Event()
    made._brain.call(asked.set)
    made._brain.call(free.wait)
    for _ in range(MOST_CALLS + 1):
        made._brain.call(int)
    await until_set(asked)
    made.tick()
    assert errors(caplog) == [
        f"peek's planner has fallen behind; the fewest requests decide for {ASIDE_S:.0f} s"
    ]
    free.set()


@in_a_loop
async def test_the_fewest_requests_decide_about_a_body_that_is_too_long_to_be_read() -> None:
    made, _ = picker()
    at_limit = body("x" * (LONGEST_READ - len(body(""))))
    for sent, fallbacks in ((at_limit, 0), (at_limit + b" ", 1)):
        picked = await made.pick(sent)
        assert (made._brain.metrics.fallbacks, picked.brain) == (fallbacks, made._brain)
    assert sorted((await loads(made)).values()) == [0, 1, 1], "the planner hears of both"


@pytest.mark.parametrize("ids", [True, False])
def test_a_key_is_of_the_beginning_and_the_rest_counts_by_its_length(ids: bool) -> None:
    prompt: Any = list(range(ROOM)) if ids else "".join(map(str, range(ROOM)))
    calls: list[Any] = [
        prompt,
        {"prompt": prompt, "max_tokens": 7},
        SimpleNamespace(prompt=prompt, model="m"),
    ]
    if not ids:
        turns = [{"role": "system", "content": "Short."}, {"role": "user", "content": prompt}]
        parts = [{"type": "text", "text": prompt[:1000]}, {"type": "text", "text": prompt[1000:]}]
        calls += [{"messages": turns}, {"messages": [{"role": "user", "content": parts}, *turns]}]
        calls += [SimpleNamespace(messages=turns), {"system": "Short.", "messages": turns}]
        tool = [{"type": "function", "function": {"name": "f", "description": prompt}}]
        called = [{"id": "1", "function": {"name": "f", "arguments": prompt}}]
        user = [{"role": "user", "content": "Short."}]
        calls += [{"tools": tool, "messages": user}, {"input": [{"call_id": "1", "output": prompt}]}]
        calls += [{"messages": [turns[0], {"role": "assistant", "tool_calls": called}]}]
        calls += [{"messages": [{"role": "assistant", "reasoning_content": prompt, "content": "Yes."}]}]
        calls += [{"messages": [{"content": [{"type": "tool_result", "content": prompt}]}]}]
    for call in calls:
        whole, found = prompt_of([call], {}), beginning_of([call], {})
        assert whole is not None
        assert found is not None
        cut = len(found.key.key)
        assert ROOM // 16 - 16 <= cut <= ROOM // 16 + 16
        assert found.key.key[: cut - 8] == whole.key.key[: cut - 8]
        assert found.key.num_tokens == pytest.approx(whole.key.num_tokens, abs=64)
        assert found._replace(key=whole.key) == whole
    assert beginning_of([], {"prompt_token_ids": list(range(ROOM))}) == beginning_of([list(range(ROOM))], {})


@given(
    st.recursive(
        st.none() | st.integers(-3, 9) | st.text("ab", max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from([*TEXTS, "role", "tools", "model"]), inner, max_size=4)
        ),
        max_leaves=20,
    ),
    st.integers(0, 200),
)
@example([0], 4)
def test_what_is_short_is_read_as_it_is_and_nothing_is_changed(call: Any, room: int) -> None:
    before = deepcopy(call)
    assert beginning_of([call], {}) == prompt_of([call], {})
    kept, size = beginning(call, room)
    assert call == before
    assert (kept is call) or size > room or isinstance(call, str)
    assert beginning(kept, room)[0] == kept
    assert beginning(kept)[1] <= max(room, 0)


def values_in(value: Any) -> int:
    """Return how many values a value is made of, itself included."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(values_in, inner))


def tree(depth: int) -> dict[str, Any]:
    """Return mappings of texts, nested without a list, 9 in each."""
    return {} if depth == 0 else {name: tree(depth - 1) for name in TEXTS[3:12]}


@pytest.mark.parametrize("many", [[{}], [[]], [None], [""], ["a", []], [[{}]], [{"text": []}]], ids=str)
@pytest.mark.parametrize(
    "around", [lambda parts: parts, lambda parts: [{"role": "user", "content": parts}], lambda _: tree(5)]
)
def test_of_very_many_parts_the_first_ones_are_read(many: list[Any], around: Any) -> None:
    call = {"model": "m", "messages": around(many * 30_000)}
    kept, _ = beginning(call)
    assert MOST_PARTS / 3 < values_in(kept) <= MOST_PARTS + len(TEXTS) * 16
    assert values_in(call) > 30_000, "the call itself stays"
    assert beginning_of([call], {}) == prompt_of([kept], {})


@pytest.mark.parametrize("part", [1, 0.5, True])
@pytest.mark.parametrize(
    "around",
    [lambda p: {"prompt": ["a", p]}, lambda p: {"prompt": [1, "a", p]}, lambda p: {"messages": [p]},
     lambda p: {"messages": [{"content": [p]}]}],
)  # fmt: skip
def test_numbers_among_texts_are_no_prompt(part: object, around: Any) -> None:
    assert beginning_of([around(part)], {}) is None


# -- options, and the list of endpoints -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"deadline_s": 0.0}, "deadline_s is 0.0; need a number from 0.001 to 60"),
        ({"cache_tokens": -1}, "cache_tokens is -1; need a number from 0 to"),
        ({"stickiness": 0.5}, "stickiness is 0.5; need a number from 1 to"),
    ],
)
def test_options_that_cannot_be(option: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidConfig, match=f"^{re.escape(text)}"):
        Options(**option)


EDS = """{"resources": [{"@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
 "cluster_name": "engines", "endpoints": [{"lb_endpoints": [
  {"endpoint": {"address": {"socket_address": {"address": "10.0.0.1", "port_value": 8000}}}},
  {"endpoint": {"address": {"socket_address": {"address": "fd00::1", "port_value": 8001}}}}]}]}]}"""


def test_a_file_of_lines_and_a_file_of_envoys() -> None:
    both = ["10.0.0.1:8000", "[fd00::1]:8001"]
    assert listed("10.0.0.1:8000 # the first\n\n# none\n[fd00::1]:8001\n") == listed(EDS) == both
    assert addresses("[fd00:0::1]:8001") == ["[fd00::1]:8001"]
    assert "127.0.0.1:80" in addresses("localhost:80")


@pytest.mark.parametrize(
    "name", ["10.0.0.1", "10.0.0.1:", "10.0.0.1:x", "10.0.0.1:0", "10.0.0.1:65536", ":80"]
)
def test_an_endpoint_that_is_none(name: str) -> None:
    with pytest.raises(ValueError, match=r"endpoint '.*' is none; need host:port"):
        addresses(name)


def test_what_cannot_be_read_stays_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "endpoints"
    endpoints = EndpointList(["10.0.0.9:1"], str(file))
    assert endpoints.read() == ["10.0.0.9:1"]
    assert endpoints.read() == ["10.0.0.9:1"]
    assert len(caplog.records) == 1
    file.write_text("10.0.0.1:8000\n10.0.0.2:8000\n10.0.0.9:1\n")
    assert endpoints.read() == ["10.0.0.9:1", "10.0.0.1:8000", "10.0.0.2:8000"]
    file.write_text('{"half": ')
    assert endpoints.read() == ["10.0.0.9:1", "10.0.0.1:8000", "10.0.0.2:8000"]
    for socket_address in ('{"address": "10.0.0.1"}', '{"port_value": 1, "address": 3}', "[]"):
        file.write_text(f'{{"socket_address": {socket_address}}}')
        assert endpoints.read() == ["10.0.0.9:1", "10.0.0.1:8000", "10.0.0.2:8000"]
    file.write_text("10.0.0.2:8000\nnonsense\n")
    assert endpoints.read() == ["10.0.0.9:1", "10.0.0.2:8000"]
    assert len(caplog.records) == 3


@in_a_loop
async def test_while_a_name_server_hangs_rests_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "POLL_S", 0.01)
    made, clock = picker()
    made.began(await made.pick(body(LONG), subset=[ABC[0]]), ABC[1])
    free, asked = Event(), Event()

    class Hangs(EndpointList):
        def read(self) -> list[str]:
            asked.set()
            free.wait()
            return ABC[1:]

    following = asyncio.create_task(server.follow(made, Hangs([])))
    try:
        await until_set(asked)
        clock.now += REST_S
        while ABC[0] not in await loads(made):
            await asyncio.sleep(0.001)
    finally:
        free.set()
    while ABC[0] in made.endpoints:
        await asyncio.sleep(0.001)
    following.cancel()


WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None
from peek.adapters.epp.server import main
sys.exit(main())
"""


@pytest.mark.parametrize("package", NEEDED)
def test_the_command_without_its_extra_says_so_in_one_line(package: str) -> None:
    command = [sys.executable, "-c", WITHOUT, package, "--endpoint", ABC[0], "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, f"peek-epp: {ADVICE}\n")
