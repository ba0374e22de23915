"""Cache views that answer what no cache can: a named error, and afterwards everything is as it should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.walks import Prompt, cache_of, prompts, queue_of

from peek import DualWalk, InvalidCache, PendingRequest, PendingTree, Planner, PlannerBusy
from peek.eviction.index import MarkIndex
from peek.request import MAX_TOKENS
from peek.simulation.caches import RadixCache
from peek.testing.twins import NaiveCache, NaiveCacheView, Pages
from peek.trie.dual_walk import unit_tokens_of
from peek.trie.keys import pack


class Wrong:
    """Passes on to a view, except that the n-th call of one method answers something else."""

    def __init__(self, view: Any, method: str, answer: Callable[..., Any], after: int = 0) -> None:
        self.unit_tokens = view.unit_tokens
        self.block_symbols = 1
        self.version = 1
        self._view = view
        self._method = method
        self._answer = answer
        self.left = after

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._view, name)
        if name != self._method:
            return value

        def wrong(*args: Any) -> Any:
            self.left -= 1
            return self._answer(*args) if self.left < 0 else value(*args)

        return wrong


def view_of(*cached: list[int]) -> NaiveCacheView:
    cache = NaiveCache()
    for tokens in cached:
        cache.add(tokens)
    return NaiveCacheView(cache, PAGES)


PAGES = Pages(1)
PROMPTS = {"a": [1, 2, 3, 4], "b": [1, 2, 5], "c": [6, 7]}
MATCH = {"a": 3, "b": 2, "c": 1}
for _tokens in PROMPTS.values():
    PAGES.key(_tokens)  # whichever test comes first, these are its symbols 0 to 6


def tree_of_prompts() -> PendingTree:
    tree = PendingTree()
    for request_id, tokens in PROMPTS.items():
        tree.insert(request_id, PAGES.key(tokens))
    return tree


def usual_view() -> NaiveCacheView:
    return view_of([1, 2, 3, 9], [6])


def raising(*args: Any) -> Any:
    raise RuntimeError("the engine went away")


WRONG_STEPS: dict[str, tuple[Any, str]] = {
    "below 0": ((-1, None), "answered -1 for a segment of"),
    "beyond the segment": ((9, None), "answered 9 for a segment of"),
    "beyond 64 bits": ((2**70, None), f"answered is {2**70}, beyond"),
    "numpy, below 0": ((np.int64(-3), None), "answered -3"),
    "a float": ((1.0, None), r"advance\(...\) answered is 1.0, a float"),
    "a word": (("2", None), "'2', a str"),
    "nothing": ((None, None), "None, a NoneType"),
    "no pair": (2, r"advance\(...\) answered 2; need a tuple"),
    "None": (None, "answered None"),
    "three": ((1, None, None), "need a tuple"),
    "a list": ([1, None], "need a tuple"),
}


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("case", list(WRONG_STEPS))
def test_an_impossible_answer_of_advance_is_named(case: str, after: int) -> None:
    answer, message = WRONG_STEPS[case]
    tree = tree_of_prompts()
    walk = DualWalk(tree)
    view = Wrong(usual_view(), "advance", lambda *_: answer, after)
    with pytest.raises(InvalidCache, match=message):
        walk.walk(view)
    assert_recovered(tree, walk, view)


def assert_recovered(tree: PendingTree, walk: DualWalk, view: Wrong) -> None:
    """The same view answers rightly from here on, and has the version that it had when it failed."""
    view.left = 1 << 30
    tree.check()
    assert walk.match(view) == MATCH
    index, fresh = MarkIndex(tree), MarkIndex(tree)
    index.refresh(view, walk.epoch)
    other = DualWalk(tree)
    other.walk(usual_view())
    fresh.refresh(usual_view(), other.epoch)
    assert [index.find(i) for i in range(6)] == [fresh.find(i) for i in range(6)]
    assert any(fresh.find(i) for i in range(6))


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("method", ["advance", "root"])
def test_what_a_view_raises_is_passed_on(method: str, after: int) -> None:
    tree = tree_of_prompts()
    tree.insert("other", [1], "lora-1")
    tree.insert("another", [1], "lora-2")
    walk = DualWalk(tree)
    view = Wrong(usual_view(), method, raising, after)
    with pytest.raises(RuntimeError, match="the engine went away"):
        walk.walk(view)
    tree.remove("other")
    tree.remove("another")
    assert_recovered(tree, walk, view)


@given(
    waiting=st.lists(prompts(1, 1), min_size=1, max_size=8),
    cached=st.lists(prompts(1), max_size=4),
    data=st.data(),
)
def test_the_walk_after_a_broken_one_is_whole(
    waiting: list[Prompt], cached: list[Prompt], data: st.DataObject
) -> None:
    queue = queue_of(1, False, waiting)
    cache = cache_of(1, cached)
    view = Wrong(NaiveCacheView(cache, queue.pages), "advance", raising, data.draw(st.integers(0, 6)))
    if data.draw(st.booleans(), label="a whole walk before"):
        left, view.left = view.left, 1 << 30
        queue.walk.walk(view)
        view.left = left
        queue.insert(data.draw(prompts(1, 1)))
        view.version += data.draw(st.integers(0, 1))
    try:
        queue.walk.walk(view)
    except RuntimeError:
        assert queue.walk.epoch == 0
        index = MarkIndex(queue.tree)
        index.refresh(view, queue.walk.epoch)
        assert not any(index.find(i) for i in range(20))
    view.left = 1 << 30
    if data.draw(st.booleans(), label="a departure"):
        queue.remove(data.draw(st.sampled_from(list(queue.prompts))))
    assert queue.walk.match(view) == queue.expected(cache)


WRONG_UNITS: list[Any] = [0, -1, 1.0, "16", None, 2**31, 2**70, np.int64(0)]


@pytest.mark.parametrize("name", ["unit_tokens", "block_symbols"])
@pytest.mark.parametrize("value", WRONG_UNITS, ids=repr)
def test_a_size_that_is_no_positive_number_is_named(name: str, value: Any) -> None:
    view = usual_view()
    setattr(view, name, value)
    if name == "block_symbols" and value is None:
        assert DualWalk(tree_of_prompts()).match(view) == MATCH  # as if it were not there
        return
    with pytest.raises(InvalidCache, match=f"{name} is"):
        DualWalk(tree_of_prompts()).walk(view)


def test_a_view_without_unit_tokens_is_none() -> None:
    view = usual_view()
    del view.unit_tokens
    with pytest.raises(InvalidCache, match="unit_tokens is None"):
        DualWalk(tree_of_prompts()).walk(view)


class NumpyView:
    """All numbers that it gives are numpy's."""

    def __init__(self, view: NaiveCacheView) -> None:
        self.unit_tokens = np.int32(2)
        self.block_symbols = np.uint8(1)
        self.version: Any = np.int64(7)
        self._view = view

    def root(self, namespace: str) -> Any:
        return self._view.root(namespace)

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> tuple[Any, Any]:
        matched, cursor = self._view.advance(cursor, segment, offset)
        return np.int64(matched), cursor

    def worth(self, cursor: Any, matched: int) -> Any:
        return np.uint16(2 * matched)

    def node_id(self, cursor: Any) -> Any:
        return np.int64(self._view.node_id(cursor))

    def parent_id(self, node_id: int) -> Any:
        return np.int32(self._view.parent_id(node_id))


