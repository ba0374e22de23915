"""A compressed radix tree over the waiting prompts.

Operations that it supports, all while the queue changes:

- `insert` / `remove` a request in O(depth) tree nodes plus a copy of the edge that is cut or joined;
- tell in O(1) whether any two waiting requests share a prefix (`has_sharing`);
- for a request: its cluster (deepest node that at least two requests share) and its score (sum of
  pending_count x edge length over its path), without descending the tree again;
- all scores and clusters in one traversal (`refresh`).

`PrefixStructure` holds the shape: nodes, edges, splits and merges, and how many keys pass each node.  Its one
rule: a node below a root either ends a key or has at least two children.  `grow` splits and adds nodes as a
key needs them, `shrink` prunes and merges.  So the shape depends only on the set of keys, not on the history.
A node owns one edge, as packed `bytes`.  All children of all nodes are in one dictionary with the key
`(parent uid << 32) | first symbol`.  A step down is one probe with an integer key, and a leaf carries no
dictionary of its own.

`PendingTree` adds the requests.  Each has a `Terminator`, at which removals and queries start.  A `Journal`
of changes lets its readers (the dual-walk, the default policy's frontier) work on the changes instead of the
whole tree.  Nothing is written to it before the first reader asks for it.
docs/pending_tree.md gives the reason for each choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, NoReturn, final

from peek.errors import DuplicateRequest, InvalidKey, PlannerBusy, UnknownRequest
from peek.native import i64
from peek.request import SINGLETON, PendingRequest
from peek.trie.keys import SYMBOL_BYTES, match_edge, match_span, pack, symbol_at
from peek.trie.node import (
    Node,
    Terminator,
    copy_marks,
    link,
    link_terminator,
    shared_node,
    unlink,
    unlink_terminator,
)

_AT_LEAST: Final[i64] = 4096
"""Up to this number of entries a journal is always worth reading."""
AT_MOST: Final[i64] = 1 << 17
"""Maximum number of entries of a journal, in case no reader has it begin anew."""


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
    nothing.  This finds mistakes; it is no lock.  Queries are never refused, but during a change their
    answers mean nothing.  A copy or pickle of a tree is refused with `TypeError`.

    Args:
        chained: whether symbols are chained block hashes, so that each occurs at only one place of the tree;
            `owner` then finds that place.  Costs one dictionary entry per symbol.
    """

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

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a PendingTree cannot be copied or pickled: insert what waits into a new one")

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
        invalid if a symbol occurs twice in it, or elsewhere in the tree after other symbols.
        """
        self.add(PendingRequest(request_id, key, 0.0, namespace))

    def add(self, request: PendingRequest) -> None:
        """Add a request object and take over its key (`request.key` becomes None).

        Sets `request.sequence` and `request.length`.  Errors and cost as `insert`.
        """
        self._hang(request)
        self.number(request)

    def number(self, request: PendingRequest) -> None:
        """Give a request object its `sequence`, for `put_back`.  O(1)."""
        self._sequence += 1
        request.sequence = self._sequence

    def put_back(self, request: PendingRequest) -> None:
        """Add a request object that has and keeps a `sequence`: it was removed, or only numbered so far.

        Errors and cost as `insert`.  The next call of `requests` or `handles` sorts all requests, O(n log n)
        once, however many were put back.
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
            terminator = self.handle(request_id)
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
        """Replace a request's key by one that continues it; the request then has no tail.

        Costs a removal and an insertion; its place in the queue and all else stay.  `UnknownRequest`, or
        `InvalidKey`; the tree is then unchanged.
        """
        self.enter("PendingTree.extend")
        try:
            terminator = self.handle(request_id)
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
        """The journal of the tree's changes since the first call of this method.  O(1).

        It begins anew if reading it would cost more than looking at all waiting requests.
        """
        journal = self._shape.journal
        if journal is None:
            journal = Journal()
            self._shape.journal = journal
        if len(journal.nodes) > _AT_LEAST + 4 * len(self._handles):
            journal.begin()
        return journal

    # -- queries -----------------------------------------------------------------------------------

    def request(self, request_id: str) -> PendingRequest:
        """The request object of an id.  O(1); `UnknownRequest`."""
        return self.handle(request_id).request

    def requests(self) -> list[PendingRequest]:
        """All requests in the order they were added.  O(n)."""
        return [terminator.request for terminator in self._in_order().values()]

    def newest(self) -> Iterator[PendingRequest]:
        """All requests, the one added last first; valid until the tree changes.  O(1)."""
        return map(_request_of, reversed(self._in_order().values()))

    def handles(self) -> Iterator[Terminator]:
        """The terminators of all requests, first added first; valid until the tree changes.  O(1)."""
        return iter(self._in_order().values())

    def _in_order(self) -> dict[str, Terminator]:
        """The handles by `sequence`, sorted again if a request was put back since."""
        if self._unsorted:
            self._unsorted = False
            in_order = sorted(self._handles.values(), key=_sequence_of)
            self._handles = {terminator.request.request_id: terminator for terminator in in_order}
        return self._handles

    def key_of(self, request_id: str) -> bytes:
        """The packed key of a request, joined from the edges of its path.  O(k); `UnknownRequest`."""
        node: Node | None = self.handle(request_id).node
        edges: list[bytes] = []
        while node is not None:
            edges.append(node.edge)
            node = node.parent
        edges.reverse()
        return b"".join(edges)

    def leaf(self, request_id: str) -> Node:
        """The node where a request ends.  O(1); `UnknownRequest`."""
        return self.handle(request_id).node

    @property
    def n_namespaces(self) -> int:
        """Number of namespaces in use.  O(1)."""
        return len(self._shape.roots)

    def roots(self) -> Iterator[tuple[str, Node]]:
        """Each namespace in use and its root node; valid until the tree changes."""
        return iter(self._shape.roots.items())  # a list of thousands would trigger the garbage collector

    def root(self, namespace: str) -> Node | None:
        """The root of a namespace; None if no request waits there.  O(1)."""
        return self._shape.roots.get(namespace)

    def child(self, node: Node, symbol: i64) -> Node | None:
        """The child of `node` whose edge starts with `symbol` (unsigned).  O(1)."""
        return self._shape.edges.get((node.uid << 32) | symbol)

    def follow(self, symbols: bytes, node: Node, at: i64) -> tuple[i64, Node, i64]:
        """Follow packed symbols from byte `at` of the edge of `node`.  O(shared part).

        Returns the number of bytes found, and the place after them: a node and a byte of its edge.
        """
        edges = self._shape.edges
        n: i64 = len(symbols)
        done: i64 = 0
        while done < n:
            if at == len(node.edge):
                child = edges.get((node.uid << 32) | symbol_at(symbols, done))
                if child is None:
                    break
                node = child
                at = 0
            common: i64 = match_span(symbols, done, node.edge, at)
            done += common
            at += common
            if at < len(node.edge):
                break
        return done, node, at

    def shared_symbols(self, key: bytes, namespace: str) -> i64:
        """Symbols of the longest prefix that a packed key shares with a waiting request.  O(shared part)."""
        root = self.root(namespace)
        return 0 if root is None else self.follow(key, root, 0)[0] // SYMBOL_BYTES

    def owner(self, symbol: int) -> Node | None:
        """The node of a `chained` tree whose edge holds a symbol; None if there is none.  O(1)."""
        return self._shape.owners.get(symbol)

    def handle(self, request_id: str) -> Terminator:
        """The terminator of a waiting request.  O(1); `UnknownRequest`."""
        terminator = self._handles.get(request_id)
        if terminator is not None:
            return terminator
        raise UnknownRequest(f"request {request_id!r} is not waiting")

    def cluster(self, request_id: str) -> Cluster | None:
        """The request's cluster; None for a singleton.  O(1)."""
        node = shared_node(self.handle(request_id).node)
        return None if node is None else Cluster(node.uid, node.depth, node.count)

    def clusters(self) -> dict[str, Cluster | None]:
        """Clusters of all requests, by id.  O(n)."""
        return {request_id: self.cluster(request_id) for request_id in self._handles}

    def score(self, request_id: str) -> int:
        """Sum of pending_count x edge length over the request's path (Eq. 1).  O(d)."""
        handle = self.handle(request_id)
        total: i64 = handle.request.tail
        node = handle.node
        parent = node.parent
        while parent is not None:
            total += node.count * (node.depth - parent.depth)
            node = parent
            parent = node.parent
        return total

    def scores(self) -> dict[str, int]:
        """Scores of all requests by id, in one traversal.  O(n + nodes)."""
        self.refresh_held(self._theta)
        return {request_id: handle.request.score for request_id, handle in self._handles.items()}

    def pending_count(self, key: object, namespace: str = "") -> int:
        """Number of waiting requests whose key starts with `key`.  O(k + d); `InvalidKey`."""
        packed = pack(key)
        root = self._shape.roots.get(namespace)
        if root is None:
            return 0
        found, node, _ = self.follow(packed, root, 0)
        return node.count if found == len(packed) else 0

    def refresh(self, theta: i64) -> None:
        """Write score, cluster and head of every request, in one traversal.  O(n + nodes).

        `request.head` becomes the id of the node that holds the first `theta` symbols, so equal heads have
        equal ids; 0 for shorter keys.  `PlannerBusy` while another call holds the tree.
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
        """Symbols per block of the cache in the last dual-walk."""
        return self._shape.block

    def begin_walk(self, block: i64) -> int:
        """Make all marks of earlier walks old; return the number of the walk that begins.  O(1)."""
        self._shape.block = block
        self.epoch += 1
        return self.epoch

    def check(self) -> None:
        """Verify every invariant; `AssertionError` names the broken one.  O(n + nodes + symbols)."""
        assert check_structure(self._shape) == len(self._handles), "terminator count"
        for request_id, terminator in self._handles.items():
            request = terminator.request
            assert request.request_id == request_id, "handle of another request"
            top = terminator.node
            while top.parent is not None:
                top = top.parent
            assert top is self.root(request.namespace), "namespace"


def _request_of(terminator: Terminator) -> PendingRequest:
    return terminator.request


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

    An edge is added to the score on the way down, and subtracted on the way up.
    """
    score: i64 = 0
    head: i64 = 0  # the highest node on the path that holds theta symbols
    node = root
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


