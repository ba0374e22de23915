"""SGLang's queue between two looks at it, against lists that are compared one by one and sorted anew."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek.adapters.line import Line


class Request:
    """Nothing but itself, and what SGLang sorts by."""

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank


STEPS = st.lists(
    st.tuples(
        st.integers(0, 5),  # who come
        st.integers(0, 3),  # who leave unheard of
        st.integers(0, 4),  # who are admitted from the head
        st.integers(0, 12),  # who are planned
        st.booleans(),  # whether SGLang makes a new list
    ),
    max_size=12,
)


@given(steps=STEPS, first=st.integers(0, 60), ranks=st.sampled_from([0, 2]), seed=st.integers(0, 2**16))
def test_a_queue_is_followed_and_put_in_order(
    steps: Sequence[tuple[int, int, int, int, bool]], first: int, ranks: int, seed: int
) -> None:
    rnd = random.Random(seed)
    queue = [Request(rnd.randint(0, ranks)) for _ in range(first)]
    came = list(queue)  # in the order in which they came
    line = Line((lambda request: request.rank) if ranks else None)
    line.follow(queue)
    line.head = first
    for arrive, leave, admit, plan, anew in steps:
        admitted = [request for request in queue[:admit] if rnd.random() < 0.8]
        if anew:
            queue = [request for request in queue if request not in admitted]
        else:
            for request in admitted:
                queue.remove(request)
        line.left([*admitted, Request()])
        missing = rnd.sample(queue, min(leave, len(queue)))
        for request in missing:
            queue.remove(request)
        new = [Request(rnd.randint(0, ranks)) for _ in range(arrive)]
        queue += new
        found = line.follow(queue)
        assert (set(found[0]), found[1]) == (set(missing), new)
        assert line.requests == queue
        came = [request for request in came if request not in admitted and request not in missing] + new
        planned = rnd.sample(queue, min(plan, len(queue)))
        if rnd.random() < 0.5:  # mostly as it stands
            planned = queue[: len(planned)]
        before = list(queue)
        moved = line.put(queue, planned)
        rest = [request for request in came if request not in planned]
        assert queue == planned + sorted(rest, key=lambda request: request.rank)
        assert (line.requests, line.head, moved) == (queue, len(planned), queue != before)


@given(first=st.integers(1, 60), head=st.integers(0, 20), seed=st.integers(0, 2**16))
def test_where_other_code_has_moved_requests_all_are_found_again(first: int, head: int, seed: int) -> None:
    rnd = random.Random(seed)
    queue = [Request() for _ in range(first)]
    came = list(queue)
    line = Line()
    line.follow(queue)
    line.put(queue, rnd.sample(queue, min(head, first)))
    missing = rnd.sample(queue, rnd.randrange(first))
    new = [Request() for _ in range(3)]
    queue = [request for request in queue if request not in missing] + new
    rnd.shuffle(queue)
    gone, arrived = line.follow(queue)
    assert (set(gone), set(arrived)) == (set(missing), set(new))
    assert line.requests == queue
    planned = rnd.sample(queue, min(head, len(queue)))
    line.put(queue, planned)
    came = [request for request in came if request not in missing] + arrived
    assert queue == line.requests == planned + [request for request in came if request not in planned]


@pytest.mark.parametrize("waiting", [3, 20, 100])
@pytest.mark.parametrize("planned", [[2, 1, 2], [0, 2, -1], [0, 0, 1]])
def test_a_plan_that_is_wrong_leaves_the_engine_every_request(planned: list[int], waiting: int) -> None:
    """A request that is planned twice, or does not wait: SGLang goes on with its list."""
    line, queue = Line(), [Request() for _ in range(waiting)]
    line.follow(queue)
    before = list(queue)
    with pytest.raises((AssertionError, KeyError)):
        line.put(queue, [queue[place] if place >= 0 else Request() for place in planned])
    assert queue == before


def test_an_error_on_the_way_leaves_the_engine_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    line, queue = Line(), [Request() for _ in range(100)]
    line.follow(queue)
    before = list(queue)
    places = iter([50, 60])
    monkeypatch.setattr(line, "_place_behind", lambda request: next(places))
    with pytest.raises((AssertionError, StopIteration)):
        line.put(queue, [queue[50], queue[61], queue[70]])
    assert queue == before


def test_an_empty_queue_is_known() -> None:
    queue = [Request()]
    line = Line()
    assert line.follow([]) == ([], [])
    assert line.follow(queue) == ([], queue)
