"""vLLM's waiting queue in the order of a plan, against a list that is put in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek.adapters.vllm.queue import PlannedQueue, RankedQueue
from peek.planner import LazyPlan, Plan


@dataclass(eq=False)
class Request:
    request_id: str
    priority: int = 0
    arrival_time: float = 0.0
    num_preemptions: int = 0


class Listed:
    """The same queue, laid out.  `taking_part` are in plans; the others stand where as many must leave."""

    def __init__(self) -> None:
        self.slots: list[Request | None] = []
        self.taking_part: list[Request] = []
        self.head: list[Request] = []
        self.plan: list[str] = []

    def order(self) -> list[Request]:
        """Fill the places of those that take part in the plan's order, then by entry."""
        here = {request.request_id: request for request in self.taking_part}
        planned = [here[name] for name in self.plan if name in here]
        rest = [request for request in self.taking_part if request.request_id not in set(self.plan)]
        filling = iter([*planned, *rest])
        return self.head + [next(filling) if slot is None else slot for slot in self.slots]

    def leave(self, request: Request) -> None:
        if request in self.head:
            self.head.remove(request)
        elif request in self.taking_part:
            self.taking_part.remove(request)
            self.slots.remove(None)
        else:
            self.slots.remove(request)


def ids(requests: Sequence[Request]) -> list[str]:
    return [request.request_id for request in requests]


def plays(*kinds: str) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Events of these kinds, each with its own chance."""
    return st.lists(st.tuples(st.sampled_from(kinds), st.randoms()), max_size=40)


def shuffled(requests: Sequence[Request], random: Any) -> list[str]:
    names = ids(requests)
    random.shuffle(names)
    return names


@given(plays("add", "add", "add", "stay", "pop", "pop", "prepend", "plan"))
def test_it_goes_in_the_order_of_the_list(events: list[tuple[str, Any]]) -> None:
    """As long as what leaves is what is up: vLLM's own way to take a request out."""
    queue, twin = PlannedQueue(), Listed()
    entry: dict[str, int] = {}
    for at, (event, random) in enumerate(events):
        request = Request(f"r{at}")
        entry[request.request_id] = at
        if event == "add":
            queue.add_request(request)
            twin.slots.append(None)
            twin.taking_part.append(request)
        elif event == "stay":
            queue.add_request(request)
            queue.keep_place(request)
            twin.slots.append(request)
        elif event == "prepend":
            queue.prepend_request(request)
            twin.head.insert(0, request)
            entry[request.request_id] = -at
        elif event == "plan":
            twin.plan = shuffled(twin.taking_part, random)
            queue.follow(LazyPlan.of(Plan(twin.plan)).at)
        elif len(queue) > 0:
            expected = twin.order()[0]
            assert queue.peek_request() is expected
            assert queue.pop_request() is expected
            twin.leave(expected)
        assert ids(list(queue)) == ids(twin.order())
        assert ids(list(queue)) == ids(list(queue)), "looking changes nothing"
        assert [queue[place] for place in range(len(queue))] == list(queue)
        assert queue.in_stock_order() == sorted(queue, key=lambda it: entry[it.request_id])
        assert len(queue) == len(twin.order())
        assert bool(queue) == (len(queue) > 0)


def pass_over(queue: PlannedQueue, admit: int = 0) -> list[Request]:
    """As vLLM's scan: take all out, and put back in one go what is not admitted."""
    scanned = []
    while queue:
        assert queue.peek_request() is queue.peek_request()
        scanned.append(queue.pop_request())
    assert len(queue) == 0 == len(list(queue))
    queue.prepend_requests(reversed(scanned[admit:]))
    return scanned