# -- the shape ----------------------------------------------------------------------------------------------


@final
class Journal:
    """Nodes that were made, retired or marked anew, or whose own requests have changed, in order.

    An entry may be out of date or occur twice: it says where to look, not what is there.

    Attributes:
        volume: a number that grows whenever the entries are dropped, so that readers start afresh.
        nodes: the entries of this volume.
        left: the `uid` of each terminator that has left its place, never more than there are `nodes`.
            Terminators themselves would keep alive the ids that clients have given to their requests.
    """

    def __init__(self) -> None:
        self.volume: i64 = 0
        self.nodes: list[Node] = []
        self.left: list[int] = []

    def note(self, node: Node) -> None:
        """Note that something about this node is new.  O(1)."""
        if len(self.nodes) == AT_MOST:
            self.begin()
        self.nodes.append(node)

    def begin(self) -> None:
        """Drop all entries."""
        self.volume += 1
        self.nodes = []
        self.left = []


@final
class Bookmark:
    """How far one reader has read: its places in `nodes` and in `left`."""

    def __init__(self) -> None:
        self.volume: i64 = -1
        self.at: i64 = 0
        self.left_at: i64 = 0

    def catch_up(self, journal: Journal) -> bool:
        """Jump to the end; return False if the reader has missed entries that were dropped."""
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

    def __init__(self, chained: bool) -> None:
        self.chained = chained
        self.block: i64 = 1
        """Symbols per block of the cache in the last dual-walk."""
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

        `InvalidKey` for a key that cannot be chained; the shape is then unchanged.
        """
        node = self.roots.get(namespace)
        if node is None:
            node = Node(b"", None, self._take_uid(), 0, 0)
            self.roots[namespace] = node
        node.count += 1
        edges = self.edges
        n: i64 = len(packed)
        at: i64 = 0
        while at < n:
            if node.n_kids == 1:  # needs no probe; a chain of nested prompts has only such nodes
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
        """Count one key less from its end `node` up; prune and merge nodes that are no longer needed.

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

    def note(self, node: Node) -> None:
        """Add an entry to the journal, if there is one.  O(1)."""
        if self.journal is not None:
            self.journal.note(node)

    def note_left(self, terminator: Terminator) -> None:
        """Note that a request leaves its place; `shrink` comes next and notes a node.  O(1)."""
        if self.journal is not None:
            self.journal.left.append(terminator.uid)

    def _take_uid(self) -> i64:
        """Return an unused node id; ids are reused so that `uid << 32` stays a native integer."""
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
        """Cut `child`'s edge after byte `at`; return the new upper node."""
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
        """Join a node that ends no key with its only child; the child survives."""
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

    def _retire(self, node: Node) -> None:
        """Take a node out of the tree; drop its symbols and cursor, as others may still refer to the node."""
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
        fault = ""
        for symbol in memoryview(leaf.edge).cast("I"):
            owner = owners.get(symbol)
            if owner is leaf:
                del owners[symbol]
            elif not fault:
                where = "comes twice" if owner is None else "stands in another place already"
                fault = f"symbol {symbol} {where}"
        return fault

    def _disown(self, edge: bytes) -> None:
        owners = self.owners
        n: i64 = len(edge)
        at: i64 = 0
        while at < n:
            del owners[symbol_at(edge, at)]
            at += 4


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
            terminators += _check_node(shape, node, stack)
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


