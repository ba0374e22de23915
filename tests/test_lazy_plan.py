"""Orders that are kept current and worked out on demand against orders made anew from everything."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.blocks import UNIT, Pool, World, chain
from support.queues import Scene, planner_of, scenes

from peek import InvalidKey, PeekConfig, PendingRequest, Planner
from peek.adapters.mirror import BlockMirror
from peek.config import PRESETS
from peek.planner import LazyPlan, Plan
from peek.planner.plan import ORDERED
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


def made_anew(side_planner: Planner, mirror: BlockMirror, now: float) -> tuple[list[str], Planner]:
    """What a planner that has never seen this queue before makes of it, and that planner."""
    fresh = Planner(INDEX, chained=True)
    for request in side_planner.tree.requests():
        key = side_planner.tree.key_of(request.request_id)
        fresh.add(
            PendingRequest(
                request.request_id,
                key,
                request.arrival_time,
                num_tokens=request.num_tokens,
                tail=request.tail,
            )
        )
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
            assert marks(planner) == marks(made_anew(planner, mirror, float(at))[1])


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


LOST = [("arrive", [0, 0, 0], 0, False), ("cache", [0, 0, 0], 0, True)]


@pytest.mark.parametrize("kind", [Told, Keeps])
@given(events=EVENTS)
@example([*LOST, ("evict", [0, 0, 0], 0, False), ("arrive", [0, 0, 0, 1], 0, True)])
@example([*LOST, ("evict", [0, 0], 0, False), ("arrive", [0, 1], 0, True)])
def test_keys_that_came_in_are_news_enough(
    kind: type[Told], events: Sequence[tuple[str, list[int], int, bool]]
) -> None:
    """What has gone is found where it was, by cursors that are good; nothing else is asked about."""
    planner, cache = Planner(INDEX), kind()
    waiting: dict[str, list[int]] = {}
    for at, (event, symbols, pick, plans) in enumerate(events):
        if event == "arrive":
            waiting[f"r{at}"] = symbols
            planner.add(PendingRequest(f"r{at}", symbols, float(at), num_tokens=len(symbols) + 1))
        elif event in ("abort", "admit") and waiting:
            name = sorted(waiting)[pick % len(waiting)]
            del waiting[name]
            planner.remove(name, event == "admit")
        elif event == "cache":
            cache.insert(symbols)
        elif event in ("evict", "replace"):
            cache.evict(symbols)
        if plans:
            now = at + 0.5
            lazy = list(planner.lazy_plan(cache, now))
            fresh = Planner(INDEX)
            for name, key in waiting.items():
                fresh.add(PendingRequest(name, key, float(name[1:]), num_tokens=len(key) + 1))
            fresh_cache = Told()
            fresh_cache.held = cache.held
            assert lazy == fresh.plan(fresh_cache, now)
            for name in waiting:
                assert planner.request(name).cached_len == fresh.request(name).cached_len
            assert marks(planner) == marks(
                fresh
            )  # not by a second walk here, which would end the first one's


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


@pytest.mark.parametrize("label", sorted(PRESETS))
@given(scene=scenes(max_size=6), gate=st.booleans())
def test_a_lazy_plan_is_the_plan(label: str, scene: Scene, gate: bool) -> None:
    config = PRESETS[label]
    plan = planner_of(scene.rows, config, in_flight_gate=gate).plan(scene.cache(), scene.now)
    lazy = planner_of(scene.rows, config, in_flight_gate=gate).lazy_plan(scene.cache(), scene.now)
    assert list(lazy) == plan
    assert (lazy.reason, lazy.stood_aside) == (plan.reason, plan.stood_aside)


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
