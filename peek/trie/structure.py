"""The shape of the pending tree: nodes, edges, splits and merges, and how many keys pass where.

`PrefixStructure` knows keys only, not requests; `PendingTree` hangs the requests on it.  Its one rule:
a node below a root either ends a key or has at least two children.  `grow` splits and adds nodes as a
key needs them, `shrink` prunes and merges; so the shape depends on the set of keys alone, not on the
history.

All children of all nodes live in one dictionary keyed `(parent uid << 32) | first symbol`: a step down
is one probe with an integer key, and a leaf carries no dictionary of its own.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from peek.trie.keys import match_edge, symbol_at
from peek.trie.node import Node, link, unlink


@final
class PrefixStructure:
    """Nodes of all namespaces.

    Args:
        chained: every symbol occurs at one place only (chained block hashes); `owners` maps it to the
            node whose edge holds it.
    """

    __slots__ = ("_free_uids", "_next_uid", "chained", "edges", "n_nodes", "n_shared", "owners", "roots")

    def __init__(self, chained: bool) -> None:
        self.chained = chained
        self.roots: dict[str, Node] = {}
        self.edges: dict[int, Node] = {}
        self.owners: dict[int, Node] = {}
        self.n_nodes: i64 = 0
        self.n_shared: i64 = 0
        self._next_uid: i64 = 1
        self._free_uids: list[int] = []

    def grow(self, namespace: str, packed: bytes) -> Node:
        """Count one more key on its path, making the path where it is missing; the node of its end."""
        node = self._root_for(namespace)
        node.count += 1
        edges = self.edges
        n: i64 = len(packed)
        at: i64 = 0
        while at < n:
            slot: i64 = (node.uid << 32) | symbol_at(packed, at)
            child = edges.get(slot)
            if child is None:
                leaf = self._new_node(packed[at:] if at else packed, node, 1, n >> 2)
                edges[slot] = leaf
                if self.chained:
                    self._own(leaf.edge, leaf)
                return leaf
            common: i64 = match_edge(child.edge, packed, at)
            if common < len(child.edge):
                child = self._split(node, child, slot, common)
            child.count += 1
            if child.count == 2:
                self.n_shared += 1
            node = child
            at += common
        return node

    def shrink(self, namespace: str, node: Node) -> None:
        """Count one key less from its end `node` up; prune and merge what it leaves behind.

        The key's terminator must be off the node already.
        """
        lowest: Node | None = None
        current = node
        while True:
            parent = current.parent
            current.count -= 1
            if parent is None:
                break
            if current.count == 0:
                self._prune(parent, current)
            else:
                if current.count == 1:
                    self.n_shared -= 1
                if lowest is None:
                    lowest = current
            current = parent
        if current.count == 0:
            del self.roots[namespace]
            self._free_uids.append(current.uid)
        if lowest is not None and lowest.terminator is None and lowest.n_kids == 1:
            self._merge(lowest)

    def find(self, namespace: str, packed: bytes) -> Node | None:
        """The node at or below the end of `packed`; None if no key starts with it."""
        node = self.roots.get(namespace)
        n: i64 = len(packed)
        at: i64 = 0
        while node is not None and at < n:
            node = self.edges.get((node.uid << 32) | symbol_at(packed, at))
            if node is not None:
                common: i64 = match_edge(node.edge, packed, at)
                at += common
                if common < len(node.edge) and at < n:
                    return None
        return node

    def _root_for(self, namespace: str) -> Node:
        root = self.roots.get(namespace)
        if root is None:
            root = Node(b"", None, self._take_uid(), 0, 0)
            self.roots[namespace] = root
        return root

    def _take_uid(self) -> i64:
        """Node ids are reused, so that `uid << 32` stays a native integer however long we run."""
        if self._free_uids:
            return self._free_uids.pop()
        uid = self._next_uid
        self._next_uid = uid + 1
        return uid

    def _new_node(self, edge: bytes, parent: Node, count: i64, depth: i64) -> Node:
        node = Node(edge, parent, self._take_uid(), count, depth)
        self.n_nodes += 1
        link(parent, node)
        return node

    def _split(self, parent: Node, child: Node, slot: i64, at: i64) -> Node:
        """Cut `child`'s edge behind byte `at`; returns the new upper node."""
        edge = child.edge
        unlink(parent, child)
        upper = self._new_node(edge[:at], parent, child.count, parent.depth + (at >> 2))
        if child.count > 1:
            self.n_shared += 1
        child.edge = edge[at:]
        child.view = None
        child.parent = upper
        link(upper, child)
        self.edges[(upper.uid << 32) | symbol_at(edge, at)] = child
        self.edges[slot] = upper
        if self.chained:
            self._own(upper.edge, upper)
        return upper

    def _prune(self, parent: Node, node: Node) -> None:
        del self.edges[(parent.uid << 32) | symbol_at(node.edge, 0)]
        unlink(parent, node)
        if self.chained:
            self._disown(node.edge)
        self._retire(node)

    def _merge(self, node: Node) -> None:
        """Join a node that has one child and ends no key with that child; the child survives."""
        child = node.kid
        parent = node.parent
        assert child is not None and parent is not None
        del self.edges[(node.uid << 32) | symbol_at(child.edge, 0)]
        self.edges[(parent.uid << 32) | symbol_at(node.edge, 0)] = child
        unlink(node, child)
        unlink(parent, node)
        if self.chained:
            self._own(node.edge, child)
        child.edge = node.edge + child.edge
        child.view = None
        child.parent = parent
        link(parent, child)
        if node.count > 1:
            self.n_shared -= 1
        self._retire(node)
        node.kid = child  # forwards whoever still holds a mark on the merged node, see `survivor`

    def _retire(self, node: Node) -> None:
        node.parent = None
        node.count = 0
        node.walk_cursor = None
        self._free_uids.append(node.uid)
        self.n_nodes -= 1

    def _own(self, edge: bytes, node: Node) -> None:
        owners = self.owners
        n: i64 = len(edge)
        at: i64 = 0
        while at < n:
            owners[symbol_at(edge, at)] = node
            at += 4

    def _disown(self, edge: bytes) -> None:
        owners = self.owners
        n: i64 = len(edge)
        at: i64 = 0
        while at < n:
            del owners[symbol_at(edge, at)]
            at += 4

    def check(self) -> int:
        """Verify every invariant of the shape; returns the number of terminators.  O(nodes)."""
        nodes: i64 = 0
        shared: i64 = 0
        terminators: i64 = 0
        for root in self.roots.values():
            assert root.count > 0 and root.depth == 0 and root.parent is None, "empty root kept"
            stack = [root]
            while stack:
                node = stack.pop()
                terminators += self._check_node(node, stack)
                if node.parent is not None:
                    nodes += 1
                    shared += 1 if node.count >= 2 else 0
        assert nodes == self.n_nodes == len(self.edges), "node count"
        assert shared == self.n_shared, "count of shared nodes"
        return terminators

    def _check_node(self, node: Node, stack: list[Node]) -> i64:
        ends: i64 = 0
        terminator = node.terminator
        while terminator is not None:
            ends += 1
            assert terminator.node is node and terminator.request.length == node.depth, "terminator"
            assert terminator.next is None or terminator.next.prev is terminator, "terminator list"
            terminator = terminator.next
        total = ends
        n_kids: i64 = 0
        kid = node.kid
        while kid is not None:
            n_kids += 1
            total += kid.count
            assert kid.parent is node, "parent link"
            assert kid.depth == node.depth + (len(kid.edge) >> 2) > node.depth, "depth"
            assert self.edges[(node.uid << 32) | symbol_at(kid.edge, 0)] is kid, "edge table"
            assert kid.next is None or kid.next.prev is kid, "sibling list"
            stack.append(kid)
            kid = kid.next
        assert n_kids == node.n_kids, "child count"
        assert total == node.count, "pending_count"
        if node.parent is not None:
            assert node.count > 0 and (ends > 0 or n_kids > 1), "node that should be merged"
            assert not self.chained or self._owns(node), "owners"
        return ends

    def _owns(self, node: Node) -> bool:
        at: i64 = 0
        while at < len(node.edge):
            if self.owners.get(symbol_at(node.edge, at)) is not node:
                return False
            at += 4
        return True
