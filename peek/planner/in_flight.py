"""Prefills under way: admitted requests whose prefix nobody else can hit yet.

Some engines (SGLang) show a prefix to others only when its prefill ends.  A waiting request that shares
it would compute it once more if it were admitted now; it does better to wait.  `note_coming` tells each
waiting request how much of its prompt will be cached when the prefills under way have ended.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from peek.trie.node import Node, next_branch, next_preorder
from peek.trie.pending_tree import PendingTree
from peek.trie.tree_view import Place, follow


@final
class PrefillsInFlight:
    """The prompts that are being computed, in a tree of their own.

    `ended` may be called before `admit`: an engine may finish a short prefill before its adapter compares
    queues and learns of the admission.
    """

    __slots__ = ("_ended_early", "_tree")

    def __init__(self) -> None:
        self._tree = PendingTree()
        self._ended_early: set[str] = set()

    def __len__(self) -> int:
        """Prefills under way."""
        return len(self._tree)

    def admit(self, request_id: str, key: bytes, namespace: str) -> None:
        """A request was admitted; its prefill is under way unless it has been seen to end.  O(depth)."""
        if request_id in self._ended_early:
            self._ended_early.discard(request_id)
        elif request_id not in self._tree:
            self._tree.insert(request_id, key, namespace)

    def ended(self, request_id: str, is_waiting: bool) -> None:
        """A prefill ended; `is_waiting`: the planner has not heard of its admission yet.  O(depth)."""
        if request_id in self._tree:
            self._tree.remove(request_id)
        elif is_waiting:
            self._ended_early.add(request_id)

    def withdrawn(self, request_id: str) -> None:
        """A waiting request left without being admitted.  O(1)."""
        self._ended_early.discard(request_id)

    def note_coming(self, waiting: PendingTree, unit_tokens: i64) -> None:
        """Write `coming_len` of every waiting request.  O(n + nodes that both trees have in common).

        One descent of both trees, like the dual-walk, without touching what that walk has left.
        """
        for request in waiting.requests():
            request.coming_len = 0
        if len(self._tree) == 0:
            return
        for namespace, root in self._tree.roots():
            top = waiting.root(namespace)
            if top is not None:
                self._descend(waiting, top, root, unit_tokens)

    def _descend(self, waiting: PendingTree, top: Node, root: Node, unit_tokens: i64) -> None:
        # Each entry: a waiting node that is matched whole, and the place that its path has in our tree.
        stack: list[tuple[Node, Place]] = [(top, Place(root, 0))]
        while stack:
            node, ours = stack.pop()
            _write_own(node, node.depth * unit_tokens)
            kid = node.kid
            while kid is not None:
                matched, place = follow(self._tree, kid.edge, ours)
                if matched == len(kid.edge):
                    stack.append((kid, place))
                elif node.depth > 0 or matched > 0:
                    _write_below(kid, (node.depth + (matched >> 2)) * unit_tokens)
                kid = kid.next


def _write_own(node: Node, coming_len: i64) -> None:
    terminator = node.terminator
    while terminator is not None:
        terminator.request.coming_len = coming_len
        terminator = terminator.next


def _write_below(top: Node, coming_len: i64) -> None:
    """The same for every request at or below `top`."""
    stop = next_branch(top)
    node: Node | None = top
    while node is not None and node is not stop:
        _write_own(node, coming_len)
        node = next_preorder(node)