@given(plays("add", "add", "hold", "hold", "stay", "pop", "plan", "scan", "free", "abort"))
def test_who_can_run_goes_as_if_the_others_were_not_there(events: list[tuple[str, Any]]) -> None:
    """The list has not heard of those that cannot run; once they can, it has them where they entered."""
    queue, twin = PlannedQueue(), Listed()
    held: list[Request] = []
    entry: dict[str, int] = {}
    for at, (event, random) in enumerate(events):
        request = Request(f"r{at}")
        entry[request.request_id] = at
        if event in ("add", "hold", "stay"):
            queue.add_request(request)
        if event == "add":
            twin.slots.append(None)
            twin.taking_part.append(request)
        elif event == "hold":
            queue.hold(request)
            held.append(request)
        elif event == "stay":
            queue.keep_place(request)
            twin.slots.append(request)
        elif event == "plan":
            twin.plan = shuffled(twin.taking_part, random)
            queue.follow(LazyPlan.of(Plan(twin.plan)).at)
        elif event == "pop" and twin.order():
            expected = twin.order()[0]
            assert queue.pop_request() is expected
            twin.leave(expected)
        elif event == "scan" and not twin.order():
            if held:
                assert queue.peek_request() is held[0]
                assert list(queue) == held, "looking changes nothing"
            assert pass_over(queue) == held
        elif event in ("free", "abort") and held:
            request = held.pop(random.randrange(len(held)))
            if event == "abort":
                queue.remove_requests([request])
                continue
            queue.take_part(request)
            twin.taking_part.insert(0, request)
            later = (
                place
                for place, slot in enumerate(twin.slots)
                if slot is not None and entry[slot.request_id] > entry[request.request_id]
            )
            twin.slots.insert(next(later, len(twin.slots)), None)
        assert ids(list(queue)) == ids([*twin.order(), *held])
        assert sorted(queue.members) == sorted(ids(list(queue))), "none is lost, none is there twice"


@given(
    kinds=st.lists(st.sampled_from(["add", "hold", "stay", "prepend"]), max_size=12),
    admitted=st.integers(0, 12),
    put_back=st.booleans(),
)
def test_a_scan_loses_no_request(kinds: list[str], admitted: int, put_back: bool) -> None:
    """What is taken out and not put back has left, held or not; the others stand as before."""
    queue = PlannedQueue()
    for at, kind in enumerate(kinds):
        request = Request(f"r{at}")
        (queue.prepend_request if kind == "prepend" else queue.add_request)(request)
        if kind in ("hold", "stay"):
            (queue.hold if kind == "hold" else queue.keep_place)(request)
    before = list(queue)
    if put_back:
        assert pass_over(queue, admitted) == before
    else:
        taken = [queue.pop_request() for _ in before[:admitted]]
        assert taken == before[:admitted]
    queue.put_back([])
    assert list(queue) == before[admitted:]
    assert set(queue.gone) == set(ids(before[:admitted]))
    assert list(queue.members.values()) == [r for r in queue.members.values() if r in before[admitted:]]
    assert {*queue.in_stock_order()} == {*before[admitted:]}


@given(at_head=st.integers(1, 6), behind=st.integers(0, 4), changed=st.sets(st.integers(0, 5)))
def test_one_put_at_the_head_has_its_place_there_again(at_head: int, behind: int, changed: set[int]) -> None:
    """Whether it was held in between or took part in plans: what vLLM put there stands in vLLM's order."""
    queue = PlannedQueue()
    for at in range(behind):
        queue.add_request(Request(f"behind{at}"))
    for at in range(at_head):
        queue.prepend_request(Request(f"head{at}"))
    before = list(queue)
    away = [request for at, request in enumerate(before[:at_head]) if at in changed]
    for at, request in enumerate(away):
        (queue.hold if at % 2 else queue.take_part)(request)
    for request in away:
        queue.keep_place(request)
    assert list(queue) == before == queue.in_stock_order()


def by_priority(request: Request) -> tuple[int, float, str]:
    return request.priority, request.arrival_time, request.request_id


