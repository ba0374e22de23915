"""PendingTree against its naive twin, under every sequence of inserts and removals hypothesis thinks of.

Four symbols and keys of at most six make almost every insert a split, a new leaf at an inner node or a
second terminator, and almost every removal a prune or a merge.
"""

from __future__ import annotations

from array import array
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.walks import place_of, symbols_of

from peek import DuplicateRequest, InvalidKey, PeekError, PendingRequest, PendingTree, UnknownRequest
from peek.testing.twins import NaivePendingTree, Pages, Place
from peek.trie.keys import pack, unpack

NAMESPACES = ["", "lora-1", "salt/2"]
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=6)
MALFORMED = st.sampled_from([[], b"", b"abc", [-1], [0, 2**31], [0.5], ["1"], "01", None, [[1]]])


def shape(tree: PendingTree) -> dict[Place, int]:
    """All nodes of a tree with their pending counts."""
    found = {}
    ahead = [(namespace, root.kid) for namespace, root in tree.roots()]
    while ahead:
        namespace, node = ahead.pop()
        if node is not None:
            found[place_of(node, namespace)] = node.count
            ahead += [(namespace, node.next), (namespace, node.kid)]
    return found


def assert_equal_to_twin(tree: PendingTree, twin: NaivePendingTree) -> None:
    assert len(tree) == len(twin.waiting)
    assert tree.has_sharing is twin.has_sharing()
    assert shape(tree) == twin.nodes()
    assert tree.node_count == len(twin.nodes())
    assert [request.request_id for request in tree.requests()] == list(twin.waiting)
    assert tree.scores() == twin.scores()
    assert {request_id: tree.score(request_id) for request_id in twin.waiting} == twin.scores()
    assert_equal_clusters(tree, twin)


def assert_equal_clusters(tree: PendingTree, twin: NaivePendingTree) -> None:
    expected = twin.clusters()
    nodes = twin.nodes()
    clusters = tree.clusters()
    assert clusters == {request_id: tree.cluster(request_id) for request_id in twin.waiting}
    assert {
        request_id: None if cluster is None else (cluster.depth, cluster.size)
        for request_id, cluster in clusters.items()
    } == {
        request_id: None if place is None else (len(place[1]), nodes[place])
        for request_id, place in expected.items()
    }
    pairs = {(clusters[r].node_id, place) for r, place in expected.items() if place is not None}
    assert len(pairs) == len({node_id for node_id, _ in pairs}) == len({place for _, place in pairs})