def _check_node(shape: PrefixStructure, node: Node, stack: list[Node]) -> i64:
    """Verify a node, put its children on the stack, and return the number of keys that end there."""
    ends: i64 = 0
    terminator = node.terminator
    assert terminator is None or terminator.prev is None, "head of the terminator list"
    while terminator is not None:
        ends += 1
        assert terminator.node is node and terminator.request.length == node.depth, "terminator"
        assert terminator.next is None or terminator.next.prev is terminator, "terminator list"
        terminator = terminator.next
    n_kids: i64 = 0
    count = ends
    kid = node.kid
    assert kid is None or kid.prev is None, "head of the sibling list"
    while kid is not None:
        n_kids += 1
        count += kid.count
        assert kid.parent is node, "parent link"
        assert len(kid.edge) & 3 == 0, "edge of whole symbols"
        assert kid.depth == node.depth + (len(kid.edge) >> 2) > node.depth, "depth"
        assert shape.edges.get((node.uid << 32) | symbol_at(kid.edge, 0)) is kid, "edge table"
        assert kid.next is None or kid.next.prev is kid, "sibling list"
        stack.append(kid)
        kid = kid.next
    assert count == node.count, "pending_count"
    if node.parent is not None:
        assert node.count > 0 and (ends > 0 or node.n_kids > 1), "node that should be merged"
    assert n_kids == node.n_kids, "child count"
    view = node.view
    assert view is None or view.tobytes() == node.edge, "view of an older edge"
    symbols = memoryview(node.edge).cast("I")
    assert not shape.chained or all(shape.owners.get(each) is node for each in symbols), "owners"
    return ends