def test_numpy_numbers_are_numbers() -> None:
    tree, twin = tree_of_prompts(), tree_of_prompts()
    walk, twin_walk = DualWalk(tree), DualWalk(twin)
    numpy_view, view = NumpyView(usual_view()), usual_view()
    assert walk.match(numpy_view) == {request_id: 2 * n for request_id, n in twin_walk.match(view).items()}
    assert all(type(request.cached_len) is int for request in tree.requests())
    assert unit_tokens_of(numpy_view) == 2
    assert type(unit_tokens_of(numpy_view)) is int
    index, twin_index = MarkIndex(tree), MarkIndex(twin)
    index.refresh(numpy_view, walk.epoch)
    twin_index.refresh(view, twin_walk.epoch)
    for i in range(6):
        found, expected = index.find(i), twin_index.find(i)
        assert (found is None) == (expected is None)
        assert found is None or (found.depth, found.count) == (expected.depth, expected.count)


def test_a_version_of_numpys_tells_what_stands() -> None:
    walk, view = DualWalk(tree_of_prompts()), NumpyView(usual_view())
    asked = []
    for step in (0, 0, 1):
        view.version += step
        walk.walk(view)
        asked.append(walk.advances > 0)
    assert asked == [True, False, True]
    planner = Planner(plan_lasts_s=9.0, unit_tokens=2, strict=True)
    for place, (name, tokens) in enumerate(PROMPTS.items()):
        planner.add(PendingRequest(name, PAGES.key(tokens), float(place)))
    plan = planner.plan(view, 5.0)
    assert planner.plan(view, 6.0) is plan
    view.version += 1
    assert planner.plan(view, 6.0) is not plan