@given(plays("add", "add", "add", "keep", "hold", "free", "pop", "pop", "abort", "plan", "off"))
def test_by_priority_equals_go_in_the_order_of_the_plan(events: list[tuple[str, Any]]) -> None:
    queue, plan = RankedQueue(), list[str]()
    for at, (event, random) in enumerate(events):
        before = list(queue)
        new = Request(f"r{at}", random.randrange(3), at % 7)
        request = random.choice(before) if before and event != "add" else new
        if event == "add":
            queue.add_request(request)
        elif event == "plan":
            plan = shuffled([request for request in before if request.request_id in queue._body], random)
            plan.sort(key=lambda name: queue.members[name].priority)
            queue.follow(LazyPlan.of(Plan(plan)).at)
        elif event == "off":
            plan = []
            queue.follow(None)
        elif before and event == "pop":
            assert queue.peek_request() is before[0]
            assert queue.pop_request() is before[0]
            assert list(queue) == before[1:]
        elif before and event == "abort":
            queue.remove_requests([request])
        elif before:
            {"keep": queue.keep_place, "hold": queue.hold, "free": queue.take_part}[event](request)
        now = list(queue)
        assert sorted(ids(now)) == sorted(queue.members)
        assert [request.priority for request in now] == sorted(request.priority for request in now)
        in_plans = [request for request in now if request.request_id in queue._body]
        known = [name for name in ids(in_plans) if name in plan]
        assert known == [name for name in plan if name in queue._body]
        rest = [request for request in in_plans if request.request_id not in plan]
        assert rest == sorted(rest, key=by_priority)
        assert queue.in_stock_order() == sorted(now, key=by_priority)


