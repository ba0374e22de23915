"""The shape of the pending tree: nodes, edges, splits and merges, and how many keys pass each node.

`PrefixStructure` knows keys only; `PendingTree` hangs the requests on it.  Its one rule: a node below a root
either ends a key or has at least two children.  `grow` splits and adds nodes as a key needs them, `shrink`
prunes and merges.  So the shape depends on the set of keys alone, not on the history.

All children of all nodes live in one dictionary keyed `(parent uid << 32) | first symbol`.  A step down is
one probe with an integer key, and a leaf carries no dictionary of its own.

A `Journal` of changes lets its readers (the dual-walk, the default policy's frontier) do work for the changes
instead of for the whole tree.  Nothing is written before the first reader asks for it.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from peek.errors import InvalidKey
from peek.trie.keys import match_edge, symbol_at
from peek.trie.node import Node, Terminator, copy_marks, link, root_above, unlink

_AT_LEAST: Final[i64] = 4096
"""Number of entries from which a journal may be too long to be worth reading."""
AT_MOST: Final[i64] = 1 << 17
"""Maximum number of entries of a journal, in case no reader shortens it."""


@final
class Journal:
    """Nodes that were made, retired or marked anew, or whose own requests have changed, in order.

    An entry may be out of date or come twice: it says where to look, not what is there.

    Attributes:
        volume: a number that grows whenever the entries are thrown away, so that readers start afresh.
        nodes: the entries of this volume.
        left: terminators that have left their places, never more than nodes.
    """

    __slots__ = ("left", "nodes", "volume")

    def __init__(self) -> None:
        self.volume: i64 = 0
        self.nodes: list[Node] = []
        self.left: list[Terminator] = []

    def note(self, node: Node) -> None:
        """Note that something about this node is new.  O(1)."""
        if len(self.nodes) == AT_MOST:
            self._begin()
        self.nodes.append(node)

    def shorten(self, waiting: i64) -> None:
        """Begin a new volume if reading this one costs more than looking at all waiting requests.  O(1)."""
        if len(self.nodes) > _AT_LEAST + 4 * waiting:
            self._begin()

    def _begin(self) -> None:
        self.volume += 1
        self.nodes = []
        self.left = []


@final
class Bookmark:
    """How far one reader has read: its places in `nodes` and in `left`."""

    __slots__ = ("at", "left_at", "volume")

    def __init__(self) -> None:
        self.volume: i64 = -1
        self.at: i64 = 0
        self.left_at: i64 = 0

    def catch_up(self, journal: Journal) -> bool:
        """Jump to the end; return False if entries before it are lost."""
        known = self.volume == journal.volume
        self.volume = journal.volume
        self.at = len(journal.nodes)
        self.left_at = len(journal.left)
        return known


@final
class PrefixStructure:
    """Nodes of all namespaces.

    Args:
        chained: whether every symbol occurs at one place only (chained block hashes); `owners` then maps it
            to the node whose edge holds it.
    """

    __slots__ = (
        "block",
        "chained",
        "edges",
        "free_uids",
        "journal",
        "n_nodes",
        "n_shared",
        "next_uid",
        "owners",
        "roots",
    )

    def __init__(self, chained: bool) -> None:
        self.chained = chained
        self.block: i64 = 1
        """Symbols per block of the cache that the last dual-walk asked."""
        self.roots: dict[str, Node] = {}
        self.edges: dict[int, Node] = {}
        self.owners: dict[int, Node] = {}
        self.n_nodes: i64 = 0
        self.n_shared: i64 = 0
        self.next_uid: i64 = 1
        self.free_uids: list[int] = []
        self.journal: Journal | None = None
        """Changes of the shape, once there is a reader."""

    def grow(self, namespace: str, packed: bytes) -> Node:
        """Count one more key on its path, making missing nodes; return the node where the key ends.

        `InvalidKey` for a key that cannot be chained; the shape is then as it was.
        """
        node = self._root_for(namespace)
        node.count += 1
        edges = self.edges
        n: i64 = len(packed)
        at: i64 = 0
        while at < n:
            if node.n_kids == 1:  # as throughout a chain of nested prompts: no probe
                child = node.kid
            else:
                child = edges.get((node.uid << 32) | symbol_at(packed, at))
            common: i64 = 0 if child is None else match_edge(child.edge, packed, at)
            if child is None or common == 0:
                return self._grow_leaf(namespace, node, packed[at:] if at else packed)
            if common < len(child.edge):
                child = self._split(node, child, common)
            child.count += 1
            if child.count == 2:
                self.n_shared += 1
            node = child
            at += common
        return node

    def shrink(self, namespace: str, node: Node) -> None:
        """Count one key less from its end `node` up; prune and merge the nodes that it leaves behind.

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
            self.free_uids.append(current.uid)
            self.note(current)
        if lowest is not None and lowest.terminator is None and lowest.n_kids == 1:
            self._merge(lowest)
        elif lowest is not None:
            self.note(lowest)

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

    def note(self, node: Node) -> None:
        """Add an entry to the journal, if there is one.  O(1)."""
        if self.journal is not None:
            self.journal.note(node)

    def written(self, waiting: i64) -> Journal:
        """Return the journal, made if need be and shortened for `waiting` requests.  O(1)."""
        journal = self.journal
        if journal is None:
            journal = Journal()
            self.journal = journal
        journal.shorten(waiting)
        return journal

    def note_left(self, terminator: Terminator) -> None:
        """Note that a request leaves its place; `shrink` comes next and notes a node.  O(1)."""
        if self.journal is not None:
            self.journal.left.append(terminator)

    def _take_uid(self) -> i64:
        """Return an unused node id; ids are reused, so that `uid << 32` always stays a native integer."""
        if self.free_uids:
            return self.free_uids.pop()
        uid = self.next_uid
        self.next_uid = uid + 1
        return uid

    def _hang(self, parent: Node, node: Node) -> None:
        """Make `node` the child of `parent` that its edge leads to."""
        self.n_nodes += 1
        link(parent, node)
        self.edges[(parent.uid << 32) | symbol_at(node.edge, 0)] = node

    def _grow_leaf(self, namespace: str, parent: Node, edge: bytes) -> Node:
        leaf = Node(edge, parent, self._take_uid(), 1, parent.depth + (len(edge) >> 2))
        if self.chained and not self._claim(leaf):
            fault = self._unclaim(leaf)
            self.free_uids.append(leaf.uid)
            self.shrink(namespace, parent)
            raise InvalidKey(f"{fault}; in a chained key a symbol stands for itself and all before it")
        self._hang(parent, leaf)
        return leaf

    def _split(self, parent: Node, child: Node, at: i64) -> Node:
        """Cut `child`'s edge behind byte `at`; return the new upper node."""
        edge = child.edge
        unlink(parent, child)
        upper = Node(edge[:at], parent, self._take_uid(), child.count, parent.depth + (at >> 2))
        self._hang(parent, upper)
        self.note(upper)
        if child.count > 1:
            self.n_shared += 1
        child.edge = edge[at:]
        child.view = None
        child.parent = upper
        link(upper, child)
        self.edges[(upper.uid << 32) | symbol_at(edge, at)] = child
        if self.chained:
            self._own(upper.edge, upper)
        if child.walk_matched < upper.depth:
            copy_marks(child, upper)  # the walk had stopped within the new upper half
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
        self.note(child)
        if node.count > 1:
            self.n_shared -= 1
        if node.walk_epoch > child.walk_epoch and node.depth - node.walk_matched >= self.block:
            copy_marks(node, child)  # the walk had stopped in the node and never saw the child
        self._retire(node)
        node.kid = child  # leads from old references to the child, see `survivor`

    def _retire(self, node: Node) -> None:
        """Take a node out of the tree, and drop its symbols and cursor, as others may still refer to it."""
        node.parent = None
        node.count = 0
        node.edge = b""
        node.view = None
        node.walk_cursor = None
        self.free_uids.append(node.uid)
        self.n_nodes -= 1
        self.note(node)

    def _own(self, edge: bytes, node: Node) -> None:
        owners = self.owners
        n: i64 = len(edge)
        at: i64 = 0
        while at < n:
            owners[symbol_at(edge, at)] = node
            at += 4

    def _claim(self, leaf: Node) -> bool:
        """Make a new leaf the owner of its symbols; False if one of them has an owner or comes twice."""
        owners = self.owners
        edge = leaf.edge
        n: i64 = len(edge)
        total = len(owners) + (n >> 2)
        at: i64 = 0
        while at < n:
            owners.setdefault(symbol_at(edge, at), leaf)
            at += 4
        return len(owners) == total

    def _unclaim(self, leaf: Node) -> str:
        """Undo a claim that failed; return what was wrong with it."""
        owners = self.owners
        edge = leaf.edge
        n: i64 = len(edge)
        fault = ""
        at: i64 = 0
        while at < n:
            symbol = symbol_at(edge, at)
            owner = owners.get(symbol)
            if owner is leaf:
                del owners[symbol]
            elif not fault:
                where = "comes twice" if owner is None else "stands in another place already"
                fault = f"symbol {symbol} {where}"
            at += 4
        return fault

    def _disown(self, edge: bytes) -> None:
        owners = self.owners
        n: i64 = len(edge)
        at: i64 = 0
        while at < n:
            del owners[symbol_at(edge, at)]
            at += 4


def check_tree(shape: PrefixStructure, handles: dict[str, Terminator]) -> None:
    """Verify every invariant of the shape and each request's place; errors as `check_structure`."""
    assert check_structure(shape) == len(handles), "terminator count"
    for request_id, terminator in handles.items():
        request = terminator.request
        assert request.request_id == request_id, "handle of another request"
        assert root_above(terminator.node) is shape.roots.get(request.namespace), "namespace"


def check_structure(shape: PrefixStructure) -> int:
    """Verify every invariant; return the number of terminators.  O(nodes + symbols).

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
