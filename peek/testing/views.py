"""`check_cache_view`: a cache view against the engine's own longest-prefix match.

A view must have the members of `CacheView` and these properties:

- **exact**: walked together with any pending tree, it gives every request the tokens that the engine's own
  match of that prompt alone gives.  Sibling prompts may part anywhere, also inside a page or block;
- **well-formed**: `advance` returns how many symbols of the segment match, 0 to all of them, and a cursor;
- **cursors stay valid**: a cursor is used for every child of a tree node, so `advance` must not change it;
- **reading changes nothing**: the engine's own answers are the same afterwards;
- **nodes are nodes**: `node_id` names one place by one id, not 0; `parent_id`, if there is one, leads from it
  through the nodes above to 0, and neither fails if an entry is gone since the walk;
- **an honest version**, if there is one: it changes whenever an answer does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from peek.eviction.index import MarkIndex
from peek.protocols import CacheView
from peek.testing.hypotheses import for_all, need_hypothesis, st
from peek.testing.scenes import show_place, tree_of
from peek.testing.twins import Place, radix_nodes
from peek.trie.dual_walk import DualWalk
from peek.trie.pending_tree import PendingTree

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


LongestMatch = Callable[[list[int], str], int]

_CHANGES = 20


def check_cache_view(
    view: CacheView,
    longest_match: LongestMatch,
    *,
    prompts: Iterable[Sequence[int]] | None = None,
    namespaces: Sequence[str] = ("",),
    absent: Sequence[int] = (2**31 - 1, 2**31 - 2),
    chained: bool = False,
    change: Callable[[], object] | None = None,
    examples: int | None = None,
) -> None:
    """Look for waiting requests for which the view is wrong; the module lists the properties checked.

    Args:
        view: the view; only `change` may change the cache behind it meanwhile.
        longest_match: the engine's own answer: `longest_match(key, namespace)`, tokens of the key (a list of
            symbols) that are cached.
        prompts: keys of which the cache holds at least a part, best some that share prefixes.  By default
            they are found by asking `longest_match` for the symbols 0 to 255.  That works if it matches
            single symbols and these symbols mean something.
        namespaces: namespaces of the cache; every prompt is tried in each.
        absent: symbols that no cached key has, for prompts that part from cached ones.
        chained: whether symbols are chained block hashes; prompts are then only cut, never recombined.
        change: changes what the cache holds, a little at each call; needed for the checks of `version` and of
            entries that are gone.
        examples: number of pending trees to try; None takes it from hypothesis' settings profile.

    Raises `AssertionError` with the smallest failing pending tree, or if nothing asked for is cached, because
    that would prove nothing; and `MissingHypothesis` if hypothesis is not installed.
    """
    need_hypothesis()
    _check_members(view)
    keys = _explored(longest_match, namespaces) if prompts is None else [tuple(key) for key in prompts]
    stock = [(namespace, key) for namespace in namespaces for key in keys if key]
    held = _matches(longest_match, stock)
    if not any(held):
        fault = "nothing that was asked for is cached, so nothing is proved"
        raise AssertionError(f"{fault}: fill the cache, pass prompts=")

    def check(queue: list[Place]) -> None:
        _check_queue(view, longest_match, queue)
        _check_unchanged(stock, held, _matches(longest_match, stock))

    for_all(_queues(stock, tuple(absent), chained), check, examples)
    if change is not None:
        _check_version(view, longest_match, stock, change, chained)


def _check_members(view: CacheView) -> None:
    missing = [name for name in ("unit_tokens", "root", "advance", "node_id") if not hasattr(view, name)]
    if missing:
        raise AssertionError(f"{type(view).__name__} is no CacheView: it lacks {', '.join(missing)}")
    unit = view.unit_tokens
    if not hasattr(type(unit), "__index__") or isinstance(unit, bool) or unit < 1:
        raise AssertionError(f"unit_tokens is {unit!r}; need the tokens of a symbol, at least 1")


def _explored(longest_match: LongestMatch, namespaces: Sequence[str]) -> list[tuple[int, ...]]:
    """Find up to eight cached keys of each namespace, symbol by symbol, depth first."""
    found: list[tuple[int, ...]] = []
    for namespace in namespaces:
        open_keys: list[tuple[int, ...]] = [()]
        most = len(found) + 8
        while open_keys and len(found) < most:
            key = open_keys.pop()
            held = longest_match(list(key), namespace) if key else 0
            longer = [(*key, symbol) for symbol in range(256 if len(key) < 32 else 0)]
            deeper = [one for one in longer if longest_match(list(one), namespace) > held]
            if key and not deeper:
                found.append(key)
            open_keys += deeper[:4]
    return found


# -- waiting requests ---------------------------------------------------------------------------------


def _queues(stock: Sequence[Place], absent: tuple[int, ...], chained: bool) -> SearchStrategy[list[Place]]:
    """Prompts of the stock, cut anywhere, followed by nothing, another prompt's rest, or unknown symbols."""
    unknown = st.lists(st.sampled_from(absent), max_size=3).map(tuple) if absent else st.just(())
    some = st.sampled_from(stock)
    others = st.builds(lambda place, start: place[1][start % len(place[1]) :], some, st.integers(0, 9_999))
    tails = unknown if chained else st.one_of(unknown, others)
    return st.lists(st.builds(_cut, some, st.integers(1, 10_000), tails), min_size=1, max_size=6)


