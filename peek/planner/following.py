"""What a lazy plan draws from: the policy's stream, for as long as it stands."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from peek.policy.stream import RequestStream
from peek.trie.pending_tree import PendingTree


@final
class Following:
    """Ids one after another, none any more once somebody has come or gone.

    Args:
        stream: the requests of `tree`, best first.
    """

    __slots__ = ("_stream", "_tree", "_version", "_walks")

    def __init__(self, stream: RequestStream, tree: PendingTree) -> None:
        self._stream = stream
        self._tree = tree
        self._version: i64 = tree.version
        self._walks: i64 = tree.walks

    def next_id(self) -> str | None:
        """Who goes next.  Cost of the stream's own `next`."""
        if self._version != self._tree.version or self._walks != self._tree.walks:
            return None
        request = self._stream.next()
        return None if request is None else request.request_id