class TreeMachine(RuleBasedStateMachine):
    """Inserts, removals, wrong calls and questions in any order; `check()` after each."""

    chained = False

    @initialize()
    def begin(self) -> None:
        self.tree = PendingTree(chained=self.chained)
        self.twin = NaivePendingTree()
        self.pages = Pages(1, self.chained)
        self.serial = 0

    def some_id(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.twin.waiting)), label="request")

    @rule(tokens=TOKENS, namespace=st.sampled_from(NAMESPACES), form=st.sampled_from([list, tuple, pack]))
    def insert(self, tokens: list[int], namespace: str, form: type) -> None:
        self.serial += 1
        request_id = f"r{self.serial}"
        key = self.pages.key(tokens, namespace)
        before = self.tree.version
        self.tree.insert(request_id, form(key), namespace)
        self.twin.insert(request_id, key, namespace)
        assert self.tree.version > before

    @precondition(lambda self: self.twin.waiting)
    @rule(data=st.data(), tokens=TOKENS, namespace=st.sampled_from([*NAMESPACES, "new"]))
    def insert_duplicate(self, data: st.DataObject, tokens: list[int], namespace: str) -> None:
        request_id = self.some_id(data)
        with self.unchanged(), pytest.raises(DuplicateRequest, match=request_id):
            self.tree.insert(request_id, self.pages.key(tokens, namespace), namespace)

    @rule(key=MALFORMED, namespace=st.sampled_from([*NAMESPACES, "new"]))
    def insert_malformed(self, key: object, namespace: str) -> None:
        with self.unchanged(), pytest.raises(InvalidKey):
            self.tree.insert("malformed", key, namespace)
        assert "malformed" not in self.tree

    @precondition(lambda self: self.twin.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        request_id = self.some_id(data)
        removed = self.tree.remove(request_id)
        assert removed.request_id == request_id
        self.twin.remove(request_id)
        assert request_id not in self.tree

    @precondition(lambda self: self.twin.waiting)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 3), max_size=4))
    def extend(self, data: st.DataObject, tokens: list[int]) -> None:
        request_id = self.some_id(data)
        namespace, symbols = self.twin.waiting[request_id]
        sequence = self.tree.request(request_id).sequence
        key = self.pages.key([*self.pages.tokens(symbols), *tokens], namespace)
        self.tree.extend(request_id, key)
        self.twin.waiting[request_id] = (namespace, tuple(key))  # keeps its place
        assert self.tree.request(request_id).sequence == sequence

    @precondition(lambda self: self.twin.waiting)
    @rule(data=st.data(), key=MALFORMED)
    def extend_by_another_key(self, data: st.DataObject, key: object) -> None:
        request_id = self.some_id(data)
        namespace, symbols = self.twin.waiting[request_id]
        other = self.pages.key([9, *self.pages.tokens(symbols)], namespace)
        for wrong in (key, other):
            with self.unchanged(), pytest.raises(InvalidKey):
                self.tree.extend(request_id, wrong)

    @rule(request_id=st.sampled_from(["nobody", ""]))
    def name_an_unknown_request(self, request_id: str) -> None:
        tree = self.tree
        for question in (tree.remove, tree.cluster, tree.score, tree.key_of, tree.leaf, tree.request):
            with self.unchanged(), pytest.raises(UnknownRequest, match=f"'{request_id}'"):
                question(request_id)
        with self.unchanged(), pytest.raises(UnknownRequest, match=f"'{request_id}'"):
            tree.extend(request_id, [1])

    @rule(tokens=TOKENS, namespace=st.sampled_from([*NAMESPACES, "new"]))
    def ask_pending_count(self, tokens: list[int], namespace: str) -> None:
        key = self.pages.key(tokens, namespace)
        assert self.tree.pending_count(key, namespace) == self.twin.pending_count(key, namespace)

    @rule(theta=st.integers(1, 7))
    def refresh_heads(self, theta: int) -> None:
        self.tree.refresh(theta)
        ids = {request.request_id: request.head for request in self.tree.requests()}
        heads = self.twin.heads(theta)
        assert all((ids[request_id] == 0) == (head is None) for request_id, head in heads.items())
        pairs = set(zip(ids.values(), heads.values(), strict=True))
        assert len(pairs) == len(set(ids.values())) == len(set(heads.values()))

    @invariant()
    def sound(self) -> None:
        self.tree.check()

    @invariant()
    def equal_to_twin(self) -> None:
        assert_equal_to_twin(self.tree, self.twin)

    @invariant()
    def requests_are_kept(self) -> None:
        for request_id, (namespace, symbols) in self.twin.waiting.items():
            request = self.tree.request(request_id)
            assert (request.namespace, request.length, request.key) == (namespace, len(symbols), None)
            assert self.tree.key_of(request_id) == pack(list(symbols))
            assert place_of(self.tree.leaf(request_id), namespace) == (namespace, symbols)

    def unchanged(self) -> Unchanged:
        return Unchanged(self.tree)

    def teardown(self) -> None:
        for request_id in list(getattr(self, "twin", NaivePendingTree()).waiting):
            self.tree.remove(request_id)
            self.twin.remove(request_id)
            self.tree.check()
            assert_equal_to_twin(self.tree, self.twin)
        if hasattr(self, "tree"):
            assert_empty(self.tree)


class Unchanged:
    """Asserts that a block leaves a tree as it was."""

    def __init__(self, tree: PendingTree) -> None:
        self.tree = tree

    def state(self) -> tuple[object, ...]:
        tree = self.tree
        return tree.version, len(tree), tree.node_count, [name for name, _ in tree.roots()], shape(tree)

    def __enter__(self) -> None:
        self.before = self.state()

    def __exit__(self, *error: object) -> None:
        assert self.state() == self.before


def assert_empty(tree: PendingTree) -> None:
    tree.check()
    assert (len(tree), tree.node_count, tree.has_sharing) == (0, 0, False)
    assert list(tree.roots()) == []
    assert (tree._shape.edges, tree._shape.owners, tree._handles) == ({}, {}, {})


class ChainedTreeMachine(TreeMachine):
    """The same with symbols that name their whole prefix, and the place of each symbol asked for."""

    chained = True

    @invariant()
    def owners(self) -> None:
        for symbol in symbols_of(self.pages):
            node = self.tree.owner(symbol)
            needed = sum(symbol in symbols for _, symbols in self.twin.waiting.values())
            assert (0 if node is None else node.count) == needed
            assert node is None or symbol in unpack(node.edge)