def test_a_prompt_has_no_more_tokens_than_can_be_counted() -> None:
    view, planner = usual_view(), Planner()
    view.unit_tokens = 2**31 - 1
    planner.add(PendingRequest("long", [6], 0.0, tail=MAX_TOKENS))
    planner.plan(view, 1.0)
    assert MAX_TOKENS - view.unit_tokens < planner.request("long").num_tokens <= MAX_TOKENS


@pytest.mark.parametrize("worth", [-1, 5, 2**70, 1.5, None], ids=repr)
def test_an_impossible_worth_is_named(worth: Any) -> None:
    tree = tree_of_prompts()
    walk = DualWalk(tree)
    view = usual_view()
    view.worth = lambda cursor, matched: worth
    with pytest.raises(InvalidCache, match=r"worth\(cursor, "):
        walk.walk(view)
    del view.worth
    assert walk.match(view) == MATCH


# -- demand marks -------------------------------------------------------------------------------------

WRONG_PARENTS: dict[str, tuple[Callable[[int], Any], str]] = {
    "itself": (lambda node_id: node_id, "no root above"),
    "a circle": (lambda node_id: 100 + (node_id + 1) % 3, "no root above"),
    "ever more": (lambda node_id: node_id + 1, "no root above"),
    "a word": (lambda node_id: "root", r"parent_id\(\d+\) is 'root', a str"),
    "nothing": (lambda node_id: None, "None, a NoneType"),
    "raises": (raising, "the engine went away"),
}


@pytest.mark.parametrize("case", list(WRONG_PARENTS))
def test_parents_that_lead_nowhere_are_named(case: str) -> None:
    answer, message = WRONG_PARENTS[case]
    tree = tree_of_prompts()
    walk, index = DualWalk(tree), MarkIndex(tree)
    view = Wrong(view_of([1, 2, 3, 9], [1, 8], [6]), "parent_id", answer)
    walk.walk(view)
    for _ in range(2):
        with pytest.raises((InvalidCache, RuntimeError), match=message):
            index.refresh(view, walk.epoch)
        assert not any(index.find(i) for i in range(200))
    view.left = 1 << 30
    index.refresh(view, walk.epoch)
    assert any(index.find(i) for i in range(200))


def test_a_match_inside_an_edge_keeps_its_marks_when_the_edge_is_split() -> None:
    """Also when it falls into more parts than the match had symbols."""
    cache, held = RadixCache(), pack(list(range(1, 41)))
    cache.insert(held, "")
    tree = PendingTree()
    tree.insert("r", pack([1, 2, 3, 99]))
    walk, index = DualWalk(tree), MarkIndex(tree)
    walk.walk(cache)
    for length in (30, 20, 15, 10, 5, 3):
        first = cache.match(held, "", length)
    index.refresh(cache, walk.epoch)
    assert index.find(first.uid) is tree.leaf("r")


@pytest.mark.parametrize("answer", [None, "1", 1.0], ids=repr)
def test_a_node_id_that_is_no_number_is_named(answer: Any) -> None:
    tree = tree_of_prompts()
    walk, index = DualWalk(tree), MarkIndex(tree)
    view = Wrong(usual_view(), "node_id", lambda _: answer)
    walk.walk(view)
    with pytest.raises(InvalidCache, match=r"node_id\(cursor\) is"):
        index.refresh(view, walk.epoch)


def test_before_the_first_walk_there_are_no_marks() -> None:
    tree = tree_of_prompts()
    walk, index = DualWalk(tree), MarkIndex(tree)
    index.refresh(usual_view(), walk.epoch)
    assert not any(index.find(i) for i in range(6))


