"""Streaming sessions: what a turn hits is what SGLang's own match gives it, its session before the tree."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_lab import CORES, HAS_CORES, RELEASE, World, leaked, make_request, make_world
from sglang_small import attach
from sglang_stepper import Stepper

streams = pytest.mark.skipif(
    not HAS_CORES,
    reason="streaming sessions are a part of the prefix cache from 0.5.23 on, see the last test",
)
KINDS = [(core, page) for core in CORES for page in (1, 16)]


class Client:
    """Sends one turn after the other of a session of SGLang's own, each with all that was said before."""

    def __init__(self, name: str, prompt: list[int]) -> None:
        from sglang.srt.session.session_controller import Session

        self.session = Session(10**9, name, streaming=True)
        self.text = prompt
        self.turns = 0
        self.last: Any = None

    def next_turn(self, more: list[int], answer: int) -> Any:
        if self.last is not None:
            self.text += [*self.last.output_ids[:answer]]
        self.text = [*self.text, *more]
        self.turns += 1
        request = make_request(f"{self.session.session_id}-{self.turns}", self.text, answer)
        request.session, self.session._inflight = self.session, True
        self.last = request
        return request


def matched(world: World, request: Any) -> int:
    """SGLang's own match of a waiting request, its session's included."""
    request.init_next_round_input(world.tree)
    return int(request.prefix_len)


def second_turn(tokens: int, **kind: Any) -> tuple[World, Any, Any]:
    """The second turn of a session whose first prompt has so many tokens; that one has been served."""
    world = make_world(20_000, **kind)
    beside = attach(world)
    stepper = Stepper(world)
    client = Client("s", [7] * tokens)
    stepper.add(client.next_turn([], 4))
    stepper.run_out()
    return world, beside, client.next_turn([8] * 20, 4)


@streams
@pytest.mark.parametrize(("core", "page"), KINDS)
def test_a_turn_hits_what_its_session_holds(core: str | None, page: int) -> None:
    world, beside, turn = second_turn(3000, core=core, page_size=page)
    cold = [make_request(f"cold{number}", [50 + number] * 600) for number in range(2)]
    queue = [*cold, turn]
    world.policy.calc_priority(queue)
    planner = beside.adapter.planner
    assert int(planner.cached_len(turn.rid)) == matched(world, turn) == 3003
    assert queue[0] is turn
    assert turn.num_matched_prefix_tokens == 3003
    assert planner.tree.cluster(turn.rid) is None
    world.policy.calc_priority(queue)
    world.tree.release_session("s")  # the tree has its first prompt still, in whole pages
    turn.kv = type(turn.kv)()
    world.policy.calc_priority(queue)
    assert int(planner.cached_len(turn.rid)) == matched(world, turn) == 3000 // page * page
    world.policy.calc_priority([])
    assert (len(planner), len(beside.adapter._turns), beside.adapter._door.lent) == (0, 0, {})


@streams
def test_a_turn_that_was_withdrawn_was_not_admitted() -> None:
    """SGLang's match lends a turn its session's row while it waits."""
    world, beside, turn = second_turn(300)
    world.policy.calc_priority([turn, make_request("other", [9] * 50)])
    matched(world, turn)
    assert turn.kv.req_pool_idx is not None
    before = beside.adapter.planner.totals()
    world.policy.calc_priority([])
    after = beside.adapter.planner.totals()
    assert (after["admitted"], after["withdrawn"]) == (before["admitted"], before["withdrawn"] + 2)


@streams
@pytest.mark.parametrize(("core", "page"), KINDS)
def test_what_is_expected_is_what_is_found(core: str | None, page: int) -> None:
    """Sessions among requests that share prefixes: of every admission the expected hit is the real one."""
    seen = {"turns": 0, "admitted": 0}

    @settings(max_examples=10)
    @given(st.integers(0, 2**32), st.sampled_from([None, 48]), st.booleans())
    def world_of(seed: int, chunk: int | None, overlap: bool) -> None:
        rnd = random.Random(seed)
        world = make_world(3000, core=core, page_size=page, max_running=6)
        beside = attach(world, rnd.choice(["peek", "lpm-nolimit+lru", "peek+pe"]))
        stepper = Stepper(world, overlap=overlap, chunk=chunk, max_running=6, ratio=1.0)
        prefixes = [[20 + number] * rnd.randrange(5, 90) for number in range(3)]
        clients = [
            Client(f"s{number}", [*rnd.choice(prefixes), 90 + number])
            for number in range(rnd.randrange(1, 5))
        ]
        for step in range(40):
            for client in clients:
                if not client.session._inflight and rnd.random() < 0.3 and len(client.text) < 400:
                    stepper.add(
                        client.next_turn(
                            [rnd.randrange(100, 110)] * rnd.randrange(1, 40), rnd.randrange(1, 6)
                        )
                    )
            if rnd.random() < 0.5:
                stepper.add(
                    make_request(f"r{step}", [*rnd.choice(prefixes), 200 + step], rnd.randrange(1, 5))
                )
            stepper.step()
        stepper.run_out()
        world.policy.calc_priority([])
        surprises = beside.seen.surprises
        exact = surprises.counts[surprises.bounds.index(0)]
        assert exact == surprises.total
        agreement = beside.adapter.agreement
        assert agreement.differed == 0 < agreement.compared
        assert (
            len(beside.adapter.planner) == len(beside.adapter._turns) == len(beside.adapter._door.lent) == 0
        )
        seen["turns"] += sum(client.turns for client in clients)
        seen["admitted"] += surprises.total
        for client in clients:
            world.tree.release_session(client.session.session_id)
        assert leaked(world) == 0

    world_of()
    assert seen["turns"] > 40
    assert seen["admitted"] > 100


@pytest.mark.skipif(HAS_CORES or RELEASE < (0, 5, 17), reason="0.5.9 has none, 0.5.23 has them in the cache")
def test_a_cache_that_sessions_are_wrapped_around_is_left_alone() -> None:
    from sglang.srt.session.streaming_session import StreamingSession

    world = make_world(2000)
    world.policy.tree_cache = StreamingSession(world.tree)
    assert attach(world).state == "the prefix cache is a StreamingSession, which is not understood"
