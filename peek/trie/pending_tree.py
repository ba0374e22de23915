"""A compressed radix tree over the waiting prompts.

Operations it must support, all while the queue changes under it:

- `insert` / `remove` a request in O(depth) tree nodes plus one comparison of its symbols;
- tell at once whether any two waiting requests share a prefix (`has_sharing`);
- for a request: its cluster (deepest node that at least two requests share) and its score
  (sum of pending_count x edge length over its path), without descending the tree again;
- all scores and clusters in one traversal (`refresh`).

Plan.  A node owns one edge, the symbols between its parent and itself, as exact packed `bytes`.
All children of all nodes live in ONE dictionary keyed `(parent uid << 32) | first symbol`, so a
descent step is one probe; siblings and terminators are intrusive linked lists, so a traversal needs
neither stack nor dictionary.  Every request keeps its `Terminator` handle: removal and per-request
questions start at the leaf and climb.  A node without terminators always has at least two children;
`remove` merges a node that loses this property, which keeps the tree canonical: its shape depends on
the set of keys only, not on the history.  docs/pending_tree.md argues each choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, final

from mypy_extensions import i64

from peek.errors import DuplicateRequest, UnknownRequest
from peek.request import SINGLETON, PendingRequest
from peek.trie.keys import match_edge, pack, symbol_at

THETA: Final = 32
"""Default length in symbols of the head by which pioneers are told apart (the paper's theta)."""


class Cluster(NamedTuple):
    """The deepest node that a request shares with another waiting request."""

    node_id: int
    depth: int
    """Symbols from the root to the node."""
    size: int
    """Waiting requests at or below the node."""


@final
class Node:
    """One tree node and the edge that leads to it.

    `depth` counts symbols from the root and never changes: a split gives the upper half a new node,
    a merge keeps the lower one.  The `walk_*` fields are scratch space of the dual-walk, `acc_*` of
    `refresh`.
    """

    __slots__ = (
        "acc_head",
        "acc_score",
        "count",
        "depth",
        "edge",
        "kid",
        "n_kids",
        "next",
        "parent",
        "prev",
        "terminator",
        "uid",
        "view",
        "walk_cursor",
        "walk_epoch",
        "walk_matched",
    )

    def __init__(self, edge: bytes, parent: Node | None, uid: i64, count: i64, depth: i64) -> None:
        self.edge = edge
        self.view: memoryview | None = None
        self.parent: Node | None = parent
        self.uid: i64 = uid
        self.count: i64 = count
        self.depth: i64 = depth
        self.n_kids: i64 = 0
        self.kid: Node | None = None
        self.prev: Node | None = None
        self.next: Node | None = None
        self.terminator: Terminator | None = None
        self.acc_score: i64 = 0
        self.acc_head: i64 = 0
        self.walk_matched: i64 = 0
        self.walk_cursor: object = None
        self.walk_epoch: i64 = 0


@final
class Terminator:
    """The handle of one waiting request: where its key ends in the tree."""

    __slots__ = ("next", "node", "prev", "request")

    def __init__(self, request: PendingRequest, node: Node) -> None:
        self.request = request
        self.node = node
        self.prev: Terminator | None = None
        self.next: Terminator | None = None


@final
class PendingTree:
    """Radix tree over the waiting requests, one root per namespace.

    Costs are in tree nodes on the path (`d`, usually 2..4) and symbols of the key (`k`).

    >>> tree = PendingTree()
    >>> tree.insert("a", [1, 2, 3, 4]); tree.insert("b", [1, 2, 9])
    >>> tree.has_sharing, tree.pending_count([1, 2]), tree.score("b")
    (True, 2, 5)
    """

    __slots__ = (
        "_edges",
        "_free_uids",
        "_handles",
        "_n_nodes",
        "_n_shared",
        "_next_uid",
        "_owners",
        "_roots",
        "_sequence",
        "chained",
        "version",
    )

    def __init__(self, chained: bool = False) -> None:
        """An empty tree.

        Args:
            chained: symbols are chained block hashes, so that each symbol occurs at one place of the
                tree only; `owner` then finds that place.  Costs one dictionary entry per symbol.
        """
        self.chained = chained
        self._owners: dict[int, Node] = {}
        self._roots: dict[str, Node] = {}
        self._edges: dict[int, Node] = {}
        self._handles: dict[str, Terminator] = {}
        self._n_nodes: i64 = 0
        self._n_shared: i64 = 0
        self._next_uid: i64 = 1
        self._free_uids: list[int] = []
        self._sequence: i64 = 0
        self.version: i64 = 0
        """Grows with every change; equal versions mean equal trees."""

    def __len__(self) -> int:
        """Waiting requests.  O(1)."""
        return len(self._handles)

    def __contains__(self, request_id: object) -> bool:
        """Whether the request waits.  O(1)."""
        return request_id in self._handles

    @property
    def has_sharing(self) -> bool:
        """True if any two waiting requests share at least one symbol.  O(1)."""
        return self._n_shared > 0

    @property
    def node_count(self) -> int:
        """Tree nodes, roots excluded.  O(1)."""
        return self._n_nodes

    def insert(self, request_id: str, key: object, namespace: str = "") -> None:
        """Add a request.  O(k) to pack the key, O(d) nodes.

        Raises `DuplicateRequest` or `InvalidKey`; the tree is then unchanged.
        """
        self.add(PendingRequest(request_id, key, 0.0, namespace))

    def add(self, request: PendingRequest) -> None:
        """Add a request object and take over its key (`request.key` becomes None).

        Sets `request.sequence` and `request.length`.  Errors and cost as `insert`.
        """
        request_id = request.request_id
        if request_id in self._handles:
            raise DuplicateRequest(f"request {request_id!r} is already waiting")
        packed = pack(request.key)
        node = self._descend(request.namespace, packed)
        terminator = Terminator(request, node)
        head = node.terminator
        if head is not None:
            head.prev = terminator
            terminator.next = head
        node.terminator = terminator
        self._handles[request_id] = terminator
        self._sequence += 1
        self.version += 1
        request.sequence = self._sequence
        request.length = len(packed) >> 2
        request.key = None

    def _descend(self, namespace: str, packed: bytes) -> Node:
        """Walk down `packed`, splitting and growing; count one more request on every node passed."""
        node = self._root_for(namespace)
        node.count += 1
        edges = self._edges
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
                self._n_shared += 1
            node = child
            at += common
        return node

    def _root_for(self, namespace: str) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = Node(b"", None, self._take_uid(), 0, 0)
            self._roots[namespace] = root
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
        self._n_nodes += 1
        _link(parent, node)
        return node

    def _split(self, parent: Node, child: Node, slot: i64, at: i64) -> Node:
        """Cut `child`'s edge behind byte `at`; returns the new upper node."""
        edge = child.edge
        _unlink(parent, child)
        upper = self._new_node(edge[:at], parent, child.count, parent.depth + (at >> 2))
        if child.count > 1:
            self._n_shared += 1
        child.edge = edge[at:]
        child.view = None
        child.parent = upper
        _link(upper, child)
        self._edges[(upper.uid << 32) | symbol_at(edge, at)] = child
        self._edges[slot] = upper
        if self.chained:
            self._own(upper.edge, upper)
        return upper

    def remove(self, request_id: str) -> PendingRequest:
        """Take a request out; returns its object.  O(d); `UnknownRequest` if it does not wait."""
        terminator = self._handles.pop(request_id, None)
        if terminator is None:
            raise UnknownRequest(f"request {request_id!r} is not waiting")
        self.version += 1
        node = terminator.node
        _unlink_terminator(node, terminator)
        lowest = self._discount(terminator.request.namespace, node)
        if lowest is not None and lowest.terminator is None and lowest.n_kids == 1:
            self._merge(lowest)
        return terminator.request

    def _discount(self, namespace: str, node: Node) -> Node | None:
        """Count one request less from `node` up; prune what is empty; the lowest survivor but root."""
        lowest: Node | None = None
        current = node
        while True:
            parent = current.parent
            current.count -= 1
            if parent is None:
                break
            if current.count == 0:
                del self._edges[(parent.uid << 32) | symbol_at(current.edge, 0)]
                _unlink(parent, current)
                if self.chained:
                    self._disown(current.edge)
                self._retire(current)
            else:
                if current.count == 1:
                    self._n_shared -= 1
                if lowest is None:
                    lowest = current
            current = parent
        if current.count == 0:
            del self._roots[namespace]
            self._free_uids.append(current.uid)
        return lowest

    def _merge(self, node: Node) -> None:
        """Join a node that has one child and no terminator with that child; the child survives."""
        child = node.kid
        parent = node.parent
        assert child is not None and parent is not None
        del self._edges[(node.uid << 32) | symbol_at(child.edge, 0)]
        self._edges[(parent.uid << 32) | symbol_at(node.edge, 0)] = child
        _unlink(node, child)
        _unlink(parent, node)
        if self.chained:
            self._own(node.edge, child)
        child.edge = node.edge + child.edge
        child.view = None
        child.parent = parent
        _link(parent, child)
        if node.count > 1:
            self._n_shared -= 1
        self._retire(node)
        node.kid = child  # forwards whoever still holds a mark on the merged node, see `survivor`

    def _own(self, edge: bytes, node: Node) -> None:
        owners = self._owners
        n: i64 = len(edge)
        at: i64 = 0
        while at < n:
            owners[symbol_at(edge, at)] = node
            at += 4

    def _disown(self, edge: bytes) -> None:
        owners = self._owners
        n: i64 = len(edge)
        at: i64 = 0
        while at < n:
            del owners[symbol_at(edge, at)]
            at += 4

    def _retire(self, node: Node) -> None:
        node.parent = None
        node.count = 0
        node.walk_cursor = None
        self._free_uids.append(node.uid)
        self._n_nodes -= 1

    # -- questions ---------------------------------------------------------------------------------

    def request(self, request_id: str) -> PendingRequest:
        """The request object behind an id.  O(1); `UnknownRequest`."""
        return self._handle(request_id).request

    def requests(self) -> list[PendingRequest]:
        """All requests in the order they were added.  O(n)."""
        return [terminator.request for terminator in self._handles.values()]

    def key_of(self, request_id: str) -> bytes:
        """The packed key of a request, put together from its path.  O(k); `UnknownRequest`."""
        node: Node | None = self._handle(request_id).node
        edges: list[bytes] = []
        while node is not None:
            edges.append(node.edge)
            node = node.parent
        edges.reverse()
        return b"".join(edges)

    def leaf(self, request_id: str) -> Node:
        """The node where a request ends.  O(1); `UnknownRequest`."""
        return self._handle(request_id).node

    def roots(self) -> Iterator[tuple[str, Node]]:
        """Namespaces in use and their root nodes."""
        return iter(list(self._roots.items()))

    def child(self, node: Node, symbol: i64) -> Node | None:
        """The child of `node` whose edge starts with `symbol` (unsigned).  O(1)."""
        return self._edges.get((node.uid << 32) | symbol)

    def root(self, namespace: str) -> Node | None:
        """The root of a namespace, None if nothing waits there.  O(1)."""
        return self._roots.get(namespace)

    def owner(self, symbol: int) -> Node | None:
        """The node whose edge holds a symbol; None if no waiting request needs it.  O(1).

        Only for `chained` trees.
        """
        return self._owners.get(symbol)

    def _handle(self, request_id: str) -> Terminator:
        terminator = self._handles.get(request_id)
        if terminator is None:
            raise UnknownRequest(f"request {request_id!r} is not waiting")
        return terminator

    def cluster(self, request_id: str) -> Cluster | None:
        """The request's cluster, None for a singleton.  O(1)."""
        node = shared_node(self._handle(request_id).node)
        return None if node is None else Cluster(node.uid, node.depth, node.count)

    def clusters(self) -> dict[str, Cluster | None]:
        """Clusters of all requests.  O(n)."""
        return {request_id: self.cluster(request_id) for request_id in self._handles}

    def score(self, request_id: str) -> int:
        """Sum of pending_count x edge length over the request's path (Eq. 1).  O(d)."""
        node = self._handle(request_id).node
        total: i64 = 0
        parent = node.parent
        while parent is not None:
            total += node.count * (node.depth - parent.depth)
            node = parent
            parent = node.parent
        return total

    def scores(self) -> dict[str, int]:
        """Scores of all requests, in one traversal.  O(n + nodes)."""
        self.refresh(THETA)
        return {request_id: handle.request.score for request_id, handle in self._handles.items()}

    def pending_count(self, key: object, namespace: str = "") -> int:
        """Waiting requests whose key starts with `key`.  O(k + d)."""
        packed = pack(key)
        node = self._roots.get(namespace)
        n: i64 = len(packed)
        at: i64 = 0
        while node is not None and at < n:
            node = self._edges.get((node.uid << 32) | symbol_at(packed, at))
            if node is not None:
                common: i64 = match_edge(node.edge, packed, at)
                at += common
                if common < len(node.edge) and at < n:
                    return 0
        return 0 if node is None else node.count

    def refresh(self, theta: i64) -> None:
        """Write score, cluster and head of every request, in one traversal.  O(n + nodes).

        Args:
            theta: symbols of the head; `request.head` becomes the id of the node that holds the
                first `theta` symbols (equal ids: equal heads), 0 for keys shorter than that.
        """
        for root in self._roots.values():
            _refresh_below(root, theta)

    def check(self) -> None:
        """Verify every invariant; `AssertionError` names the one that is broken.  O(n + nodes)."""
        seen: i64 = 0
        shared: i64 = 0
        terminators: i64 = 0
        for root in self._roots.values():
            assert root.count > 0 and root.depth == 0 and root.parent is None, "empty root kept"
            stack = [root]
            while stack:
                node = stack.pop()
                terminators += self._check_node(node)
                if node.parent is not None:
                    seen += 1
                    shared += 1 if node.count >= 2 else 0
                kid = node.kid
                while kid is not None:
                    stack.append(kid)
                    kid = kid.next
        assert seen == self._n_nodes == len(self._edges), "node count"
        assert shared == self._n_shared, "count of shared nodes"
        assert terminators == len(self._handles), "terminator count"

    def _check_node(self, node: Node) -> i64:
        n_terminators: i64 = 0
        terminator = node.terminator
        while terminator is not None:
            n_terminators += 1
            request = terminator.request
            assert terminator.node is node and request.length == node.depth, "terminator off its node"
            assert self._handles[request.request_id] is terminator, "handle of another request"
            following = terminator.next
            assert following is None or following.prev is terminator, "terminator list"
            terminator = following
        total = n_terminators
        n_kids: i64 = 0
        kid = node.kid
        while kid is not None:
            n_kids += 1
            total += kid.count
            assert kid.parent is node, "parent link"
            assert kid.depth == node.depth + (len(kid.edge) >> 2) > node.depth, "depth"
            assert self._edges[(node.uid << 32) | symbol_at(kid.edge, 0)] is kid, "edge table"
            following_kid = kid.next
            assert following_kid is None or following_kid.prev is kid, "sibling list"
            kid = following_kid
        assert n_kids == node.n_kids, "child count"
        assert total == node.count, "pending_count"
        if node.parent is not None:
            assert node.count > 0 and (n_terminators > 0 or n_kids > 1), "node that should be merged"
        return n_terminators


def shared_node(leaf: Node) -> Node | None:
    """The deepest node at or above `leaf` with pending_count >= 2; None for a singleton.  O(1).

    Any node above a leaf's parent has a larger count, so only these two can be the deepest.
    """
    if leaf.count >= 2:
        return leaf if leaf.parent is not None else None
    parent = leaf.parent
    if parent is None or parent.parent is None:
        return None
    return parent


def survivor(node: Node) -> Node | None:
    """The node that stands today where a remembered node stood; None if nobody waits there."""
    current = node
    while current.parent is None:
        below = current.kid
        if below is None or current.depth == 0:
            return None
        current = below
    return current


def _link(parent: Node, child: Node) -> None:
    head = parent.kid
    child.next = head
    child.prev = None
    if head is not None:
        head.prev = child
    parent.kid = child
    parent.n_kids += 1


def _unlink(parent: Node, child: Node) -> None:
    before = child.prev
    after = child.next
    if before is None:
        parent.kid = after
    else:
        before.next = after
    if after is not None:
        after.prev = before
    child.prev = None
    child.next = None
    parent.n_kids -= 1


def _unlink_terminator(node: Node, terminator: Terminator) -> None:
    before = terminator.prev
    after = terminator.next
    if before is None:
        node.terminator = after
    else:
        before.next = after
    if after is not None:
        after.prev = before
    terminator.prev = None
    terminator.next = None


def _refresh_below(root: Node, theta: i64) -> None:
    """Pre-order over one namespace by the links alone: no recursion, no stack."""
    root.acc_score = 0
    root.acc_head = 0
    node = root
    while True:
        if node.terminator is not None:
            _refresh_terminators(node)
        following = next_preorder(node)
        if following is None:
            return
        parent = following.parent
        assert parent is not None
        following.acc_score = parent.acc_score + following.count * (following.depth - parent.depth)
        if parent.acc_head != 0 or following.depth < theta:
            following.acc_head = parent.acc_head
        else:
            following.acc_head = following.uid
        node = following


def next_preorder(node: Node) -> Node | None:
    """The node after `node` in a depth-first walk: its first child, else the next branch."""
    return node.kid if node.kid is not None else next_branch(node)


def next_branch(node: Node) -> Node | None:
    """The node after the whole subtree of `node`; None at the end of the tree."""
    current: Node | None = node
    while current is not None:
        if current.next is not None:
            return current.next
        current = current.parent
    return None


def _refresh_terminators(node: Node) -> None:
    cluster = shared_node(node)
    cluster_id: i64 = SINGLETON
    depth: i64 = 0
    size: i64 = 1
    if cluster is not None:
        cluster_id = cluster.uid
        depth = cluster.depth
        size = cluster.count
    terminator = node.terminator
    while terminator is not None:
        request = terminator.request
        request.score = node.acc_score
        request.head = node.acc_head
        request.cluster_id = cluster_id
        request.cluster_depth = depth
        request.cluster_size = size
        terminator = terminator.next
