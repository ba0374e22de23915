"""The self-check of the tree's shape; `PendingTree.check` calls it, tests call that after every step."""

from __future__ import annotations

from mypy_extensions import i64

from peek.trie.keys import symbol_at
from peek.trie.node import Node, Terminator, root_above
from peek.trie.structure import PrefixStructure


def check_tree(shape: PrefixStructure, handles: dict[str, Terminator]) -> None:
    """Verify every invariant of the shape, and that each request hangs where it should; errors as below."""
    assert check_structure(shape) == len(handles), "terminator count"
    for request_id, terminator in handles.items():
        request = terminator.request
        assert request.request_id == request_id, "handle of another request"
        assert root_above(terminator.node) is shape.roots.get(request.namespace), "namespace"


def check_structure(shape: PrefixStructure) -> int:
    """Verify every invariant; returns the number of terminators.  O(nodes + symbols).

    Raises `AssertionError` naming the invariant that is broken.
    """
    nodes: i64 = 0
    shared: i64 = 0
    terminators: i64 = 0
    symbols: i64 = 0
    uids: set[int] = set()
    for root in shape.roots.values():
        assert root.count > 0 and root.depth == 0 and root.parent is None, "empty root kept"
        stack = [root]
        while stack:
            node = stack.pop()
            terminators += _check_terminators(node)
            _check_node(shape, node, stack)
            assert node.uid not in uids, "two nodes with one id"
            uids.add(node.uid)
            symbols += len(node.edge) >> 2
            if node.parent is not None:
                nodes += 1
                shared += 1 if node.count >= 2 else 0
    assert nodes == shape.n_nodes == len(shape.edges), "node count"
    assert shared == shape.n_shared, "count of shared nodes"
    assert uids.isdisjoint(shape.free_uids), "id of a live node up for reuse"
    assert len(shape.owners) == (symbols if shape.chained else 0), "owners of symbols that are gone"
    return terminators


def _check_terminators(node: Node) -> i64:
    ends: i64 = 0
    terminator = node.terminator
    assert terminator is None or terminator.prev is None, "head of the terminator list"
    while terminator is not None:
        ends += 1
        assert terminator.node is node and terminator.request.length == node.depth, "terminator"
        assert terminator.next is None or terminator.next.prev is terminator, "terminator list"
        terminator = terminator.next
    total = ends
    kid = node.kid
    while kid is not None:
        total += kid.count
        kid = kid.next
    assert total == node.count, "pending_count"
    if node.parent is not None:
        assert node.count > 0 and (ends > 0 or node.n_kids > 1), "node that should be merged"
    return ends


def _check_node(shape: PrefixStructure, node: Node, stack: list[Node]) -> None:
    n_kids: i64 = 0
    kid = node.kid
    assert kid is None or kid.prev is None, "head of the sibling list"
    while kid is not None:
        n_kids += 1
        assert kid.parent is node, "parent link"
        assert len(kid.edge) & 3 == 0, "edge of whole symbols"
        assert kid.depth == node.depth + (len(kid.edge) >> 2) > node.depth, "depth"
        assert shape.edges.get((node.uid << 32) | symbol_at(kid.edge, 0)) is kid, "edge table"
        assert kid.next is None or kid.next.prev is kid, "sibling list"
        stack.append(kid)
        kid = kid.next
    assert n_kids == node.n_kids, "child count"
    view = node.view
    assert view is None or view.tobytes() == node.edge, "view of an older edge"
    assert not shape.chained or _owns(shape, node), "owners"


def _owns(shape: PrefixStructure, node: Node) -> bool:
    at: i64 = 0
    while at < len(node.edge):
        if shape.owners.get(symbol_at(node.edge, at)) is not node:
            return False
        at += 4
    return True
