"""A compressed radix tree over the waiting prompts.

Operations that it supports, all while the queue changes:

- `insert` / `remove` a request in O(depth) tree nodes plus one comparison of its symbols;
- tell at once whether any two waiting requests share a prefix (`has_sharing`);
- for a request: its cluster (deepest node that at least two requests share) and its score (sum of
  pending_count x edge length over its path), without descending the tree again;
- all scores and clusters in one traversal (`refresh`).

`PrefixStructure` holds the shape.  A node owns one edge, as packed `bytes`.  Each request has a `Terminator`,
at which removal and questions start.  docs/pending_tree.md gives the reason for each choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, final

from mypy_extensions import i64

from peek.errors import DuplicateRequest, InvalidKey, PlannerBusy, UnknownRequest
from peek.request import SINGLETON, PendingRequest
from peek.trie.keys import pack
from peek.trie.node import Node, Terminator, link_terminator, shared_node, unlink_terminator
from peek.trie.structure import Journal, PrefixStructure, check_tree


@final
class PendingTree:
    """Radix tree over the waiting requests, one root per namespace.

    Costs are in tree nodes on the path (`d`, usually 2..4) and symbols of the key (`k`).

    >>> tree = PendingTree()
    >>> tree.insert("a", [1, 2, 3, 4]); tree.insert("b", [1, 2, 9])
    >>> tree.has_sharing, tree.pending_count([1, 2]), tree.score("b")
    (True, 2, 5)

    For one thread at a time.  A method that changes the tree holds it, and so does a `DualWalk`.  A second
    change meanwhile, from another thread or from code that the holder called, raises `PlannerBusy` and does
    nothing.  This finds mistakes; it is no lock.  Questions are never refused; answers during a change mean
    nothing.

    Args:
        chained: whether symbols are chained block hashes, so that each occurs at one place of the tree only;
            `owner` then finds that place.  Costs one dictionary entry per symbol.
    """

    __slots__ = (
        "_free_uids",
        "_handles",
        "_holder",
        "_sequence",
        "_shape",
        "_theta",
        "_unsorted",
        "chained",
        "epoch",
        "version",
        "walks",
    )

    def __init__(self, chained: bool = False) -> None:
        self.chained = chained
        self._shape = PrefixStructure(chained)
        self._handles: dict[str, Terminator] = {}
        self._free_uids: list[int] = []
        self._sequence: i64 = 0
        self._unsorted = False
        self._theta: i64 = 1
        self._holder = ""
        self.epoch: i64 = 0
        """Number of the last dual-walk that began anew; marks with an equal `walk_epoch` are fresh."""
        self.version: i64 = 0
        """Grows with every change; equal versions mean equal trees."""
        self.walks: i64 = 0
        """Grows with every dual-walk that left a mark, also one that went on from earlier marks."""

    def __len__(self) -> int:
        """Number of waiting requests.  O(1)."""
        return len(self._handles)

    def __contains__(self, request_id: object) -> bool:
        """Whether the request waits.  O(1)."""
        return request_id in self._handles

    @property
    def has_sharing(self) -> bool:
        """True if any two waiting requests share at least one symbol.  O(1)."""
        return self._shape.n_shared > 0

    @property
    def uid_limit(self) -> int:
        """A number above every node's `uid`.  O(1)."""
        return self._shape.next_uid

    @property
    def node_count(self) -> int:
        """Number of tree nodes, roots excluded.  O(1)."""
        return self._shape.n_nodes

    def enter(self, what: str) -> None:
        """Hold the tree for a call named `what`, until `leave`.  O(1).

        `PlannerBusy` if a call holds it.  The holder may use `refresh_held` and `DualWalk.walk_held`.
        """
        if self._holder:
            raise PlannerBusy(
                f"{what} was called while {self._holder} is under way: from a second thread, or from what "
                f"{self._holder} had called"
            )
        self._holder = what

    def leave(self) -> None:
        """Release the tree after `enter`."""
        self._holder = ""

    def insert(self, request_id: str, key: object, namespace: str = "") -> None:
        """Add a request.  O(k) to pack the key, O(d) nodes.

        Raises `DuplicateRequest` or `InvalidKey`; the tree is then unchanged.  A key of a `chained` tree is
        invalid if a symbol comes twice in it, or stands elsewhere in the tree behind other symbols.
        """
        self.add(PendingRequest(request_id, key, 0.0, namespace))

    def add(self, request: PendingRequest) -> None:
        """Add a request object and take over its key (`request.key` becomes None).

        Sets `request.sequence` and `request.length`.  Errors and cost as `insert`.
        """
        self._hang(request)
        self.number(request)

    def number(self, request: PendingRequest) -> None:
        """Give a request object its place among the other requests, for `put_back`.  O(1)."""
        self._sequence += 1
        request.sequence = self._sequence

    def put_back(self, request: PendingRequest) -> None:
        """Add a request object that has its `sequence`, because it was removed or has only been numbered.

        It keeps its `sequence`.  Errors and cost as `insert`.  The next call of `requests` or `handles` sorts
        them, O(n log n) once for all requests that were put back.
        """
        self._hang(request)
        self._unsorted = True

    def _hang(self, request: PendingRequest) -> None:
        self.enter("PendingTree.add")
        try:
            request_id = request.request_id
            if request_id in self._handles:
                raise DuplicateRequest(f"request {request_id!r} is already waiting")
            packed = pack(request.key)
            leaf = self._shape.grow(request.namespace, packed)
        finally:
            self.leave()
        uid: i64 = self._free_uids.pop() if self._free_uids else len(self._handles)
        terminator = Terminator(request, leaf, uid)
        link_terminator(terminator)
        self._shape.note(leaf)
        self._handles[request_id] = terminator
        self.version += 1
        request.length = len(packed) >> 2
        request.key = None

    def remove(self, request_id: str) -> PendingRequest:
        """Take a request out; returns its object.  O(d); `UnknownRequest` if it does not wait."""
        self.enter("PendingTree.remove")
        try:
            terminator = self._handle(request_id)
            del self._handles[request_id]
            self.version += 1
            unlink_terminator(terminator.node, terminator)
            self._free_uids.append(terminator.uid)
            self._shape.note_left(terminator)
            self._shape.shrink(terminator.request.namespace, terminator.node)
            return terminator.request
        finally:
            self.leave()

    def extend(self, request_id: str, key: object) -> None:
        """Replace a request's key by one that continues it; the tail is then part of the key.

        Costs a removal and an insertion; its place in the queue and all else stay.  `UnknownRequest`, or
        `InvalidKey`; the tree is then unchanged.
        """
        self.enter("PendingTree.extend")
        try:
            terminator = self._handle(request_id)
            packed = pack(key)
            if not packed.startswith(self.key_of(request_id)):
                raise InvalidKey(f"the key does not continue the one of {request_id!r}")
            request = terminator.request
            old = terminator.node
            terminator.node = self._shape.grow(request.namespace, packed)  # it may refuse the key
            unlink_terminator(old, terminator)
            self._shape.note_left(terminator)
            link_terminator(terminator)
            self._shape.note(terminator.node)
            self._shape.shrink(request.namespace, old)
            request.length = len(packed) >> 2
            request.tail = 0
            self.version += 1
        finally:
            self.leave()

    def journal(self) -> Journal:
        """The journal of the tree's changes since the first call of this method.  O(1)."""
        return self._shape.written(len(self._handles))

    # -- questions ---------------------------------------------------------------------------------

    def request(self, request_id: str) -> PendingRequest:
        """The request object of an id.  O(1); `UnknownRequest`."""
        return self._handle(request_id).request

    def requests(self) -> list[PendingRequest]:
        """All requests in the order they were added.  O(n)."""
        self._sort()
        return [terminator.request for terminator in self._handles.values()]

    def handles(self) -> Iterator[Terminator]:
        """The terminators of all requests, first added first; valid until the tree changes.  O(1)."""
        self._sort()
        return iter(self._handles.values())

    def _sort(self) -> None:
        """Sort by `sequence`, if a request was put back since."""
        if self._unsorted:
            self._unsorted = False
            in_order = sorted(self._handles.values(), key=_sequence_of)
            self._handles = {terminator.request.request_id: terminator for terminator in in_order}

    def key_of(self, request_id: str) -> bytes:
        """The packed key of a request, joined from the edges of its path.  O(k); `UnknownRequest`."""
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

    @property
    def n_namespaces(self) -> int:
        """Number of namespaces in use.  O(1)."""
        return len(self._shape.roots)

    def roots(self) -> Iterator[tuple[str, Node]]:
        """Namespaces in use and their root nodes."""
        return iter(list(self._shape.roots.items()))

    def root(self, namespace: str) -> Node | None:
        """The root of a namespace; None if no request waits there.  O(1)."""
        return self._shape.roots.get(namespace)

    def child(self, node: Node, symbol: i64) -> Node | None:
        """The child of `node` whose edge starts with `symbol` (unsigned).  O(1)."""
        return self._shape.edges.get((node.uid << 32) | symbol)

    def owner(self, symbol: int) -> Node | None:
        """The node of a `chained` tree whose edge holds a symbol; None if there is none.  O(1)."""
        return self._shape.owners.get(symbol)

    def _handle(self, request_id: str) -> Terminator:
        terminator = self._handles.get(request_id)
        if terminator is not None:
            return terminator
        raise UnknownRequest(f"request {request_id!r} is not waiting")

    def cluster(self, request_id: str) -> Cluster | None:
        """The request's cluster; None for a singleton.  O(1)."""
        node = shared_node(self._handle(request_id).node)
        return None if node is None else Cluster(node.uid, node.depth, node.count)

    def clusters(self) -> dict[str, Cluster | None]:
        """Clusters of all requests, by id.  O(n)."""
        return {request_id: self.cluster(request_id) for request_id in self._handles}

    def score(self, request_id: str) -> int:
        """Sum of pending_count x edge length over the request's path (Eq. 1).  O(d)."""
        return score_of(self._handle(request_id))

    def scores(self) -> dict[str, int]:
        """Scores of all requests by id, in one traversal.  O(n + nodes)."""
        self.refresh_held(self._theta)
        return {request_id: handle.request.score for request_id, handle in self._handles.items()}

    def pending_count(self, key: object, namespace: str = "") -> int:
        """Number of waiting requests whose key starts with `key`.  O(k + d); `InvalidKey`."""
        node = self._shape.find(namespace, pack(key))
        return 0 if node is None else node.count

    def refresh(self, theta: i64) -> None:
        """Write score, cluster and head of every request, in one traversal.  O(n + nodes).

        `request.head` becomes the id of the node that holds the first `theta` symbols (equal ids: equal
        heads), 0 for keys shorter than that.  `PlannerBusy` while another call holds the tree.
        """
        self.enter("PendingTree.refresh")
        try:
            self.refresh_held(theta)
        finally:
            self.leave()

    def refresh_held(self, theta: i64) -> None:
        """`refresh` for a caller that holds the tree already (`enter`)."""
        self._theta = theta
        for root in self._shape.roots.values():
            refresh_below(root, theta)

    @property
    def block(self) -> int:
        """Symbols per block of the cache that the last dual-walk asked."""
        return self._shape.block

    def begin_walk(self, block: i64) -> int:
        """Make all marks of earlier walks old; return the number of the walk that begins.  O(1)."""
        self._shape.block = block
        self.epoch += 1
        return self.epoch

    def check(self) -> None:
        """Verify every invariant; `AssertionError` names the broken one.  O(n + nodes + symbols)."""
        check_tree(self._shape, self._handles)


