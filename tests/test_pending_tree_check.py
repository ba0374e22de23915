"""`PendingTree.check()` has teeth: each invariant, once broken by hand, is reported.

The state machine in test_pending_tree.py calls `check()` after every step, which is worth as much as
`check()` can see.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from peek import DualWalk, PendingTree
from peek.trie.tree_view import TreeView

Corruption = Callable[[PendingTree], None]


def small_tree() -> PendingTree:
    """Root -> [1, 2] (ends: c, d) -> [3, 4] (a), [9] (b);  root -> [5, 6] (e);  another root (f)."""
    tree = PendingTree()
    for request_id, key in [
        ("a", [1, 2, 3, 4]),
        ("b", [1, 2, 9]),
        ("c", [1, 2]),
        ("d", [1, 2]),
        ("e", [5, 6]),
    ]:
        tree.insert(request_id, key)
    tree.insert("f", [1, 2], "lora")
    DualWalk(tree).match(TreeView(tree))
    tree.check()
    return tree


CORRUPTIONS: dict[str, Corruption] = {}


def corruption(function: Corruption) -> Corruption:
    CORRUPTIONS[function.__name__] = function
    return function


@corruption
def leaf_count(tree: PendingTree) -> None:
    tree.leaf("a").count += 1


@corruption
def inner_count(tree: PendingTree) -> None:
    tree.leaf("c").count -= 1


@corruption
def counts_of_a_whole_path(tree: PendingTree) -> None:
    node = tree.leaf("e")
    while node is not None:
        node.count += 1
        node = node.parent


@corruption
def parent_link(tree: PendingTree) -> None:
    tree.leaf("a").parent = tree.leaf("b")


@corruption
def orphan(tree: PendingTree) -> None:
    tree.leaf("a").parent = None


@corruption
def depth(tree: PendingTree) -> None:
    tree.leaf("e").depth += 1


@corruption
def depth_and_length(tree: PendingTree) -> None:
    tree.leaf("e").depth += 1
    tree.request("e").length += 1


@corruption
def edge_too_short(tree: PendingTree) -> None:
    tree.leaf("a").edge = tree.leaf("a").edge[:-4]


@corruption
def edge_with_a_piece_of_a_symbol(tree: PendingTree) -> None:

    tree.leaf("a").edge += b"x"


@corruption
def first_symbol_of_an_edge(tree: PendingTree) -> None:

    tree.leaf("b").edge = bytes([8, 0, 0, 0])


@corruption
def view_of_an_older_edge(tree: PendingTree) -> None:

    tree.leaf("a").view = tree.leaf("e").view


@corruption
def child_count(tree: PendingTree) -> None:
    tree.leaf("c").n_kids += 1


@corruption
def child_cut_off(tree: PendingTree) -> None:
    tree.leaf("c").kid.next = None


@corruption
def back_link_of_a_sibling(tree: PendingTree) -> None:
    tree.leaf("c").kid.next.prev = None


@corruption
def first_child_with_a_predecessor(tree: PendingTree) -> None:

    tree.leaf("c").kid.prev = tree.leaf("e")


@corruption
def edge_table_misses_a_node(tree: PendingTree) -> None:

    node = tree.leaf("e")
    del tree._shape.edges[(node.parent.uid << 32) | 5]


@corruption
def edge_table_leads_elsewhere(tree: PendingTree) -> None:
    tree._shape.edges[(tree.leaf("e").parent.uid << 32) | 5] = tree.leaf("a")


@corruption
def edge_table_keeps_a_dead_node(tree: PendingTree) -> None:
    tree._shape.edges[99 << 32] = tree.leaf("e")


@corruption
def handles_swapped(tree: PendingTree) -> None:
    handles = tree._handles
    handles["a"], handles["b"] = handles["b"], handles["a"]


@corruption
def handle_lost(tree: PendingTree) -> None:

    del tree._handles["a"]


@corruption
def handle_too_many(tree: PendingTree) -> None:
    tree._handles["ghost"] = tree._handles["a"]


@corruption
def terminator_names_another_node(tree: PendingTree) -> None:
    tree._handles["a"].node = tree.leaf("b")


@corruption
def terminator_dropped(tree: PendingTree) -> None:
    tree.leaf("c").terminator = tree.leaf("c").terminator.next


@corruption
def back_link_of_a_terminator(tree: PendingTree) -> None:
    tree.leaf("c").terminator.next.prev = None


@corruption
def first_terminator_with_a_predecessor(tree: PendingTree) -> None:

    tree.leaf("c").terminator.prev = tree._handles["a"]


@corruption
def length_of_a_request(tree: PendingTree) -> None:
    tree.request("a").length -= 1


@corruption
def number_of_nodes(tree: PendingTree) -> None:
    tree._shape.n_nodes += 1


@corruption
def number_of_shared_nodes(tree: PendingTree) -> None:
    tree._shape.n_shared -= 1


@corruption
def empty_root(tree: PendingTree) -> None:
    tree._shape.roots["nobody"] = type(tree.leaf("a"))(b"", None, 99, 0, 0)


@corruption
def root_lost(tree: PendingTree) -> None:
    del tree._shape.roots["lora"]


@corruption
def two_nodes_with_one_id(tree: PendingTree) -> None:

    tree.leaf("a").uid = tree.leaf("b").uid


@corruption
def id_of_a_live_node_for_reuse(tree: PendingTree) -> None:

    tree._shape.free_uids.append(tree.leaf("a").uid)


@corruption
def node_that_should_be_merged(tree: PendingTree) -> None:
    """Take `c`, `d` and `b` out by hand, leaving [1, 2] with nothing but `a` below it."""
    inner = tree.leaf("c")
    for request_id in ("b", "c", "d"):
        del tree._handles[request_id]
    del tree._shape.edges[(inner.uid << 32) | 9]
    kept = tree.leaf("a")
    inner.kid, kept.next, kept.prev = kept, None, None
    inner.terminator, inner.n_kids, inner.count = None, 1, 1
    inner.parent.count -= 3
    tree._shape.n_nodes -= 1
    tree._shape.n_shared -= 1


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_a_broken_invariant_is_an_assertion_error(corrupt: Corruption) -> None:
    tree = small_tree()
    corrupt(tree)
    with pytest.raises(AssertionError):
        tree.check()


def test_the_last_corruption_breaks_nothing_but_the_canonical_form() -> None:
    tree = small_tree()
    node_that_should_be_merged(tree)
    with pytest.raises(AssertionError, match="should be merged"):
        tree.check()


# -- the owner table of a chained tree ----------------------------------------------------------------


def chained_tree() -> PendingTree:
    tree = PendingTree(chained=True)
    tree.insert("a", [1, 2, 3])
    tree.insert("b", [1, 2, 4])
    tree.check()
    return tree


def owner_lost(tree: PendingTree) -> None:
    del tree._shape.owners[2]


def owner_kept_after_its_end(tree: PendingTree) -> None:
    tree._shape.owners[77] = tree.leaf("a")


def owner_off_its_edge(tree: PendingTree) -> None:
    tree._shape.owners[2] = tree.leaf("a")


@pytest.mark.parametrize("corrupt", [owner_lost, owner_kept_after_its_end, owner_off_its_edge])
def test_a_broken_owner_table_is_an_assertion_error(corrupt: Corruption) -> None:

    tree = chained_tree()
    corrupt(tree)
    with pytest.raises(AssertionError):
        tree.check()
