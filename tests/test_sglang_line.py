"""SGLang's queue between two looks at it, against lists that are compared one by one and sorted anew."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from peek.adapters.line import Line


class Request:
    """Nothing but itself."""


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


@given(steps=STEPS, first=st.integers(0, 60), seed=st.integers(0, 2**16))
def test_a_queue_is_followed_and_put_in_order(
    steps: Sequence[tuple[int, int, int, int, bool]], first: int, seed: int
) -> None:
    rnd = random.Random(seed)
    queue = [Request() for _ in range(first)]
    came = list(queue)  # in the order in which they came
    line = Line()
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
        new = [Request() for _ in range(arrive)]
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
        assert queue == planned + [request for request in came if request not in planned]
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


def test_an_empty_queue_is_known() -> None:
    queue = [Request()]
    line = Line()
    assert line.follow([]) == ([], [])
    assert line.follow(queue) == ([], queue)
