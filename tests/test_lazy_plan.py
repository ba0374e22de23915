"""Orders that are kept current and worked out on demand against orders made anew from everything."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.blocks import UNIT, Pool, World, chain
from support.queues import NOW, Arrival, Scene, cache_of, planner_of, scenes

from peek import Cycle, DualWalk, InvalidKey, PeekConfig, PendingRequest, PendingTree, Planner
from peek.adapters.mirror import BlockMirror
from peek.config import PRESETS
from peek.planner import LazyPlan, Plan
from peek.planner.plan import ORDERED
from peek.policy.default.frontier import Below, Waiting
from peek.policy.default.policy import PeekPolicy
from peek.testing import check_policy
from peek.trie.keys import pack
from peek.trie.node import Node
from peek.trie.pending_tree import AT_MOST

INDEX = PeekConfig.from_label("peek")
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive"] * 4 + ["abort", "admit", "cache", "cache", "evict", "replace"]),
        st.lists(st.integers(0, 2), min_size=1, max_size=6),
        st.integers(0, 20),
        st.booleans(),
    ),
    max_size=40,
)


class AsksAnew:
    """The same answers, from a cache that says nothing of its changes."""

    def __init__(self, mirror: BlockMirror) -> None:
        self.unit_tokens = mirror.unit_tokens
        self.block_symbols = 1
        self.root = mirror.root
        self.advance = mirror.advance
        self.node_id = mirror.node_id


def anew(planner: Planner) -> Planner:
    """A planner that has never seen this queue before."""
    fresh = Planner(INDEX, chained=planner.tree.chained)
    for it in planner.requests():
        key = planner.key_of(it.request_id)
        fresh.add(PendingRequest(it.request_id, key, it.arrival_time, "", it.num_tokens, it.tail))
    return fresh


def made_anew(planner: Planner, mirror: BlockMirror, now: float) -> tuple[list[str], Planner]:
    """What such a planner makes of the queue, and that planner."""
    fresh = anew(planner)
    return list(fresh.plan(AsksAnew(mirror), now)), fresh


@given(events=EVENTS, asked=st.integers(0, 8))
def test_what_is_kept_equals_what_is_made_anew(
    events: Sequence[tuple[str, list[int], int, bool]], asked: int
) -> None:
    """Whatever happens between two plans, and however many of them were asked for."""
    world = World("peek")
    planner, mirror = world.whole.planner, world.whole.mirror
    for at, (event, blocks, pick, plans) in enumerate(events):
        world.happen(at, event, chain(blocks), pick)
        if plans:
            now = at + 0.5
            lazy = planner.lazy_plan(mirror, now)
            first = [name for place in range(asked) if (name := lazy.at(place)) is not None]
            expected, _ = made_anew(planner, mirror, now)
            assert first == expected[:asked]
            assert list(lazy) == expected
            for name, hashes in world.prompts.items():
                cached = planner.request(name).cached_len
                assert cached == world.pool.cached_blocks(hashes) * UNIT
            planner.tree.check()


@given(events=EVENTS)
def test_marks_are_those_of_a_walk_made_anew(events: Sequence[tuple[str, list[int], int, bool]]) -> None:
    """Node by node, so that demand for what is cached is the same, too."""
    world = World("peek")
    planner, mirror = world.whole.planner, world.whole.mirror
    for at, (event, blocks, pick, plans) in enumerate(events):
        world.happen(at, event, chain(blocks), pick)
        if plans:
            planner.lazy_plan(mirror, float(at))
            fresh = made_anew(planner, mirror, float(at))[1]
            assert marks(planner) == marks(fresh)
            assert frontier(planner) == frontier(fresh)


class Told:
    """A cache of single symbols that says which keys were put into it, and not what has gone."""

    unit_tokens = 1
    block_symbols = 1

    def __init__(self) -> None:
        self.held: set[tuple[int, ...]] = {()}
        self.gone = 0
        self.keys: list[tuple[str, bytes]] = []

    @property
    def version(self) -> tuple[int, int]:
        return len(self.keys), len(self.held)

    def inserted_since(self, version: tuple[int, int]) -> list[tuple[str, bytes]]:
        return self.keys[version[0] :]

    def insert(self, symbols: list[int]) -> None:
        self.keys.append(("", pack(symbols)))
        self.held.update(tuple(symbols[:end]) for end in range(len(symbols) + 1))

    def evict(self, symbols: list[int]) -> None:
        """This prefix and all that begins with it."""
        prefix = tuple(symbols)
        gone = {path for path in self.held if path[: len(prefix)] == prefix}
        self.held -= gone
        self.gone += len(gone)

    def root(self, namespace: str) -> tuple[int, ...]:
        return ()

    def advance(self, cursor: tuple[int, ...], segment: memoryview, offset: int) -> tuple[int, object]:
        assert cursor in self.held, "a cursor in what has gone"
        done = 0
        while done < len(segment) and (*cursor, segment[done]) in self.held:
            cursor = (*cursor, segment[done])
            done += 1
        return done, cursor

    def node_id(self, cursor: object) -> int:
        return 0


class Keeps(Told):
    """It also says whether anything has gone."""

    def keeps_since(self, version: tuple[int, int]) -> bool:
        return self.gone == version[1]

    @property
    def version(self) -> tuple[int, int]:
        return len(self.keys), self.gone


class Untold(Told):
    """It says that its answers may differ, and not which."""

    inserted_since = None  # type: ignore[assignment]

    def advance(self, cursor: tuple[int, ...], segment: memoryview, offset: int) -> tuple[int, object]:
        return super().advance(cursor if cursor in self.held else (), segment, offset)


class Silent(Untold):
    """It says nothing at all."""

    version = None  # type: ignore[assignment]


class Pairs(Silent):
    """It holds whole pairs of symbols."""

    block_symbols = 2

    def advance(self, cursor: tuple[int, ...], segment: memoryview, offset: int) -> tuple[int, object]:
        matched = super().advance(cursor, segment, offset)[0] // 2 * 2
        return matched, (*cursor, *segment[:matched])


class OnHost(Told):
    """Its entries may move to the host, where they are worth half; that is a change of its version."""

    moved = 0

    @property
    def version(self) -> tuple[int, int]:
        return len(self.keys), self.moved

    def worth(self, cursor: tuple[int, ...], matched: int) -> int:
        return matched // 2 if self.moved else matched


def test_what_has_moved_to_the_host_is_worth_less_to_all_that_wait() -> None:
    tree, cache = PendingTree(), OnHost()
    walk = DualWalk(tree)
    cache.insert([1, 2, 3, 4])
    for name, key in {"whole": [1, 2], "below": [1, 2, 3, 4, 5], "beside": [1, 2, 9]}.items():
        tree.insert(name, key)
    walk.walk(cache)
    assert walk.match(cache) == {"whole": 2, "below": 4, "beside": 2}
    cache.moved = 1
    assert walk.match(cache) == {"whole": 1, "below": 2, "beside": 1}


def test_a_walk_that_begins_the_journal_anew_loses_no_arrival() -> None:
    """What has gone is noted before arrivals are read; 50 notes are more than the journal has room for."""
    tree, cache = PendingTree(), Told()
    walk = DualWalk(tree)
    for i in range(50):
        cache.insert([i, 1000])
        tree.insert(f"r{i}", [i, 1000, 5])
    cache.insert([77, 78, 79])
    walk.walk(cache)
    walk.walk(cache)
    journal = tree.journal()
    while len(journal.nodes) < 4096 + 4 * len(tree) - 30:
        tree.insert("passing", [500, len(journal.nodes)])
        tree.remove("passing")
    walk.walk(cache)
    volume = journal.volume
    for i in range(50):
        cache.evict([i])
    tree.insert("new", [77, 78, 79, 80])
    assert walk.match(cache)["new"] == 3
    assert journal.volume == volume + 1


LOST = [("arrive", [0, 0, 0], 0, False), ("cache", [0, 0, 0], 0, True)]


@pytest.mark.parametrize("kind", [Told, Keeps, Untold, Silent, Pairs])
@given(events=EVENTS)
@example([*LOST, ("evict", [0, 0, 0], 0, False), ("arrive", [0, 0, 0, 1], 0, True)])
@example([*LOST, ("evict", [0, 0], 0, False), ("arrive", [0, 1], 0, True)])
@example([("arrive", [0, 1], 0, False), *LOST, ("evict", [0], 0, True)])
def test_what_is_kept_of_a_cache_equals_what_is_made_anew(
    kind: type[Told], events: Sequence[tuple[str, list[int], int, bool]]
) -> None:
    """What has gone is found where it was, by cursors that are good.  Untold, everything is asked again."""
    planner, cache = Planner(INDEX), kind()
    waiting: list[str] = []
    for at, (event, symbols, pick, plans) in enumerate(events):
        if event == "arrive":
            waiting.append(f"r{at}")
            planner.add(PendingRequest(f"r{at}", symbols, float(at), num_tokens=len(symbols) + 1))
        elif event in ("abort", "admit") and waiting:
            planner.remove(waiting.pop(pick % len(waiting)), event == "admit")
        elif event == "cache":
            cache.insert(symbols)
        elif event in ("evict", "replace"):
            cache.evict(symbols)
        if plans:
            now = at + 0.5
            lazy = list(planner.lazy_plan(cache, now))
            fresh = anew(planner)
            fresh_cache = kind()
            fresh_cache.held = cache.held
            assert lazy == fresh.plan(fresh_cache, now)
            for name in waiting:
                assert planner.request(name).cached_len == fresh.request(name).cached_len
            # not by a second walk here, which would end the first one's
            assert kind is Pairs or marks(planner) == marks(fresh)
            assert frontier(planner) == frontier(fresh)


def test_a_cache_that_tells_nothing_makes_nothing_anew_where_it_stands() -> None:
    """All is asked for again, and only what has changed is worked out again."""
    planner, cache = Planner(INDEX), Silent()
    for i in range(20):
        planner.add(PendingRequest(f"r{i}", [i, i, 99], float(i)))
    planner.plan(cache, 30.0)
    policy = planner.policy
    assert isinstance(policy, PeekPolicy)
    assert policy._frontier is not None
    start = policy._frontier._start
    cache.insert([7, 7])
    planner.plan(cache, 31.0)
    assert planner.stats.cache_calls == 40
    assert policy._frontier._start == start
    assert planner.request("r7").cached_len == 2


@pytest.mark.parametrize("kind", [Told, Keeps])
def test_while_a_cache_stands_only_new_requests_are_asked_for(kind: type[Told]) -> None:
    planner, cache = Planner(INDEX), kind()
    for i in range(20):
        cache.insert([i, i])
        planner.add(PendingRequest(f"r{i}", [i, i, 99], float(i)))
    assert len(list(planner.lazy_plan(cache, 30.0))) == 20
    before = planner.stats.cache_calls
    planner.add(PendingRequest("new", [7, 7, 98], 31.0))
    assert len(list(planner.lazy_plan(cache, 32.0))) == 21
    assert planner.request("new").cached_len == 2
    assert 0 < planner.stats.cache_calls - before <= 3


def marks(planner: Planner) -> dict[bytes, int]:
    """Symbols that the cache follows, by path, for the nodes that it follows beyond their parents."""
    found: dict[bytes, int] = {}
    for _, root in planner.tree.roots():
        stack = [root]
        paths = {root.uid: b""}
        while stack:
            node = stack.pop()
            if node.parent is not None:
                paths[node.uid] = paths[node.parent.uid] + node.edge
                if node.walk_matched > node.parent.depth:
                    found[paths[node.uid]] = node.walk_matched
            if node.walk_epoch == planner.tree.epoch and node.walk_matched == node.depth:
                kid = node.kid
                while kid is not None:
                    stack.append(kid)
                    kid = kid.next
    return found


def frontier(planner: Planner) -> tuple[set[tuple[str, bytes]], set[tuple[object, ...]]]:
    """The cached nodes, and what competes with its tokens of work, by paths."""
    policy = planner.policy
    assert isinstance(policy, PeekPolicy)
    kept = policy._frontier
    assert kept is not None

    def path(node: Node) -> tuple[str, bytes]:
        edges = []
        at: Node | None = node
        while at is not None and at.parent is not None:
            edges.append(at.edge)
            at = at.parent
        return next(name for name, root in planner.tree.roots() if root is at), b"".join(reversed(edges))

    pieces: set[tuple[object, ...]] = set()
    for place, piece in enumerate(kept.pieces):
        assert piece.place == place
        if isinstance(piece, Below):
            pieces.add((*path(piece.node), piece.work, piece.tokens))
        else:
            assert isinstance(piece, Waiting)
            pieces.add((piece.terminator.request.request_id, piece.work, piece.length))
    assert [group.group for group in kept.groups] == list(range(len(kept.groups)))
    return {path(group.node) for group in kept.groups}, pieces


@pytest.mark.parametrize("tail", [2, 5000])
def test_an_arrival_that_splits_what_the_cache_holds_while_its_end_goes(tail: int) -> None:
    shared = [1] * 10
    keys = {"big": shared + [2] * tail, "small": shared + [3] * 100, "other": shared + [4] * 200}
    cache = Keeps()
    cache.insert(keys["big"])
    planner = Planner(INDEX)
    for name, key in keys.items():
        planner.add(PendingRequest(name, key, 0.0))
    assert next(iter(planner.lazy_plan(cache, 10.0))) == "big"
    cache.evict(keys["big"][:11])
    planner.add(PendingRequest("new", [*shared[:5], 9], 0.0))
    fresh = anew(planner)
    assert list(planner.lazy_plan(cache, 11.0)) == list(fresh.plan(cache, 11.0))
    assert frontier(planner) == frontier(fresh)


class Blocks:
    """A cache of chained blocks that tells which of them have come or gone."""

    unit_tokens = 16
    block_symbols = 1

    def __init__(self, held: Sequence[int]) -> None:
        self.held = set(held)
        self.version = 0
        self.log: list[int] = []
        self.fails = False

    def evict(self, symbols: Sequence[int]) -> None:
        self.held -= set(symbols)
        self.log += symbols
        self.version = len(self.log)

    def changed_since(self, version: int) -> Sequence[int]:
        if self.fails:
            raise OSError("the view is away")
        return tuple(self.log[version:])

    def root(self, namespace: str) -> object:
        return None

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        done = 0
        while done < len(segment) and segment[done] in self.held:
            done += 1
        return done, segment[done - 1] if done else cursor

    def node_id(self, cursor: object) -> int:
        assert isinstance(cursor, int)
        return cursor


def test_two_arrivals_that_split_an_edge_whose_end_goes() -> None:
    big = list(range(1, 1001))
    cache = Blocks(big)
    planner = Planner(INDEX, chained=True)
    for name, key in (("big", big), ("other", list(range(9001, 9121)))):
        planner.add(PendingRequest(name, key, 0.0))
    assert list(planner.lazy_plan(cache, 10.0)) == ["big", "other"]
    cache.evict(big[:2:-1])
    for name, key in (("s1", [1, 2, *range(5001, 5101)]), ("s2", [1, 2, 3, 4, 5, *range(6001, 6101)])):
        planner.add(PendingRequest(name, key, 0.0))
    fresh = anew(planner)
    assert list(planner.lazy_plan(cache, 11.0)) == list(fresh.plan(Blocks(cache.held), 11.0))
    assert frontier(planner) == frontier(fresh)


def test_a_view_that_fails_to_tell_its_changes_is_asked_for_everything() -> None:
    cache = Blocks([1, 2, 3])
    planner = Planner(INDEX, chained=True)
    planner.add(PendingRequest("a", [1, 9], 0.0))
    planner.plan(cache, 1.0)
    planner.add(PendingRequest("b", [1, 2, 3], 0.0))
    cache.fails = True
    with pytest.raises(OSError, match="away"):
        planner.plan(cache, 2.0)
    cache.fails = False
    planner.plan(cache, 3.0)
    assert planner.request("b").cached_len == 48


SYMBOLS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(
    lambda pieces: [x for x in pieces for _ in range(8)]
)
TENANTS = st.sampled_from(["a", "b"])
ARRIVALS = st.tuples(SYMBOLS, TENANTS, st.integers(0, 40), st.integers(0, 2))
SETTINGS = [
    "peek",
    "peek:mean_bias=0.5",
    "peek:tenant_lead=64,fair_share=0.5,grace_tokens=32",
    "peek:ttft_target_s=2,objective=target",
    "clpm+gm+dl+pe",  # works out the whole queue
]


class LazyPlans(RuleBasedStateMachine):
    """Two planners with one history; one makes whole plans, the other lazy ones that are read in pieces.

    A lazy plan is the whole one, as of the moment when it was made.  Once a request has come or gone, nothing
    that had not been asked for follows, unless the policy worked out the whole queue.  A held request is in
    no plan, so its end changes none.  Turns among tenants heed at once what a tenant is charged meanwhile;
    where there are turns, only what the plan has named before is admitted.
    """

    @initialize(label=st.sampled_from(SETTINGS), gated=st.booleans(), kind=st.sampled_from([Told, Keeps]))
    def begin(self, label: str, gated: bool, kind: type[Told]) -> None:
        config = PeekConfig.from_label(label)
        self.lazy, self.whole = (Planner(config, in_flight_gate=gated, strict=True) for _ in range(2))
        self.cache = kind()
        self.now = 0.0
        self.names: list[str] = []
        self.admitted: list[str] = []
        self.plan = LazyPlan.of(Plan())
        self.expected: list[str] = []
        self.read = 0
        self.is_over = False
        self.takes_turns = "tenant_lead" in label
        self.is_charged = False
        self.named: list[str] = []

    @property
    def both(self) -> tuple[Planner, Planner]:
        return self.lazy, self.whole

    @rule(rows=st.lists(ARRIVALS, min_size=1, max_size=6))
    def arrive(self, rows: list[tuple[list[int], str, int, int]]) -> None:
        for symbols, tenant, age, head in rows:
            name = f"r{len(self.names)}"
            self.names.append(name)
            for planner in self.both:
                tokens, at = len(symbols) + 1, self.now - age
                planner.add(PendingRequest(name, symbols, at, "", tokens, tenant=tenant, heads=(head,)))
        self.is_over = True

    def waiting(self, pick: int) -> str:
        present = [name for name in self.names if name in self.lazy]
        return present[pick % len(present)]

    @precondition(lambda self: len(self.lazy))
    @rule(pick=st.integers(0, 9), uncached=st.none() | st.integers(0, 60), admitted=st.booleans())
    def leave(self, pick: int, uncached: int | None, admitted: bool) -> None:
        name = self.waiting(pick)
        self.is_over |= name not in self.lazy.held
        admitted &= not self.takes_turns or name in self.named
        costs = [planner.remove(name, admitted, uncached if admitted else None) for planner in self.both]
        assert costs[0] == costs[1]
        self.is_charged |= self.takes_turns and admitted
        if admitted:
            self.admitted.append(name)

    @precondition(lambda self: len(self.lazy))
    @rule(pick=st.integers(0, 9), symbols=SYMBOLS)
    def hold_or_resume(self, pick: int, symbols: list[int]) -> None:
        name = self.waiting(pick)
        for planner in self.both:
            if name in planner.held:
                planner.resume(name, symbols)
            else:
                planner.hold(name)
        self.is_over = True

    @precondition(lambda self: self.admitted)
    @rule(pick=st.integers(0, 9), tokens=st.integers(0, 300), ends=st.booleans(), tenant=TENANTS)
    def go_on(self, pick: int, tokens: int, ends: bool, tenant: str) -> None:
        name = self.admitted[pick % len(self.admitted)]
        self.is_charged |= self.takes_turns and tokens > 0
        for planner in self.both:
            planner.prefilled(name)
            planner.generated(tenant, tokens)
            if ends:
                planner.answered(tokens, name)

    @rule(symbols=SYMBOLS, comes=st.booleans())
    def change_cache(self, symbols: list[int], comes: bool) -> None:
        if comes:
            self.cache.insert(symbols)
        else:
            self.cache.evict(symbols)

    @rule(wait_s=st.sampled_from([0.0, 1.0, 30.0]), count=st.integers(0, 3))
    def make_plan(self, wait_s: float, count: int) -> None:
        self.now += wait_s
        self.plan, plan = self.lazy.lazy_plan(self.cache, self.now), self.whole.plan(self.cache, self.now)
        self.expected, self.read, self.is_over, self.is_charged = list(plan), 0, False, False
        assert (self.plan.reason, self.plan.stood_aside) == (plan.reason, plan.stood_aside)
        for name in plan:
            assert self.lazy.request(name).cached_len == self.whole.request(name).cached_len
        self.ask(count)

    @rule(count=st.integers(1, 3))
    def ask(self, count: int) -> None:
        wanted = [self.plan.at(place) for place in range(self.read + count)]
        found = [name for name in wanted if name is not None]
        if not self.is_charged:
            assert found == self.expected[: len(found)]
            self.named = found
        lost = self.is_over and self.plan._source is not None
        assert len(found) == (self.read if lost else min(len(wanted), len(self.expected)))
        self.read = len(found)

    @rule()
    def ask_for_all(self) -> None:
        self.ask(len(self.expected))

    @invariant()
    def trees_are_sound(self) -> None:
        for planner in self.both:
            planner.tree.check()
            assert len(planner) == len(self.lazy)


TestLazyPlans = LazyPlans.TestCase


@pytest.mark.parametrize("label", sorted(PRESETS))
@given(scene=scenes(max_size=6), gate=st.booleans())
def test_a_lazy_plan_is_the_plan(label: str, scene: Scene, gate: bool) -> None:
    config = PRESETS[label]
    plan = planner_of(scene.rows, config, in_flight_gate=gate).plan(scene.cache(), scene.now)
    lazy = planner_of(scene.rows, config, in_flight_gate=gate).lazy_plan(scene.cache(), scene.now)
    assert list(lazy) == plan
    assert (lazy.reason, lazy.stood_aside) == (plan.reason, plan.stood_aside)


@given(rnd=st.randoms(use_true_random=False), waiting=st.integers(60, 200))
def test_a_lazy_plan_of_many_pieces_is_the_plan(rnd: Random, waiting: int) -> None:
    """At first only the best 64 pieces are sorted, then all."""
    rows = [
        Arrival(
            f"r{i}", (rnd.randrange(waiting), i), float(rnd.randrange(9)), num_tokens=rnd.choice([2, 9, 400])
        )
        for i in range(waiting)
    ]
    cache = cache_of([("", row.symbols) for row in rows if rnd.random() < 0.3])
    plan = planner_of(rows, INDEX, strict=True).plan(cache, NOW)
    lazy = planner_of(rows, INDEX, strict=True).lazy_plan(cache, NOW)
    assert list(lazy) == plan


def test_only_a_few_are_worked_out() -> None:
    """A thousand wait and two are asked for: the order of the others has not been looked at."""
    planner, pool = Planner(INDEX, chained=True), Pool()
    mirror = BlockMirror(UNIT, pool.is_cached)
    for i in range(1000):
        hashes = chain([i % 7, i % 251, 2])
        planner.add(PendingRequest(f"r{i}", mirror.intern_all(hashes, 3), float(i), num_tokens=49))
    lazy = planner.lazy_plan(mirror, 2000.0)
    assert [lazy.at(0), lazy.at(1)] == planner.plan(mirror, 2000.0)[:2]
    planner.remove("r999")
    assert (lazy.at(1), lazy.at(2)) == (list(lazy)[1], None), "who has not been asked for is gone"
    assert len(list(lazy)) == 2


def test_a_plan_makes_no_object_for_each_namespace() -> None:
    """Each user has a cache salt: so many new tuples a step kept the garbage collector busy in the engine."""
    planner, mirror = Planner(INDEX, chained=True), BlockMirror(UNIT, Pool().is_cached)
    for i in range(6000):
        planner.add(PendingRequest(f"r{i}", mirror.alone(f"r{i}"), float(i), f"salt {i}", num_tokens=49))
    planner.lazy_plan(mirror, 6000.0).at(0)
    gc.collect()
    runs = gc.get_stats()[0]["collections"]
    for step in range(10):
        planner.lazy_plan(mirror, 6001.0 + step).at(0)
    assert gc.get_stats()[0]["collections"] - runs < 10


def test_an_order_of_ones_own_counts_where_the_base_class_has_a_stream() -> None:
    """Engines ask for lazy plans: a subclass of the default policy would never be heard there."""

    class NewestFirst(PeekPolicy):
        def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
            return queue[::-1]

    class Streamed(NewestFirst):
        def stream(self, cycle: Cycle) -> Iterator[PendingRequest]:
            return iter(cycle.tree.requests()[::-1])

    for policy in (NewestFirst(), Streamed()):
        planner = planner_of([Arrival(f"r{i}", (1, i), float(i)) for i in range(4)], policy=policy)
        assert list(planner.lazy_plan(cache_of([]), NOW)) == ["r3", "r2", "r1", "r0"]
    check_policy(NewestFirst, stateful=True, examples=10)


def test_unchanged_it_is_the_same_object() -> None:
    planner = Planner(INDEX, chained=True, plan_lasts_s=60.0)
    mirror = BlockMirror(UNIT, Pool().is_cached)
    planner.add(PendingRequest("a", mirror.intern_all(chain([1]), 1), 0.0))
    lazy = planner.lazy_plan(mirror, 1.0)
    assert planner.lazy_plan(mirror, 2.0) is lazy
    assert planner.plan(mirror, 2.0) == ["a"]
    assert isinstance(planner.lazy_plan(mirror, 2.0), LazyPlan)
    assert isinstance(planner.plan(mirror, 2.0), Plan)


def test_no_plan_stands_while_the_clock_is_behind_it() -> None:
    """The clock was set back: the older request is the one that has waited, whatever stood before."""
    for lasts_s in (0.0, 60.0):
        planner = Planner(INDEX, chained=True, plan_lasts_s=lasts_s)
        mirror = BlockMirror(UNIT, Pool().is_cached)
        planner.add(PendingRequest("a", mirror.intern_all(chain([1]), 1), 0.0))
        plan = planner.plan(mirror, 1000.0)
        assert planner.plan(mirror, 10.0) is not plan


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidKey, match="now is nan, not a finite number"):
        Planner(INDEX).lazy_plan(BlockMirror(1, Pool().is_cached), float("nan"))


def test_a_journal_that_nobody_reads_is_bounded() -> None:
    """With all seats taken requests come and go, and nobody plans."""
    planner = planner_of((), INDEX)
    journal = planner.tree.journal()
    node = planner.tree.root("") or Node(b"", None, 1, 0, 0)
    volume = journal.volume
    for _ in range(2 * AT_MOST):
        journal.note(node)
    assert len(journal.nodes) <= AT_MOST
    assert journal.volume > volume, "readers start afresh"


def test_an_order_that_was_worked_out_says_why() -> None:
    assert LazyPlan.of(Plan(["a", "b"])).reason == ORDERED
    assert LazyPlan.of(Plan(["a", "b"])).at(2) is None