def _cut(place: Place, end: int, tail: tuple[int, ...]) -> Place:
    namespace, symbols = place
    return namespace, (*symbols[: 1 + (end - 1) % len(symbols)], *tail)


def _matches(longest_match: LongestMatch, places: Iterable[Place]) -> list[int]:
    return [longest_match(list(key), namespace) for namespace, key in places]


def _check_queue(view: CacheView, longest_match: LongestMatch, queue: list[Place]) -> None:
    waiting = {f"r{i}": place for i, place in enumerate(queue)}
    try:
        expected = _matches(longest_match, queue)
        watched = WatchedView(view)
        found = _walked(watched, waiting)
        for name, tokens in zip(waiting, expected, strict=True):
            if found[name] != tokens:
                fault = f"{name} has {found[name]} cached tokens by the view, {tokens} by longest_match"
                raise AssertionError(fault)
        watched.check_nodes()
        _check_unchanged(queue, expected, _matches(longest_match, queue))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{_show(waiting)}") from error


def _check_unchanged(places: Sequence[Place], before: list[int], after: list[int]) -> None:
    for place, was, now in zip(places, before, after, strict=True):
        if was != now:
            changed = f"{show_place(place)} matched {was} tokens, now {now}"
            raise AssertionError(f"reading changed the cache: {changed}")


def _walked(view: WatchedView, waiting: dict[str, Place]) -> dict[str, int]:
    """Cached tokens by a dual-walk; every prompt is also walked alone, so that edges end elsewhere."""
    tree = tree_of(waiting)
    try:
        found = DualWalk(tree).match(view)
        for name, place in waiting.items():
            DualWalk(tree_of({name: place})).walk(view)
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"the walk raised {type(error).__name__}: {error}") from error
    return found


def _show(waiting: dict[str, Place]) -> str:
    """The waiting prompts, and where the edges of their tree end: the ends of the segments asked for."""
    lines = ["  waiting:", *(f"    {name}: {show_place(place)}" for name, place in waiting.items())]
    ends = sorted({len(symbols) for _, symbols in radix_nodes(waiting.values())})
    return "\n".join([*lines, f"  edges of their tree end at symbols {', '.join(map(str, ends))}"])


def _check_version(
    view: CacheView,
    longest_match: LongestMatch,
    stock: Sequence[Place],
    change: Callable[[], object],
    chained: bool,
) -> None:
    """Walk one tree again and again while the cache changes, as a planner does."""
    tree = tree_of({f"r{i}": place for i, place in enumerate(stock)})
    walk = DualWalk(tree)
    walk.match(view)
    expected = _matches(longest_match, stock)
    moved = False
    for _ in range(_CHANGES):
        version = getattr(view, "version", None)
        change()
        if not chained:  # with chained keys a symbol is its own mark
            _check_old_marks(view, tree, walk.epoch)
        before, expected = expected, _matches(longest_match, stock)
        differs = [i for i, was in enumerate(before) if was != expected[i]]
        moved = moved or bool(differs)
        if differs and version is not None and version == getattr(view, "version", None):
            one = differs[0]
            raise AssertionError(
                f"version is {version!r} before and after a change that moved the match of "
                f"{show_place(stock[one])} from {before[one]} to {expected[one]} tokens"
            )
        found = list(walk.match(view).values())
        if found != expected:
            raise AssertionError(f"after a change of the cache the view gives {found}, not {expected}")
    if not moved:
        raise AssertionError(f"change was called {_CHANGES} times and moved the match of no prompt")


def _check_old_marks(view: CacheView, tree: PendingTree, epoch: int) -> None:
    """Look for demand by the marks of a walk before the last change, as an evicting engine does."""
    try:
        MarkIndex(tree).refresh(view, epoch)
    except Exception as error:
        asked = "asked by cursors of the last walk, after a change of the cache, node_id or parent_id raised"
        raise AssertionError(f"{asked} {type(error).__name__}: {error}") from error


