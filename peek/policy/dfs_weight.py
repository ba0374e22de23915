"""SGLang's dfs-weight: the queue in depth-first order of the cached tree, heaviest branch first.

Source: `schedule_policy.py`, `_sort_by_dfs_weight`.  SGLang walks its own cache; the same order can
be read off the pending tree after a dual-walk, because the cached tree restricted to the places where
waiting requests stop matching *is* the matched part of the pending tree: a branch belongs to it as
far as the cache followed it, and its weight is the number of requests below.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from peek.policy.base import AdmissionPolicy, Cycle
from peek.request import PendingRequest
from peek.trie.node import Node, next_branch, next_preorder
from peek.trie.pending_tree import PendingTree


@mypyc_attr(allow_interpreted_subclasses=True)
class DfsWeight(AdmissionPolicy):
    """Children before their node's own requests, heavier children first, ties by arrival.

    O(n log n).
    """

    def __init__(self) -> None:
        super().__init__(reads_tree=False)

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        for rank, request in enumerate(queue):
            request.rank = rank
        _note_oldest(cycle.tree)
        roots = [root for _, root in cycle.tree.roots()]
        branches: list[Node] = []
        unmatched: list[PendingRequest] = []
        for root in roots:  # namespaces are branches of one tree
            branches.extend(_matched_kids(root))
            unmatched.extend(_stopped_at(root))
        # Post-order without recursion: a node waits on the stack below its children.
        ordered: list[PendingRequest] = []
        stack: list[tuple[Node, bool]] = [(node, False) for node in _by_weight(branches)]
        while stack:
            node, expanded = stack.pop()
            if expanded:
                ordered.extend(_stopped_at(node))
                continue
            stack.append((node, True))
            if node.walk_matched == node.depth:
                stack.extend((kid, False) for kid in _by_weight(_matched_kids(node)))
        unmatched.sort(key=_rank)
        return ordered + unmatched


def _note_oldest(tree: PendingTree) -> None:
    """Write the smallest rank below each node into `acc_first`.  O(n + nodes)."""
    for _, root in tree.roots():
        nodes: list[Node] = []
        node: Node | None = root
        while node is not None:
            nodes.append(node)
            node.acc_first = 1 << 62
            node = next_preorder(node)
        i: i64 = len(nodes) - 1
        while i >= 0:
            node = nodes[i]
            terminator = node.terminator
            while terminator is not None:
                node.acc_first = min(node.acc_first, terminator.request.rank)
                terminator = terminator.next
            if node.parent is not None:
                node.parent.acc_first = min(node.parent.acc_first, node.acc_first)
            i -= 1


def _matched_kids(node: Node) -> list[Node]:
    kids: list[Node] = []
    kid = node.kid
    while kid is not None:
        if kid.walk_matched > node.depth:
            kids.append(kid)
        kid = kid.next
    return kids


def _by_weight(nodes: list[Node]) -> list[Node]:
    """Ascending weight, because a stack pops its last entry first; ties: the older branch last."""
    return sorted(nodes, key=_weight)


def _weight(node: Node) -> tuple[int, int]:
    return (node.count, -node.acc_first)


def _stopped_at(node: Node) -> list[PendingRequest]:
    """Requests whose cached prefix ends in `node`, in arrival order."""
    found: list[PendingRequest] = []
    if node.walk_matched < node.depth:
        _collect(node, found)
    else:
        _own_requests(node, found)
        kid = node.kid
        while kid is not None:
            if kid.walk_matched == node.depth:
                _collect(kid, found)
            kid = kid.next
    found.sort(key=_rank)
    return found


def _rank(request: PendingRequest) -> int:
    return request.rank


def _own_requests(node: Node, found: list[PendingRequest]) -> None:
    terminator = node.terminator
    while terminator is not None:
        found.append(terminator.request)
        terminator = terminator.next


def _collect(top: Node, found: list[PendingRequest]) -> None:
    """All requests at or below `top`."""
    stop = next_branch(top)
    node: Node | None = top
    while node is not None and node is not stop:
        _own_requests(node, found)
        node = next_preorder(node)