def test_by_priority_one_outside_plans_waits_for_as_many_as_stood_before_it() -> None:
    requests = [Request(f"r{at}", at // 4, float(at)) for at in range(6)]
    queue = RankedQueue(requests)
    queue.keep_place(requests[1])
    queue.follow(LazyPlan.of(Plan(["r3", "r2", "r0", "r5", "r4"])).at)
    assert ids(list(queue)) == ["r3", "r1", "r2", "r0", "r5", "r4"]
    queue.remove_request(requests[3])
    assert queue.peek_request() is requests[1]
    queue.add_request(Request("urgent", -1))
    assert ids(list(queue)) == ["urgent", "r1", "r2", "r0", "r5", "r4"]


def test_by_priority_only_what_is_asked_for_is_worked_out() -> None:
    queue = RankedQueue([Request(f"r{at:04}", 0, float(at)) for at in range(1000)])
    asked: list[str] = []

    class Source:
        def next_id(self) -> str:
            asked.append(f"r{999 - len(asked):04}")
            return asked[-1]

    queue.follow(LazyPlan(Source()).at)
    assert (
        ids([queue.pop_request() for _ in range(5)]) == asked == ["r0999", "r0998", "r0997", "r0996", "r0995"]
    )
    assert queue.overtook


@pytest.mark.parametrize("kind", [PlannedQueue, RankedQueue])
def test_what_is_held_and_gone_is_forgotten(kind: type[PlannedQueue]) -> None:
    one, other = Request("r0"), Request("r1")
    queue = kind([one, other])
    queue.hold(one)
    queue.entered.clear()
    while queue:  # vLLM's scan passes over it, and puts it back
        queue.pop_request()
    queue.prepend_requests([one])
    assert not queue.entered, "nothing has happened to it"
    queue.remove_requests([one])
    queue.forget_gone()
    assert not queue.gone
    assert not queue.held


@pytest.mark.parametrize("kind", [PlannedQueue, RankedQueue])
def test_one_that_enters_twice_is_there_once(kind: type[PlannedQueue]) -> None:
    """vLLM adds a resumable request again that is preempted while its last token is in flight."""
    queue = kind()
    one, other = Request("r0"), Request("r1")
    queue.add_request(one)
    queue.add_request(other)
    queue.prepend_request(one)
    assert ids(list(queue)) == ["r0", "r1"]
    queue.remove_request(one)
    assert (len(queue), queue.pop_request(), list(queue)) == (1, other, [])


def test_times_that_are_none_or_change_lose_no_request() -> None:
    queue = RankedQueue()
    requests = [Request(f"r{at}", at % 2, float("nan") if at % 3 else float(at)) for at in range(12)]
    for request in requests:
        queue.add_request(request)
    for request in requests[:6]:
        request.arrival_time = 99.0
    for request in requests[::2]:
        queue.remove_request(request)
    assert sorted(ids(list(queue))) == sorted(ids(requests[1::2]))


def test_ten_thousand_that_cannot_run_are_looked_for_one_by_one() -> None:
    """The plan is asked once a scan and no more: what the scan passes over is in no plan."""
    queue = PlannedQueue()
    for at in range(10_000):
        queue.add_request(request := Request(f"r{at}"))
        queue.hold(request)
    asked: list[int] = []
    queue.follow(asked.append)
    for _ in range(3):
        pass_over(queue)
    assert len(asked) <= 3
    assert not queue.gone


def test_it_tells_who_came_and_went() -> None:
    a, b, c = map(Request, "abc")
    queue = PlannedQueue([a, b])
    assert queue.entered == queue.members == {"a": a, "b": b}
    queue.entered.clear()
    queue.prepend_requests([c])
    assert queue.pop_request() is c
    queue.remove_requests([b])
    assert (queue.members, queue.entered, queue.gone) == ({"a": a}, {}, {"c": c, "b": b})
    queue.prepend_request(b)
    assert (queue.entered, queue.gone) == ({"b": b}, {"c": c}), "nothing has happened to it"


def test_what_vllm_puts_at_the_head_is_planned_once_it_takes_part() -> None:
    a, b = map(Request, "ab")
    queue = PlannedQueue([a])
    queue.prepend_request(b)
    queue.follow(LazyPlan.of(Plan(["a", "b"])).at)
    assert ids(list(queue)) == ["b", "a"]
    queue.take_part(b)
    assert ids(list(queue)) == ["a", "b"]
    queue.follow(None)
    assert ids(list(queue)) == ["b", "a"]


def test_what_stays_at_the_head_waits_for_nobody_that_takes_part() -> None:
    stays, takes_part, c = map(Request, "stc")
    queue = PlannedQueue([c])
    for request in (stays, takes_part):
        queue.prepend_request(request)
    queue.take_part(takes_part)
    queue.follow(LazyPlan.of(Plan(["c", "t"])).at)
    assert ids(list(queue)) == ["s", "c", "t"]
    assert [queue.pop_request() for _ in range(3)] == [stays, c, takes_part]


def test_what_no_plan_knows_stands_behind_it() -> None:
    a, b, c = map(Request, "abc")
    queue = PlannedQueue([a, b])
    queue.follow(LazyPlan.of(Plan(["b", "gone", "a"])).at)
    queue.add_request(c)
    assert ids(list(queue)) == ["b", "a", "c"]
    assert not queue.overtook
    assert queue.pop_request() is b
    assert queue.overtook


def test_what_leaves_early_lets_those_behind_it_move_up() -> None:
    a, stays, c = map(Request, "asc")
    queue = PlannedQueue([a, stays, c])
    queue.keep_place(stays)
    queue.follow(LazyPlan.of(Plan(["c", "a"])).at)
    assert ids(list(queue)) == ["c", "s", "a"]
    queue.remove_request(a)
    assert ids(list(queue)) == ["s", "c"]


def test_none_is_lost_where_two_have_one_number() -> None:
    """What is put at the head gets a number that another may have, and both may keep their places later."""
    a, b, c, first, other = map(Request, "abcfo")
    queue = PlannedQueue([a, b, c])
    queue.follow(LazyPlan.of(Plan(["c"])).at)
    assert queue.pop_request() is c
    for request in (first, other):
        queue.prepend_request(request)
        queue.remove_request(b if request is first else a)
    for request in (first, other):
        queue.take_part(request)
        queue.keep_place(request)
    assert len({*queue}) == len(queue) == 2
    assert {queue.pop_request(), queue.pop_request()} == {first, other}


def test_an_empty_queue_says_so() -> None:
    for call in (PlannedQueue().peek_request, PlannedQueue().pop_request):
        with pytest.raises(IndexError, match="peek from an empty queue"):
            call()
    with pytest.raises(ValueError, match="not in"):
        PlannedQueue().remove_request(Request("a"))


def test_what_vllm_has_looked_at_is_what_it_takes_out() -> None:
    """It makes room in between, and what fails there may take the plan away."""
    a, b = map(Request, "ab")
    queue, answers = PlannedQueue([a, b]), iter(["b"])
    queue.follow(lambda place: next(answers, None))
    assert queue.peek_request() is b
    assert queue.pop_request() is b
    assert queue.pop_request() is a