def _sequence_of(terminator: Terminator) -> int:
    return terminator.request.sequence


class Cluster(NamedTuple):
    node_id: int
    depth: int
    size: int


_cluster: Any = Cluster  # assigned, because a named tuple loses its docstring when compiled
_cluster.__doc__ = """The deepest node that a request shares with another: its id, its depth (symbols from
the root), and its size (waiting requests at or below it)."""


def refresh_below(root: Node, theta: i64) -> None:
    """Write the signals of one namespace in pre-order, by the links alone: no recursion, no stack.

    On the way down an edge adds to the score, on the way up it is taken off again.
    """
    score: i64 = 0
    head: i64 = 0  # the highest node on the path that holds theta symbols
    node = root
    above: i64 = 0
    while True:
        if node.terminator is not None:
            _refresh_terminators(node, score, head)
        following = node.kid
        above = node.depth
        while following is None:
            parent = node.parent
            if parent is None:
                return
            above = parent.depth
            score -= node.count * (node.depth - above)
            if head == node.uid:
                head = 0
            following = node.next
            node = parent
        score += following.count * (following.depth - above)
        if head == 0 and following.depth >= theta:
            head = following.uid
        node = following


def _refresh_terminators(node: Node, score: i64, head: i64) -> None:
    """Write the signals of the requests that end in a node."""
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
        request.score = score + request.tail
        request.head = head
        request.cluster_id = cluster_id
        request.cluster_depth = depth
        request.cluster_size = size
        terminator = terminator.next


def score_of(handle: Terminator) -> int:
    """Sum of pending_count x edge length over the path of one request (Eq. 1), in symbols.  O(d)."""
    node = handle.node
    total: i64 = handle.request.tail
    parent = node.parent
    while parent is not None:
        total += node.count * (node.depth - parent.depth)
        node = parent
        parent = node.parent
    return total