class Cursor(NamedTuple):
    """The view's own cursor, and the place that it must stand for."""

    inner: Any
    place: Place


class WatchedView:
    """Passes every call on to a view, twice, and checks the answers."""

    def __init__(self, view: CacheView) -> None:
        self.unit_tokens = view.unit_tokens
        self._view: Any = view
        self._matches: list[Cursor] = []

    def __getattr__(self, name: str) -> Any:
        """The optional members, if the view has them."""
        value = getattr(self._view, name)
        if name == "worth" and value is not None:
            return lambda cursor, matched: value(cursor.inner, matched)
        return value

    def root(self, namespace: str) -> Cursor:
        return Cursor(self._view.root(namespace), (namespace, ()))

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> tuple[int, Cursor]:
        matched, inner = self._answer(cursor, segment, offset)
        again, _ = self._answer(cursor, segment, offset)
        if matched != again:
            raise AssertionError(
                f"advance matched {matched} symbols and, asked the same again, {again}: "
                "it must leave the cursor and the cache as they are"
            )
        namespace, symbols = cursor.place
        found = Cursor(inner, (namespace, (*symbols, *segment[:matched])))
        if found.place[1]:
            self._matches.append(found)
        return matched, found

    def _answer(self, cursor: Cursor, segment: memoryview, offset: int) -> tuple[int, Any]:
        call = f"advance of {len(segment)} symbols at offset {offset}"
        try:
            answer: Any = self._view.advance(cursor.inner, segment, offset)
        except Exception as error:
            raise AssertionError(f"{call} raised {type(error).__name__}: {error}") from error
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise AssertionError(f"{call} answered {answer!r}; need (matched symbols, cursor)")
        try:
            matched = operator.index(answer[0])
        except TypeError:
            raise AssertionError(f"{call} answered {answer[0]!r} symbols; need an integer") from None
        if not 0 <= matched <= len(segment):
            raise AssertionError(f"{call} answered {matched} symbols; need 0 to {len(segment)}")
        return matched, answer[1]

    # -- nodes -------------------------------------------------------------------------------------

    def node_id(self, cursor: Any) -> int:
        return operator.index(self._view.node_id(cursor.inner))

    def check_nodes(self) -> None:
        """Check `node_id` and `parent_id` of every place that matched."""
        ids: dict[Place, int] = {}
        for cursor in self._matches:
            try:
                node = self.node_id(cursor)
            except Exception as error:
                raise AssertionError(f"node_id at {show_place(cursor.place)}: {error!r}") from error
            if node == 0:
                raise AssertionError(f"node_id at {show_place(cursor.place)} is 0, the id of no node")
            if ids.setdefault(cursor.place, node) != node:
                other = ids[cursor.place]
                raise AssertionError(f"node_id at {show_place(cursor.place)} is once {other}, once {node}")
        self._check_branches(ids)
        if hasattr(self._view, "parent_id"):
            self._check_parents(ids)

    def _check_branches(self, ids: dict[Place, int]) -> None:
        """Check that the places of one node lie on one path."""
        deepest: dict[int, Place] = {}
        for place, node in sorted(ids.items(), key=lambda each: len(each[0][1])):
            if node < 0:  # the cache names no nodes
                continue
            upper = deepest.get(node, place)
            if upper[0] != place[0] or place[1][: len(upper[1])] != upper[1]:
                branches = f"{show_place(upper)} and at {show_place(place)}, two branches"
                raise AssertionError(f"node_id is {node} at {branches}")
            deepest[node] = place

    def _check_parents(self, ids: dict[Place, int]) -> None:
        for place, node in ids.items():
            path = self._climb(place, node)
            above = [one for one in ids if one[0] == place[0] and place[1][: len(one[1])] == one[1]]
            for upper in above:
                if ids[upper] not in path:
                    missed = f"not through {ids[upper]}, the node of {show_place(upper)}"
                    raise AssertionError(f"parent_id leads from {show_place(place)} through {path}, {missed}")

    def _climb(self, place: Place, node: int) -> list[int]:
        """The ids up to 0; at most one per symbol and one for the root, as each node holds a symbol."""
        path = [node]
        while path[-1] != 0:
            if len(path) > len(place[1]) + 1:
                raise AssertionError(f"parent_id leads from {show_place(place)} through {path}, never to 0")
            try:
                path.append(operator.index(self._view.parent_id(path[-1])))
            except Exception as error:
                raise AssertionError(f"parent_id({path[-1]}) of {show_place(place)}: {error!r}") from error
        return path
