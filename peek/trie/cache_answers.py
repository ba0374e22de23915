"""Checks of a cache view's answers, because the code of a `CacheView` is an outsider's.

An answer that no cache can give ends in `InvalidCache`, which names the call and the value.  Any object that
Python takes for a whole number (`operator.index`) is one, numpy's included, on both builds.
"""

from __future__ import annotations

import operator
from typing import Any, Final

from mypy_extensions import i64

from peek.errors import InvalidCache
from peek.trie.keys import COMPILED, MAX_SYMBOL, SYMBOL_BYTES
from peek.trie.node import Node, next_branch, next_preorder
from peek.trie.pending_tree import PendingTree

_HUGE: Final = 2**62 - 1
"""The largest number that compiled code compares without conversion."""

_PROBES: Final = 4
"""Edges that are asked for once more while no answer yet proves that a cache matches single symbols."""


def whole_number(value: object, call: str) -> int:
    """Return `value` as an int of 63 bits; `InvalidCache` naming the `call` that gave it if it is none."""
    if isinstance(value, int):
        number: int = value
    else:
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            kind = type(value).__name__
            raise InvalidCache(f"{call} is {value!r}, a {kind}; need a whole number") from None
    if -_HUGE <= number <= _HUGE:
        return number
    raise InvalidCache(f"{call} is {number}, beyond all counts and ids")


def unit_tokens_of(cache: object) -> int:
    """Tokens per symbol of a view; `InvalidCache` unless a whole number from 1 to 2**31 - 1."""
    return _positive(getattr(cache, "unit_tokens", None), "unit_tokens")


def block_symbols_of(cache: object) -> int:
    """Symbols per block that a view's cache matches whole, 0 if not declared; `InvalidCache`."""
    size: object = getattr(cache, "block_symbols", None)
    return 0 if size is None else _positive(size, "block_symbols")


def _positive(value: object, name: str) -> int:
    number = whole_number(value, name)
    if 1 <= number <= MAX_SYMBOL:
        return number
    raise InvalidCache(f"{name} is {number}; need a whole number from 1 to 2**31 - 1")


def checked_step(answer: object, asked: i64) -> tuple[i64, object]:
    """Check an answer of `advance` about `asked` symbols; return its two items or raise `InvalidCache`."""
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise InvalidCache(f"advance(...) answered {answer!r}; need a tuple (symbols followed, cursor)")
    count = whole_number(answer[0], "the first item that advance(...) answered")
    if not 0 <= count <= asked:
        raise out_of_range(count, asked)
    return count, answer[1]


def read_step(answer: Any, asked: i64) -> tuple[i64, object]:
    """Read an answer of `advance`; the usual kind is unpacked natively."""
    if COMPILED:
        try:
            step: tuple[i64, object] = answer
            return step
        except (TypeError, ValueError, OverflowError):
            pass  # a wrong answer, or one not of Python's own types
    return checked_step(answer, asked)


def out_of_range(count: int, asked: i64) -> InvalidCache:
    return InvalidCache(f"advance(...) answered {count} for a segment of {asked} symbols; need 0 to {asked}")


def rest_and_edge(parent: Node, node: Node) -> memoryview:
    """The symbols from where the cache stands above `node` to the end of the node's edge.

    A cache that matches whole blocks stands at the last block boundary at or before the end of the parent.
    The symbols behind that boundary are the `rest`, from one or more edges.  O(rest + edge).
    """
    edges: list[bytes] = [node.edge]
    missing = parent.depth - parent.walk_matched
    above = parent
    while missing > 0:
        size: i64 = len(above.edge) >> 2
        edges.append(above.edge if size <= missing else above.edge[SYMBOL_BYTES * (size - missing) :])
        missing -= size
        if above.parent is None:
            break
        above = above.parent
    edges.reverse()
    return memoryview(b"".join(edges)).cast("i")


# -- whether a cache matches whole blocks without declaring it --------------------------------------------


def matches_single_symbols(tree: PendingTree, cache: Any) -> bool:
    """Whether a walk's answers prove that the cache matches symbol by symbol; one to four calls.

    Called after a whole walk with a view that declares no `block_symbols`.  Where the cache followed k
    symbols it must follow k - 1 of the first k - 1.  If it does not, it matches whole blocks.  `InvalidCache`
    is then raised if an edge ends inside a block, because the symbols below may be cached as well.  As long
    as the cache has followed nothing there is no proof.  Then some children are asked for together with the
    edge above on which the cache stopped.
    """
    sample = _first_followed(tree)
    if sample is None:
        _ask_below(tree, cache)
        return False
    parent = sample.parent
    assert parent is not None
    count = sample.walk_matched - parent.depth
    shorter = memoryview(sample.edge[: SYMBOL_BYTES * (count - 1)]).cast("i")
    answered = checked_step(cache.advance(parent.walk_cursor, shorter, parent.depth), count - 1)[0]
    if answered == count - 1:
        return True
    for node in _stopped(tree, 1, count - answered):
        raise _needs_blocks(
            f"advance(...) followed {count} symbols but {answered} of the first {count - 1}, "
            f"and prompts part ways {node.depth - node.walk_matched} symbols behind the end of a block",
            f"{count - answered}",
        )
    return False


def _needs_blocks(found: str, size: str) -> InvalidCache:
    return InvalidCache(
        f"{found}: this cache matches whole blocks of symbols. Declare on the view how many symbols a "
        f"block has (block_symbols = {size}), or make every block one symbol with unit_tokens"
    )


def _first_followed(tree: PendingTree) -> Node | None:
    """The first node of the walk on whose edge the cache followed two symbols or more."""
    for _, root in tree.roots():
        node = next_preorder(root)
        while node is not None:
            parent = node.parent
            assert parent is not None
            if node.walk_matched >= parent.depth + 2:
                return node
            node = next_preorder(node) if node.walk_matched == node.depth else next_branch(node)
    return None


def _stopped(tree: PendingTree, limit: int, within: i64) -> list[Node]:
    """The first `limit` inner nodes of which the cache misses at least 1 and fewer than `within` symbols."""
    found: list[Node] = []
    for _, root in tree.roots():
        node = next_preorder(root)
        while node is not None:
            missing = node.depth - node.walk_matched
            if 0 < missing < within and node.kid is not None:
                found.append(node)
                if len(found) == limit:
                    return found
            node = next_preorder(node) if missing == 0 else next_branch(node)
    return found


def _ask_below(tree: PendingTree, cache: Any) -> None:
    """Raise `InvalidCache` if the cache stopped on an edge, but follows it together with a child's edge."""
    for node in _stopped(tree, _PROBES, MAX_SYMBOL):
        kid = node.kid
        assert kid is not None
        parent = node.parent
        assert parent is not None
        both = memoryview(node.edge + kid.edge).cast("i")
        before = node.walk_matched - parent.depth
        matched = checked_step(cache.advance(parent.walk_cursor, both, parent.depth), len(both))[0]
        if matched > before:
            raise _needs_blocks(
                f"advance(...) followed {before} symbols of an edge, but {matched} of that edge and the next",
                f"{matched}, or a divisor of it",
            )
