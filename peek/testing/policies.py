"""`check_policy`: the properties that the planner counts on, whatever a policy thinks a good order is.

`order(queue, cycle)` must have these properties:

- **a permutation**: the answer is a new list with every request of the queue once, and nothing else;
- **nothing is touched**: the list, the tree, the cycle and the requests stay as they were, but for `section`;
- **equal arguments, equal orders**: for a copy of the policy, for other request ids, for a tree with another
  history, and whatever an earlier cycle left in `section` and `lane`;
- **it reads only what it says it reads**: without `reads_cache` the signals of the cache may be stale, and
  without `reads_tree` those of the tree;
- **no memory**: earlier orders make no difference.  With `stateful=True`, two copies with one history agree.
  Each hears of every arrival and departure (`arrived`, `left`) as from a planner;
- **its stream**, if it has one, is the same order, and **a bound on waiting**, if one is given, holds.
"""

from __future__ import annotations

import copy
import inspect
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from peek.errors import a_kind
from peek.policy.base import WITHDRAWN, AdmissionPolicy, RequestStream, has_stream
from peek.request import PendingRequest
from peek.testing.hypotheses import for_all, need_hypothesis, st
from peek.testing.scenes import (
    SHOWN,
    Arrival,
    History,
    Prepared,
    Replay,
    Scene,
    ids,
    show_arrival,
    show_history,
    show_scene,
    told,
)
from peek.testing.strategies import PIECES, histories, queues, scenes
from peek.testing.twins import Place, longest
from peek.trie.node import Node, next_preorder

Factory = Callable[[], AdmissionPolicy]

_KEPT = [
    name
    for name, member in inspect.getmembers(PendingRequest, inspect.isdatadescriptor)
    if not name.startswith("_") and name != "section"
]
"""The attributes of a request that a policy must leave alone."""


def check_policy(
    policy: AdmissionPolicy | Factory,
    *,
    stateful: bool = False,
    bound: Bound | None = None,
    examples: int | None = None,
) -> None:
    """Look for a queue that the policy orders wrongly; the module lists the properties that are checked.

    Args:
        policy: the policy, which is copied and not changed; or its class, or any function without arguments
            that makes a new one at each call.
        stateful: whether the policy means to remember earlier cycles.
        bound: the longest that a request may wait, in seconds, on an engine that computes 10 tokens a second
            and one prompt at a time: `bound(ahead_s, largest_s)`.  `ahead_s` is how long the engine needs for
            the requests before it when it arrives, `largest_s` for the largest prompt.  First come, first
            served keeps `lambda ahead_s, largest_s: ahead_s`.  Besides drawn queues, two floods of three
            minutes are played, so a bound of more than that proves nothing.
        examples: number of queues to try, and of histories; None takes it from hypothesis' settings profile.

    Raises `AssertionError` with the smallest failing queue, `TypeError` if `policy` is no policy and makes
    none, and `MissingHypothesis` if hypothesis is not installed.
    """
    need_hypothesis()
    make = _factory(policy)
    any_scene = scenes(0, under_way=True)
    cases = st.builds(_Case, any_scene, any_scene, st.integers(0, 500), st.booleans())
    for_all(cases, lambda case: _check_case(make, case, stateful), examples)
    _check_case(make, _Case(_crowd(150), _crowd(20), 100, True), stateful)
    for_all(histories(), lambda history: _check_history(make, history, stateful), examples)
    if bound is not None:
        for_all(queues(2, 9), lambda queue: check_bound(make(), queue, bound), examples)
        for flood in floods():
            check_bound(make(), flood, bound)


