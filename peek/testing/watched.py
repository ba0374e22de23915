"""A cache view under observation: every call is asked twice and its answer looked at."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from peek.protocols import CacheView
from peek.testing.readable import show_place
from peek.testing.twins import Place


@dataclass(frozen=True)
class Cursor:
    """The view's own cursor, and the place that it must stand for."""

    inner: Any
    place: Place


class WatchedView:
    """Passes every call on to a view, asks it twice, and looks at what comes back."""

    def __init__(self, view: CacheView) -> None:
        self.unit_tokens = view.unit_tokens
        self._view: Any = view
        self._matches: list[Cursor] = []

    def __getattr__(self, name: str) -> Any:
        """The optional members, as far as the view has them."""
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
        """`node_id` and `parent_id` of every place that matched."""
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
        if hasattr(self._view, "parent_id"):
            self._check_parents(ids)

    def _check_parents(self, ids: dict[Place, int]) -> None:
        for place, node in ids.items():
            path = self._climb(place, node)
            above = [one for one in ids if one[0] == place[0] and place[1][: len(one[1])] == one[1]]
            for upper in above:
                if ids[upper] not in path:
                    raise AssertionError(
                        f"parent_id leads from {show_place(place)} through {path}, "
                        f"not through {ids[upper]}, the node of {show_place(upper)}"
                    )

    def _climb(self, place: Place, node: int) -> list[int]:
        """The ids up to 0.  A node holds a symbol at least, so there are no more than symbols, and a root."""
        path = [node]
        while path[-1] != 0:
            if len(path) > len(place[1]) + 1:
                raise AssertionError(f"parent_id leads from {show_place(place)} through {path}, never to 0")
            try:
                path.append(operator.index(self._view.parent_id(path[-1])))
            except Exception as error:
                raise AssertionError(f"parent_id({path[-1]}) of {show_place(place)}: {error!r}") from error
        return path
