"""What a replica's cache holds, guessed from the prompts that it has computed.

Operations: note a prompt, forget one, and be asked like a cache (`CacheView`).  A cache that evicts what was
used longest ago holds the newest prompts that fit, what they share counted once; so does this.

Plan.  The prompts are the keys of a `PendingTree`, read through its `TreeView`: a prefix stays as long as any
prompt that has it.  Memory is bounded by the capacity.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from peek.trie.pending_tree import PendingTree
from peek.trie.tree_view import TreeView


@final
class RoutedHistory:
    """`CacheView` over the newest prompts of one replica.

    Args:
        capacity: symbols that the replica's cache has room for.
        unit_tokens: tokens per symbol.
    """

    __slots__ = ("_newest", "_tree", "_view", "block_symbols", "capacity", "symbols", "unit_tokens")

    def __init__(self, capacity: i64, unit_tokens: i64 = 1) -> None:
        self.unit_tokens: int = unit_tokens
        self.block_symbols: int = 1
        self.capacity: i64 = capacity
        self.symbols: i64 = 0
        """Symbols held, what prompts share counted once."""
        self._tree = PendingTree()
        self._view = TreeView(self._tree, unit_tokens)
        self._newest: dict[str, None] = {}

    def __len__(self) -> int:
        """Prompts held.  O(1)."""
        return len(self._tree)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._tree

    @property
    def version(self) -> int:
        """Changes whenever an answer of `advance` could."""
        return self._tree.version

    def note(self, request_id: str, key: bytes, namespace: str) -> None:
        """A prompt is the newest; the oldest go where there is no room.  O(len(key)).

        An equal prompt that was noted earlier goes, and so does an earlier one of the same name.  The newest
        stays, be it larger than the capacity.
        """
        self.forget(request_id)
        self._tree.insert(request_id, key, namespace)
        own = self._tree.leaf(request_id).terminator
        assert own is not None
        if own.next is not None:
            self.forget(own.next.request.request_id)
        else:
            self.symbols += self._own_symbols(request_id)
        self._newest[request_id] = None
        while self.symbols > self.capacity and len(self._newest) > 1:
            self.forget(next(iter(self._newest)))

    def forget(self, request_id: str) -> None:
        """Drop a prompt, as far as no other has it.  O(depth); unknown names are ignored."""
        if request_id in self._tree:
            self.symbols -= self._own_symbols(request_id)
            self._tree.remove(request_id)
            del self._newest[request_id]

    def clear(self) -> None:
        """The cache was emptied.  O(prompts)."""
        for request_id in list(self._newest):
            self.forget(request_id)

    def _own_symbols(self, request_id: str) -> i64:
        """Symbols that no other prompt has."""
        leaf = self._tree.leaf(request_id)
        parent = leaf.parent
        assert parent is not None
        return leaf.depth - parent.depth if leaf.count == 1 else 0

    # -- CacheView -----------------------------------------------------------------------------------

    def root(self, namespace: str) -> object:
        return self._view.root(namespace)

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        return self._view.advance(cursor, segment, offset)

    def node_id(self, cursor: object) -> int:
        return self._view.node_id(cursor)
