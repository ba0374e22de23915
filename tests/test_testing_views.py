"""`check_cache_view` must catch every view below, each wrong in one way; and pass the good ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from support.queues import Blocks

from peek.testing import NaiveCache, NaiveCacheView, Pages, check_cache_view, views
from peek.testing.scenes import cache_of
from peek.testing.twins import Place, common_length, longest

CACHED = [
    ("", (1, 2, 3, 4, 5, 6)), ("", (1, 2, 3, 7, 8)), ("", (1, 2)), ("", (9,) * 8), ("lora", (1, 2, 3, 4)),
]  # fmt: skip
KEYS = [list(symbols) for _, symbols in CACHED]
NAMES = ("", "lora")


class View:
    """A right view: a list of cached keys; a cursor is the place.  `CacheTree`, one node a symbol."""

    unit_tokens = 1

    def __init__(self) -> None:
        self.held: list[Place] = list(CACHED)
        self.ids: dict[Place, int] = {}

    def longest_match(self, key: list[int], namespace: str) -> int:
        return longest(self.held, (namespace, tuple(key)))

    def root(self, namespace: str) -> Any:
        return namespace, ()

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> Any:
        namespace, symbols = cursor
        path = (*symbols, *segment)
        matched = longest(self.held, (namespace, path))
        return matched - len(symbols), (namespace, path[:matched])

    def node_id(self, cursor: Any) -> Any:
        return self.ids.setdefault(cursor, len(self.ids) + 1)

    def parent_id(self, node_id: int) -> Any:
        namespace, symbols = next(place for place, known in self.ids.items() if known == node_id)
        return self.node_id((namespace, symbols[:-1])) if len(symbols) > 1 else 0


class ShortByOne(View):
    def advance(self, cursor: Any, segment: memoryview, offset: int) -> Any:
        matched, _ = super().advance(cursor, segment, offset)
        matched = max(0, matched - 1)
        return matched, (cursor[0], (*cursor[1], *segment[:matched]))


def wrong(name: str, **members: Any) -> type[View]:
    """A view with other members."""
    return type(name, (View,), members)


def answering(name: str, change: Callable[[int, Any], Any]) -> type[View]:
    """A view that changes the right answers of `advance`."""
    return wrong(name, advance=lambda self, *asked: change(*View.advance(self, *asked)))


TooMany = answering("TooMany", lambda matched, behind: (matched + 1, behind))
Negative = answering("Negative", lambda matched, behind: (matched or -1, behind))
CountsOnly = answering("CountsOnly", lambda matched, behind: matched)
Fractions = answering("Fractions", lambda matched, behind: (float(matched), behind))


class Raises(View):
    def advance(self, cursor: Any, segment: memoryview, offset: int) -> Any:
        answer = super().advance(cursor, segment, offset)
        if answer[0] == 0:
            raise KeyError(segment[0])
        return answer


FromTheRoot = wrong(
    "FromTheRoot", advance=lambda self, cursor, *asked: View.advance(self, self.root(cursor[0]), *asked)
)


class ByOffset(View):
    """Compares with the longest cached key, wherever the cursor is."""

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> Any:
        tail = self.held[0][1][offset:]
        matched = longest([("", tail)], ("", tuple(segment)))
        return matched, (cursor[0], (*cursor[1], *segment[:matched]))


class MovesItsCursor(View):
    def root(self, namespace: str) -> Any:
        return [namespace, ()]

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> Any:
        matched, cursor[:] = super().advance(tuple(cursor), segment, offset)
        return matched, cursor

    def node_id(self, cursor: Any) -> Any:
        return super().node_id(tuple(cursor))


OneNamespace = wrong("OneNamespace", root=lambda self, namespace: ("", ()))


class Learns(View):
    """Inserts what it is asked for."""

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> Any:
        answer = super().advance(cursor, segment, offset)
        self.held.append((cursor[0], (*cursor[1], *segment)))
        return answer


class Forgets(View):
    """Evicts what was looked at, but for the answer of its own match."""

    def node_id(self, cursor: Any) -> Any:
        self.held = [place for place in self.held if place[1][:4] != (9,) * 4]
        return super().node_id(cursor)


OfTheFirstSegment = wrong(
    "OfTheFirstSegment",
    advance=lambda self, cursor, segment, offset: View.advance(self, cursor, segment[:4], offset),
)
"""Never looks further than four symbols at a time."""
TwoTokens = wrong("TwoTokens", unit_tokens=2)
NoUnit = wrong("NoUnit", unit_tokens=0)


class WholeBlocks(View):
    """Matches whole blocks of four tokens, and does not say so."""

    def longest_match(self, key: list[int], namespace: str) -> int:
        return super().longest_match(key, namespace) // 4 * 4

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> Any:
        matched, (namespace, path) = super().advance(cursor, segment, offset)
        matched = max(0, (offset + matched) // 4 * 4 - offset)
        return matched, (namespace, path[: offset + matched])


NodeZero = wrong("NodeZero", node_id=lambda self, cursor: View.node_id(self, cursor) - 1)
NamedNodes = wrong("NamedNodes", node_id=lambda self, cursor: str(View.node_id(self, cursor)))
Ring = wrong("Ring", parent_id=lambda self, node_id: View.parent_id(self, node_id) or node_id)
Orphans = wrong("Orphans", parent_id=lambda self, node_id: 0)
"""Says that every node hangs below a root."""


OneNode = wrong("OneNode", node_id=lambda self, cursor: 7, parent_id=lambda self, node_id: 0)


class ByDepth(View):
    """Its nodes are named by their depth, on whatever branch."""

    def node_id(self, cursor: Any) -> Any:
        return 1 + len(cursor[1])

    def parent_id(self, node_id: int) -> Any:
        return node_id - 1 if node_id > 2 else 0


class NewNodes(View):
    count = 0

    def node_id(self, cursor: Any) -> Any:
        self.count += 1
        return self.count


class NoNodes:
    unit_tokens = 1
    root = View.root
    advance = View.advance


MUTANTS: dict[type[View], str] = {
    ShortByOne: "cached tokens by the view",
    TooMany: "symbols; need 0 to",
    Negative: "answered -1 symbols; need 0 to ",
    CountsOnly: r"answered \d; need \(matched symbols, cursor\)",
    Fractions: r"answered \d\.0 symbols; need an integer",
    Raises: "raised KeyError",
    FromTheRoot: "cached tokens by the view|is once",
    ByOffset: "cached tokens by the view",
    MovesItsCursor: "it must leave the cursor and the cache as they are",
    OneNamespace: "cached tokens by the view|two branches",
    Learns: "it must leave the cursor and the cache as they are|reading changed the cache",
    Forgets: r"reading changed the cache: \[9 x8\] matched 8 tokens, now 0",
    OfTheFirstSegment: "cached tokens by the view",
    TwoTokens: "r0 has 2 cached tokens by the view, 1 by longest_match",
    WholeBlocks: "by longest_match|block_symbols",
    NodeZero: "is 0, the id of no node",
    OneNode: "node_id is 7 at .* and at .*, two branches",
    ByDepth: r"node_id is \d+ at .* and at .*, two branches",
    NewNodes: "is once",
    NamedNodes: "'str' object cannot be interpreted as an integer",
    Ring: "never to 0",
    Orphans: "parent_id leads from",
    NoUnit: "unit_tokens is 0",
}
"""What is wrong, and a part of what is said about it."""


def explained(make: Callable[[], View]) -> str:
    view = make()
    with pytest.raises(AssertionError) as caught:
        check_cache_view(view, view.longest_match, prompts=KEYS, namespaces=NAMES, examples=300)
    return str(caught.value)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_bad_view_is_caught(mutant: type[View]) -> None:
    message = explained(mutant)
    assert re.search(MUTANTS[mutant], message)
    if mutant is not Learns:  # every look changes it, so nothing smaller fails in the same way
        assert sum(": [" in line for line in message.splitlines()) <= 2, "few waiting requests"


def test_a_missing_member_is_named() -> None:
    with pytest.raises(AssertionError, match="NoNodes is no CacheView: it lacks node_id"):
        check_cache_view(NoNodes(), View().longest_match)  # type: ignore[arg-type]


def test_the_message_shows_the_smallest_tree() -> None:
    assert explained(ShortByOne).splitlines() == [
        "r0 has 0 cached tokens by the view, 1 by longest_match",
        "  waiting:",
        "    r0: [1]",
        "  edges of their tree end at symbols 1",
    ]


# -- good ones ------------------------------------------------------------------------------------------


def test_a_good_view_passes() -> None:
    view = View()
    check_cache_view(view, view.longest_match, prompts=KEYS, namespaces=NAMES, examples=60)


@pytest.mark.parametrize("chained", [False, True])
def test_a_view_may_know_no_absent_symbols(chained: bool) -> None:
    view = View()
    check_cache_view(view, view.longest_match, prompts=KEYS, absent=(), chained=chained, examples=30)
    with pytest.raises(AssertionError, match="by longest_match"):
        check_cache_view(ShortByOne(), view.longest_match, prompts=KEYS, absent=(), chained=chained)


def test_what_is_cached_is_found_by_asking() -> None:
    view, bad = View(), ShortByOne()
    check_cache_view(view, view.longest_match, examples=20)
    with pytest.raises(AssertionError, match="cached tokens by the view"):
        check_cache_view(bad, bad.longest_match)


def test_the_longest_keys_are_found_by_asking_and_none_of_their_beginnings() -> None:
    held = [(1, 2, 3), (1, 5), (7,)]

    def longest_match(key: Sequence[int], namespace: str) -> int:
        return max(common_length(key, each) for each in held)

    assert sorted(views._explored(longest_match, [""])) == held


def test_of_an_empty_cache_nothing_is_found_by_asking() -> None:
    with pytest.raises(AssertionError, match="nothing that was asked for is cached"):
        check_cache_view(View(), lambda key, namespace: 0)
    assert views._explored(lambda key, namespace: 0, [""]) == [], "no symbol is longer than nothing"


def test_a_check_that_asks_for_nothing_cached_is_no_check() -> None:
    view = View()
    with pytest.raises(AssertionError, match="nothing that was asked for is cached"):
        check_cache_view(view, view.longest_match, prompts=[[4, 5, 6]])


class AnySymbol(Pages):
    """Knows of every symbol what it stands for."""

    def tokens(self, symbols: Iterable[int]) -> list[int]:
        known = range(len(self._contents))
        pages = [
            super(AnySymbol, self).tokens([s]) if s in known else [-s] * self.page_tokens for s in symbols
        ]
        return [token for page in pages for token in page]


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("chained", [False, True])
def test_the_naive_twins_pass(page: int, chained: bool) -> None:
    cache, pages = NaiveCache(page), AnySymbol(page, chained)
    for namespace, symbols in CACHED[:4]:
        cache.add(symbols * 4, namespace)
    keys = [pages.key(symbols * 4, namespace) for namespace, symbols in CACHED[:4]]

    def match(key: list[int], namespace: str) -> int:
        return cache.longest_prefix(pages.tokens(key), namespace)

    check_cache_view(NaiveCacheView(cache, pages), match, prompts=keys, chained=chained, examples=40)


def test_the_pending_tree_as_a_cache_and_a_block_pool_pass() -> None:
    def match(key: list[int], namespace: str) -> int:
        return longest(CACHED, (namespace, tuple(key)))

    for view in (cache_of(CACHED), Blocks(CACHED)):
        check_cache_view(view, match, prompts=KEYS, namespaces=NAMES, examples=40)


class HalfWorth(View):
    """Cached on the host: every symbol beyond the second saves half a token."""

    def worth(self, cursor: Any, matched: int) -> int:
        return min(matched, 2) + max(matched - 2, 0) // 2


def test_what_a_token_is_worth_is_the_engines_to_say() -> None:
    view = HalfWorth()
    with pytest.raises(AssertionError, match="cached tokens by the view"):
        check_cache_view(view, view.longest_match, prompts=KEYS)
    check_cache_view(
        view, lambda key, ns: view.worth(None, view.longest_match(key, ns)), prompts=KEYS, examples=20
    )


# -- a cache that changes ---------------------------------------------------------------------------------


class Changing(View):
    """Without a version: every answer is of now."""

    def change(self) -> None:
        """Forget the first key, or learn it again."""
        self.held = CACHED[1:] if self.held == CACHED else list(CACHED)


class Honest(Changing):
    version = 0

    def change(self) -> None:
        super().change()
        self.version += 1


class Stale(Changing):
    version = 0


class OfYesterday(Changing):
    """Answers from what was cached when it was made."""

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> Any:
        now, self.held = self.held, list(CACHED)
        answer = super().advance(cursor, segment, offset)
        self.held = now
        return answer


def checked_while_it_changes(view: Any, **options: Any) -> None:
    check_cache_view(view, view.longest_match, prompts=KEYS, change=view.change, examples=5, **options)


@pytest.mark.parametrize("view", [Changing, Honest])
def test_a_cache_that_changes_passes(view: type[View]) -> None:
    checked_while_it_changes(view())


def test_a_version_that_stands_still_is_caught() -> None:
    with pytest.raises(AssertionError) as caught:
        checked_while_it_changes(Stale())
    assert str(caught.value) == (
        "version is 0 before and after a change that moved the match of [1, 2, 3, 4, 5, 6] from 6 to 3 tokens"
    )


def test_a_view_of_what_was_is_caught() -> None:
    with pytest.raises(AssertionError, match="after a change of the cache the view gives"):
        checked_while_it_changes(OfYesterday())


class Tabled(Changing):
    """Knows only what is cached now: a node that has gone is a `KeyError`."""

    asked = "node_id"

    def gone(self, place: Place) -> bool:
        return longest(self.held, place) < len(place[1])

    def node_id(self, cursor: Any) -> Any:
        if self.asked == "node_id" and self.gone(cursor):
            raise KeyError(cursor)
        return super().node_id(cursor)

    def parent_id(self, node_id: int) -> Any:
        if self.gone(next(place for place, known in self.ids.items() if known == node_id)):
            raise KeyError(node_id)
        return super().parent_id(node_id)


@pytest.mark.parametrize("asked", ["node_id", "parent_id"])
def test_a_node_that_has_gone_may_still_be_asked_about(asked: str) -> None:
    view = Tabled()
    view.asked = asked
    with pytest.raises(AssertionError, match="node_id or parent_id raised KeyError"):
        checked_while_it_changes(view)
    check_cache_view(view, view.longest_match, prompts=KEYS, change=view.change, examples=5, chained=True)


def test_a_change_that_changes_nothing_proves_nothing() -> None:
    view = View()
    with pytest.raises(AssertionError, match="moved the match of no prompt"):
        check_cache_view(view, view.longest_match, prompts=KEYS, change=int, examples=5)


class Declared(WholeBlocks):
    """The same cache, whose view says so: the walk asks across the ends of edges."""

    block_symbols = 4


def test_a_cache_of_whole_blocks_is_right_once_declared() -> None:
    view = Declared()
    check_cache_view(view, view.longest_match, prompts=KEYS, namespaces=NAMES, examples=300)


def test_keys_are_looked_for_in_each_namespace() -> None:
    class BlindInOne(View):
        def __init__(self) -> None:
            super().__init__()
            self.held = [*(("", (a, b)) for a in range(4) for b in range(4)), ("lora", (99, 98))]

        def advance(self, cursor: Any, segment: memoryview, offset: int) -> Any:
            return (0, cursor) if cursor[0] else super().advance(cursor, segment, offset)

    view = BlindInOne()
    with pytest.raises(AssertionError, match="r0 has 0 cached tokens by the view, 1 by longest_match"):
        check_cache_view(view, view.longest_match, namespaces=NAMES, examples=100)