TestTree = TreeMachine.TestCase
TestChainedTree = ChainedTreeMachine.TestCase


# -- properties beside the machine --------------------------------------------------------------------

KEY_SETS = st.lists(st.tuples(TOKENS, st.sampled_from(NAMESPACES)), min_size=1, max_size=14)


@given(keys=KEY_SETS, passers_by=KEY_SETS, random=st.randoms(use_true_random=False))
def test_the_shape_depends_on_the_set_alone(
    keys: list[tuple[list[int], str]], passers_by: list[tuple[list[int], str]], random: Random
) -> None:
    straight, winding = PendingTree(), PendingTree()
    for i, (tokens, namespace) in enumerate(keys):
        straight.insert(f"r{i}", tokens, namespace)
    steps = [(f"r{i}", *key) for i, key in enumerate(keys)] + [
        (f"x{i}", *key) for i, key in enumerate(passers_by)
    ]
    random.shuffle(steps)
    for step in steps:
        winding.insert(*step)
    for i in random.sample(range(len(passers_by)), len(passers_by)):
        winding.remove(f"x{i}")
    assert shape(straight) == shape(winding)
    assert straight.scores() == winding.scores()
    assert straight.node_count == winding.node_count
    assert [straight.has_sharing, len(straight)] == [winding.has_sharing, len(winding)]
    for request_id, cluster in straight.clusters().items():
        other = winding.cluster(request_id)
        assert (cluster and cluster[1:]) == (other and other[1:])


def test_add_takes_the_key_over_and_ranks_arrivals() -> None:
    tree = PendingTree()
    first, second = PendingRequest("a", [1, 2], 5.0), PendingRequest("b", [1], 4.0, "ns")
    tree.add(first)
    tree.add(second)
    assert first.sequence < second.sequence
    assert (first.key, first.length, second.length) == (None, 2, 1)
    assert tree.request("a") is first
    assert tree.remove("a") is first


def test_asking_for_scores_leaves_the_heads_of_the_last_refresh() -> None:
    tree = PendingTree()
    tree.insert("a", [1, 2, 3, 4])
    tree.insert("b", [1, 2, 9, 9])
    tree.refresh(3)
    before = [request.head for request in tree.requests()]
    assert before[0] != before[1]
    assert tree.scores() == {"a": 6, "b": 6}
    assert [request.head for request in tree.requests()] == before


def test_errors_are_what_a_caller_expects() -> None:
    assert issubclass(DuplicateRequest, (PeekError, ValueError))
    assert issubclass(UnknownRequest, KeyError)
    with pytest.raises(InvalidKey, match="empty key"):
        PendingTree().pending_count([])


def test_a_chain_of_nested_prefixes_needs_no_recursion() -> None:
    n = 4000
    tree = PendingTree()
    for length in range(n, 0, -1):
        tree.insert(str(length), array("i", [7]) * length)
    tree.check()
    assert tree.node_count == n
    scores = tree.scores()
    assert [scores["1"], scores[str(n)]] == [n, n * (n + 1) // 2]
    assert tree.score(str(n)) == scores[str(n)]
    clusters = tree.clusters()
    assert all(clusters[str(length)][1:] == (length, n - length + 1) for length in range(1, n))
    assert clusters[str(n)][1:] == (n - 1, 2)
    assert tree.key_of(str(n)) == pack([7] * n)
    assert tree.pending_count([7] * (n - 2)) == 3
    for length in range(1, n + 1):
        tree.remove(str(length))
    assert_empty(tree)


def test_ids_are_reused_and_belong_to_one() -> None:
    random = Random(7)
    tree = PendingTree()
    most_nodes = highest_id = 0
    for step in range(20_000):
        key = [random.randrange(3) for _ in range(random.randint(1, 8))]
        tree.insert(str(step), key, random.choice(NAMESPACES))
        most_nodes = max(most_nodes, tree.node_count + len(list(tree.roots())))
        highest_id = max(highest_id, tree.leaf(str(step)).uid)
        ids = sorted(terminator.uid for terminator in tree.handles())
        assert ids[-1] <= 20
        assert len(set(ids)) == len(ids)
        if len(tree) > 20:
            tree.remove(random.choice(tree.requests()).request_id)
    assert highest_id <= most_nodes < 60
