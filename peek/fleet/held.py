"""What a replica has or will have in its cache: what it holds, and the prompts on their way there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from mypy_extensions import i64

from peek.trie.cache_answers import checked_step
from peek.trie.tree_view import TreeView

if TYPE_CHECKING:
    from peek.protocols import CacheView

_BEHIND: Final = object()
"""In place of a cursor: this view has less of the path than the other."""


@final
class HeldView:
    """`CacheView`: a prefix is held if the replica's cache has it or a prompt on its way there does.

    Args:
        cache: the replica's cache, as it is, as it was some seconds ago, or guessed.
        coming: prompts that were sent there and may not show in it yet.
    """

    __slots__ = ("_cache", "_coming", "block_symbols", "unit_tokens")

    def __init__(self, cache: CacheView, coming: TreeView) -> None:
        self._cache: Any = cache
        self._coming = coming
        self.unit_tokens: int = coming.unit_tokens
        self.block_symbols: int = 1

    def root(self, namespace: str) -> object:
        return self._cache.root(namespace), self._coming.root(namespace)

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        """The longer of the two answers; the view that has less is not asked further down."""
        assert isinstance(cursor, tuple)
        cache, coming = cursor
        held: i64 = 0
        sent: i64 = 0
        if cache is not _BEHIND:
            held, cache = checked_step(self._cache.advance(cache, segment, offset), len(segment))
        if coming is not _BEHIND:
            sent, coming = self._coming.advance(coming, segment, offset)
        if held == sent:
            return held, (cache, coming)
        return (held, (cache, _BEHIND)) if held > sent else (sent, (_BEHIND, coming))

    def node_id(self, cursor: object) -> int:
        """0: a fleet evicts nothing."""
        return 0