def _crowd(size: int) -> Scene:
    """A queue longer than drawn ones, to show a policy's limits on length."""
    rows = []
    for i in range(size):
        symbols = PIECES[i % 7] + PIECES[i * i % 5] + PIECES[i % 3]
        rows.append(Arrival(f"r{i}", symbols, i // 3 * 0.5, "lora" * (i % 4 == 0), tenant=f"t{i % 2}"))
    cached = tuple((row.namespace, row.symbols[:40]) for row in rows[::17])
    return Scene(tuple(rows), cached, now=size / 4.0)


# -- one queue ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """A queue to order, and another one that was ordered before it."""

    scene: Scene
    before: Scene
    work_done: int
    defers_siblings: bool

    def prepare(self, policy: AdmissionPolicy) -> Prepared:
        return told(policy, self.scene.prepare(policy.theta, self.work_done, self.defers_siblings))


def _check_case(make: Factory, case: _Case, stateful: bool) -> None:
    policy = make()
    subject = _Subject(type(policy).__name__, show_scene(case.scene))
    expected = subject.order(policy, case.prepare(policy))
    twin, streams = make(), make()
    again = subject.order(twin, case.prepare(twin))
    subject.same(expected, again, "a copy of the policy orders the same queue differently")
    streamed = subject.stream(streams, case.prepare(streams))
    if streamed is not None:  # engines take it in place of `order`
        subject.same(expected, streamed, "its stream is another order")
    _check_names(subject, make(), case, expected)
    _check_reads(subject, make, case, expected)
    if not stateful:
        used = make()
        before = _Subject(subject.name, show_scene(case.before))
        earlier = told(used, case.before.prepare(used.theta))
        before.order(used, earlier)
        for request in earlier.queue:
            used.left(request, WITHDRAWN, 0)
        again = subject.order(used, case.prepare(used))
        subject.same(expected, again, f"it remembers what it ordered before:\n{show_scene(case.before)}")


def _check_names(subject: _Subject, policy: AdmissionPolicy, case: _Case, expected: list[str]) -> None:
    """Try other ids, which sort the other way round."""
    n = len(case.scene.rows)
    names = {row.request_id: f"other-{n - i}" for i, row in enumerate(case.scene.rows)}
    rows = tuple(replace(row, request_id=names[row.request_id]) for row in case.scene.rows)
    renamed = replace(case, scene=replace(case.scene, rows=rows))
    again = subject.order(policy, renamed.prepare(policy))
    subject.same([names[name] for name in expected], again, f"it depends on request ids; with {names}")


def _leave(i: int, request: PendingRequest) -> None:
    request.section, request.lane = 2 - i % 3, i % 2


def _spoil_cache(i: int, request: PendingRequest) -> None:
    request.cached_len, request.coming_len = 64 - 7 * i % 64, 11 * i % 64


def _spoil_tree(i: int, request: PendingRequest) -> None:
    request.score, request.head = 100 - 31 * i % 100, i // 2
    request.cluster_id, request.cluster_depth, request.cluster_size = i % 3, 5 * i % 7, 1 + 3 * i % 4


def _check_reads(subject: _Subject, make: Factory, case: _Case, expected: list[str]) -> None:
    """Spoil what the policy should not read."""
    first = make()
    for is_read, spoil, fault in (
        (False, _leave, "it reads section or lane as the cycle before left them"),
        (first.reads_cache, _spoil_cache, "it says reads_cache=False and reads cached_len or coming_len"),
        (first.reads_tree, _spoil_tree, "it says reads_tree=False and reads score, head or cluster"),
    ):
        if not is_read:
            policy = make()
            prepared = case.prepare(policy)
            for i, request in enumerate(prepared.queue):
                spoil(i, request)
            subject.same(expected, subject.order(policy, prepared), fault)


def _check_history(make: Factory, history: History, stateful: bool) -> None:
    policy, twin, streaming = make(), make(), make()
    replays = [Replay(history.unit, each) for each in (policy, twin, streaming)]
    replay, beside, streamed = replays
    subject = _Subject(type(policy).__name__, show_history(history))
    for step in history.steps:
        for each in replays:
            subject.tell(each.arrive, step.arrivals)
            if step.withdrawn:
                subject.tell(each.hold)
        if stateful:
            expected = subject.order(twin, beside.prepare(step.cached, step.now, policy.theta))
        else:
            fresh = make()
            anew = replay.scene(step.cached, step.now).prepare(policy.theta, replay.work_done)
            expected = subject.order(fresh, told(fresh, anew))
        order = subject.order(policy, replay.prepare(step.cached, step.now, policy.theta))
        cause = "two copies of the policy with one history disagree" if stateful else _TREE
        if order != expected and not stateful:
            fresh = make()
            anew = told(fresh, replay.prepare(step.cached, step.now, fresh.theta))
            if subject.order(fresh, anew) == expected:
                cause = "it remembers earlier cycles"
        subject.same(expected, order, f"{cause}; at {step.now:g}")
        prepared = streamed.prepare(step.cached, step.now, policy.theta)
        names = subject.stream(streaming, prepared)
        if names is None:
            subject.order(streaming, prepared)
        else:
            subject.same(order, names, f"its stream is another order; at {step.now:g}")
        for each in replays:
            for request_id in order[: step.admitted]:
                subject.tell(each.admit, request_id)
            subject.tell(each.withdraw, step.withdrawn)


_TREE = "it depends on how the tree came about (ids of tree nodes, the order of children)"

# -- one call -----------------------------------------------------------------------------------------


class _Subject:
    """Calls `order`, checks what it did, and words the faults."""

    def __init__(self, name: str, circumstances: str) -> None:
        self.name = name
        self._circumstances = circumstances

    def fail(self, fault: str) -> AssertionError:
        return AssertionError(f"{self.name}: {fault}\n{self._circumstances}")

    def same(self, expected: list[str], order: list[str], fault: str) -> None:
        if order != expected:
            raise self.fail(f"{fault}\n  once {', '.join(expected)}\n  then {', '.join(order)}")

    def tell(self, event: Callable[..., object], *args: object) -> None:
        """Let the policy hear of an event."""
        try:
            event(*args)
        except Exception as error:
            raise self._raised("arrived, left, generated or answered", error) from error

    def order(self, policy: AdmissionPolicy, prepared: Prepared) -> list[str]:
        """The ids in the policy's order, after every check that one call allows."""
        with self._called("order", prepared):
            answer: object = policy.order(prepared.queue, prepared.cycle)
        return ids(self._permutation("order", answer, prepared.queue))

    def stream(self, policy: AdmissionPolicy, prepared: Prepared) -> list[str] | None:
        """The ids of the policy's stream; None if it has none."""
        if not has_stream(policy):
            return None
        with self._called("stream", prepared):
            stream = policy.stream(prepared.cycle)
            if stream is None:
                return None
            take = stream.next if isinstance(stream, RequestStream) else partial(next, iter(stream), None)
            found = list(islice(iter(take, None), len(prepared.queue) + 1))
        return ids(self._permutation("stream", found, prepared.queue))

    @contextmanager
    def _called(self, hook: str, prepared: Prepared) -> Iterator[None]:
        """Check that a call raises nothing, and touches neither the list nor the requests nor the cycle."""
        queue, waiting = prepared.queue, list(prepared.queue)
        before = [_attributes(request) for request in waiting]
        circumstances = _cycle_facts(prepared)
        try:
            yield
        except Exception as error:
            raise self._raised(hook, error) from error
        if len(queue) != len(waiting) or any(a is not b for a, b in zip(queue, waiting, strict=True)):
            raise self.fail(f"{hook} changed the list it was given; sort a copy")
        for request, was in zip(waiting, before, strict=True):
            now = _attributes(request)
            for name, value in was.items():
                if now[name] != value:
                    raise self.fail(f"{hook} changed {name} of a request from {value!r} to {now[name]!r}")
        if _cycle_facts(prepared) != circumstances:
            raise self.fail(f"{hook} changed the cycle or its tree")

    def _raised(self, hook: str, error: Exception) -> AssertionError:
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        return self.fail(f"{hook} raised {what}")

    def _permutation(self, hook: str, answer: object, queue: list[PendingRequest]) -> list[PendingRequest]:
        if not isinstance(answer, list):
            raise self.fail(f"{hook} returned {a_kind(answer)}, not a list of requests")
        if answer is queue:
            raise self.fail("order returned the very list it was given; return a new one")
        ours = {id(request) for request in queue}
        seen: set[int] = set()
        for entry in answer:
            if id(entry) not in ours:
                raise self.fail(f"{hook} returned {entry!r}, which is no request of the queue")
            if id(entry) in seen:
                raise self.fail(f"{hook} returned {entry.request_id} twice")
            seen.add(id(entry))
        lost = [request.request_id for request in queue if id(request) not in seen]
        if lost:
            raise self.fail(f"{hook} lost {', '.join(lost)}")
        return answer


def _attributes(request: PendingRequest) -> dict[str, object]:
    return {name: getattr(request, name) for name in _KEPT}


def _cycle_facts(prepared: Prepared) -> tuple[object, ...]:
    cycle = prepared.cycle
    marks = []
    for _, root in cycle.tree.roots():
        node: Node | None = root
        while node is not None:
            marks.append((node.uid, node.count, node.depth, node.walk_matched, node.walk_epoch))
            node = next_preorder(node)
    facts = (cycle.tree.version, cycle.now, cycle.unit_tokens, cycle.work_done, cycle.defers_siblings)
    return tuple(marks), *facts


def _factory(policy: AdmissionPolicy | Factory) -> Factory:
    make = partial(_copied, policy) if isinstance(policy, AdmissionPolicy) else policy
    if not callable(make):
        raise TypeError(f"check_policy needs a policy or something that makes one, not {policy!r}")
    made = make(), make()
    for one in made:
        if not isinstance(one, AdmissionPolicy):
            raise TypeError(f"{policy!r} made {one!r}, which is not an AdmissionPolicy")
        if not hasattr(one, "theta"):
            raise AssertionError(f"{type(one).__name__}.__init__ did not call super().__init__()")
    if made[0] is made[1]:
        raise TypeError(f"{policy!r} made the same policy twice; give the policy itself, or make a new one")
    return make


def _copied(policy: AdmissionPolicy) -> AdmissionPolicy:
    try:
        return copy.deepcopy(policy)
    except Exception as error:  # compiled, some of the library's own parts cannot be copied
        name = type(policy).__name__
        raise TypeError(f"{name} cannot be copied ({error}): give its class, or a function") from error


TOKENS_PER_S = 10.0

Bound = Callable[[float, float], float]
"""`bound(ahead_s, largest_s)`: the longest wait in seconds, see `check_policy`."""


def _seconds(row: Arrival, cached: list[Place]) -> float:
    """Seconds that the engine takes to compute a prompt."""
    return (row.tokens() - longest(cached, row.place)) / TOKENS_PER_S


FLOOD_S = 180.0


def floods() -> list[list[Arrival]]:
    """Two queues in which one request is old and others keep the engine busy for `FLOOD_S`.

    In the first the others are cheap and have a cached prefix, and the old one is costly.  In the second the
    others are costly and share nothing, and all but one token of the old one is cached.
    """
    prefix = (1,) * 64
    return [_flood((2,) * 100, prefix, 20), _flood((*prefix, 2), (), 100)]


def _flood(old: tuple[int, ...], prefix: tuple[int, ...], tokens: int) -> list[Arrival]:
    """Requests of `prefix` and `tokens` of their own; they come a little faster than the engine computes."""
    every_s = 0.95 * tokens / TOKENS_PER_S
    return [
        Arrival("first", (1,) * 64),
        Arrival("old", old, 0.1),
        *(
            Arrival(f"r{i}", prefix + (100 + i,) * tokens, 0.2 + i * every_s)
            for i in range(int(FLOOD_S / every_s))
        ),
    ]


def check_bound(policy: AdmissionPolicy, queue: Sequence[Arrival], bound: Bound) -> None:
    """Serve all of `queue`, which is in arrival order; `AssertionError` if a request waits too long.

    Whenever the engine is free it computes the first prompt of the order, and all that it computed is cached.
    """
    replay, waiting, cached = Replay(policy=policy), dict[str, Arrival](), list[Place]()
    ahead_s: dict[str, float] = {}  # by request: seconds for the requests before it when it arrived
    clock = 0.0
    largest_s = max(_seconds(row, cached) for row in queue)
    coming = deque(queue)
    while coming or waiting:
        while coming and (not waiting or coming[0].arrival_time <= clock):
            row = coming.popleft()
            busy = max(0.0, clock - row.arrival_time)
            clock = max(clock, row.arrival_time)
            ahead_s[row.request_id] = busy + sum(_seconds(each, cached) for each in waiting.values())
            waiting[row.request_id] = row
            replay.arrive([row])
        first = replay.prepare(tuple(cached), clock, policy.theta).order(policy)[0]
        row = waiting.pop(first)
        waited, allowed = clock - row.arrival_time, bound(ahead_s[first], largest_s)
        if not waited <= allowed + 1e-6:  # also true if the bound is NaN
            lines = [
                f"{type(policy).__name__}: {first} waited {waited:g} s, the bound allows {allowed:g} s",
                f"  engine: {TOKENS_PER_S:g} tokens a second, one prompt at a time, forgets nothing",
                *(f"    {show_arrival(each)}" for each in queue[:SHOWN]),
                *([f"    and {len(queue) - SHOWN} more"] if len(queue) > SHOWN else []),
            ]
            raise AssertionError("\n".join(lines))
        clock += replay.admit(first) / TOKENS_PER_S
        cached.append(row.place)