# -- one call at a time -------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[PendingTree], Any]] = {
    "insert": lambda tree: tree.insert("new", [1]),
    "remove": lambda tree: tree.remove("a"),
    "extend": lambda tree: tree.extend("a", PAGES.key([1, 2, 3, 4, 5])),
    "refresh": lambda tree: tree.refresh(32),
    "walk": lambda tree: DualWalk(tree).walk(usual_view()),
    "enter": lambda tree: tree.enter("a call of mine"),
}
CALLS = ["advance", "root", "node_id", "parent_id"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("change", list(CHANGES))
def test_a_view_that_changes_the_tree_is_stopped(change: str, call: str) -> None:
    tree = tree_of_prompts()
    walk, index = DualWalk(tree), MarkIndex(tree)
    view = Wrong(view_of([1, 2, 3, 9], [1, 8], [6]), call, lambda *_: CHANGES[change](tree))
    before = tree.version

    def walk_and_mark() -> None:
        walk.walk(view)
        index.refresh(view, walk.epoch)

    with pytest.raises(PlannerBusy, match=r"was called while (DualWalk\.walk|MarkIndex\.refresh) is under"):
        walk_and_mark()
    assert tree.version == before
    tree.check()
    CHANGES[change](tree)  # the tree is free again


def test_a_removal_that_is_refused_forgets_nothing() -> None:
    planner = Planner()
    planner.add(PendingRequest("a", [1, 2, 3], 0.0))

    class Meddler(NumpyView):
        def __getattribute__(self, name: str) -> Any:
            if name == "unit_tokens":
                with pytest.raises(PlannerBusy):
                    planner.remove("a")
            return super().__getattribute__(name)

    planner.plan(Meddler(usual_view()), 1.0)
    assert planner.request("a").num_tokens == 6


@pytest.mark.parametrize("call", ["advance", "root"])
def test_a_view_may_read_the_tree(call: str) -> None:
    tree = tree_of_prompts()
    seen: list[Any] = []
    view = usual_view()
    real = getattr(view, call)

    def reading(*args: Any) -> Any:
        seen.append((len(tree), tree.scores(), tree.clusters(), tree.pending_count([1]), tree.key_of("a")))
        return real(*args)

    setattr(view, call, reading)
    assert DualWalk(tree).match(view) == MATCH
    assert seen


def test_a_key_whose_reading_changes_the_tree_is_stopped() -> None:
    tree = tree_of_prompts()

    class Symbol:
        def __index__(self) -> int:
            tree.remove("a")
            return 5

    with pytest.raises((PlannerBusy, ValueError)):
        tree.insert("new", [1, Symbol()])
    tree.check()
    assert "a" in tree
    assert "new" not in tree
    tree.remove("a")


def test_who_holds_a_tree_walks_and_refreshes_it() -> None:
    tree = tree_of_prompts()
    walk = DualWalk(tree)
    tree.enter("a plan")
    with pytest.raises(PlannerBusy, match=r"PendingTree\.add was called while a plan is under way"):
        tree.insert("new", [1])
    walk.walk_held(usual_view(), 1)
    tree.refresh_held(32)
    tree.leave()
    assert {request.request_id: request.cached_len for request in tree.requests()} == MATCH
    tree.insert("new", [1])


@pytest.mark.parametrize("name", ["insert", "remove", "extend"])
def test_a_refused_change_frees_the_tree(name: str) -> None:
    tree = tree_of_prompts()
    wrong: dict[str, Callable[[], Any]] = {
        "insert": lambda: tree.insert("a", [1]),
        "remove": lambda: tree.remove("nobody"),
        "extend": lambda: tree.extend("a", [9]),
    }
    with pytest.raises((ValueError, KeyError)):
        wrong[name]()
    tree.insert("new", [1])
    tree.check()


WRONG_NEWS: dict[str, tuple[bool, Any, str]] = {
    "a symbol that is none": (True, ["5"], "told is '5', a str"),
    "a float": (True, [5.0], "told is 5.0, a float"),
    "no symbols": (True, 5, r"changed_since\(...\) answered 5; need a list"),
    "no keys": (False, 5, r"inserted_since\(...\) answered 5; need a list"),
    "no pair": (False, [5], r"inserted_since\(...\) told 5; need a tuple"),
    "no namespace": (False, [(None, b"\1\0\0\0")], "told .None, .*; need a tuple"),
    "unpacked symbols": (False, [("", [1])], r"told \('', \[1\]\); need a tuple"),
    "a part of a symbol": (False, [("", b"\1\0\0")], "need a tuple .namespace, bytes of int32 symbols"),
}


class Telling(NaiveCacheView):
    """A view that tells `news` of what has changed since its last version."""

    def __init__(self, chained: bool, news: Any) -> None:
        super().__init__(NaiveCache(), PAGES)
        self.block_symbols, self.version = 1, 1
        setattr(self, "changed_since" if chained else "inserted_since", lambda version: news)


def walked_twice(chained: bool, news: Any) -> None:
    tree = PendingTree(chained)
    tree.insert("a", [1, 2, 5])
    walk, view = DualWalk(tree), Telling(chained, news)
    for version in (1, 2, 3):
        view.version = version
        walk.walk(view)


@pytest.mark.parametrize("case", list(WRONG_NEWS))
def test_impossible_news_of_a_cache_is_named(case: str) -> None:
    chained, news, message = WRONG_NEWS[case]
    with pytest.raises(InvalidCache, match=message):
        walked_twice(chained, news)


def test_news_of_numpys_symbols_are_news() -> None:
    walked_twice(True, np.array([1, 5]))
