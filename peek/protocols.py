"""What an engine must offer to be driven by a `Planner`.

Three protocols, four members each at most.  They are structural: an engine object satisfies them by
having the members, no inheritance needed.  This module is never compiled, because protocols that are
checked at run time must stay ordinary Python classes.

Vocabulary: a *symbol* is one unit of the engine's cache (a token, a page of tokens, or an interned
block hash); `unit_tokens` says how many tokens one symbol stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from peek.request import PendingRequest

__all__ = ["CacheTree", "CacheView", "WaitingQueue"]


@runtime_checkable
class CacheView(Protocol):
    """Read-only view of an engine's prefix cache, descended one pending edge at a time.

    A *cursor* is any object that marks a place in the cache; it belongs to the view and is only
    handed back to it.  Calls must not change the cache (no node splits, no recency refresh).

    A view may have an attribute `version` that changes whenever an answer of `advance` could; cycles
    between two changes then only ask about new requests.  Without it every cycle asks anew.

    A view may have a method `worth(cursor, matched) -> int` where a cached token is not always worth a
    whole one (on the host, say): what `matched` symbols up to `cursor` save, in tokens.
    """

    unit_tokens: int
    """Tokens per symbol, at least 1."""

    def root(self, namespace: str) -> object:
        """The cursor in front of the first symbol of `namespace`."""
        ...

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        """Follow `segment` (int32 symbols of one pending edge) from `cursor`.

        `offset` is the absolute position of the segment's first symbol.  Returns how many leading
        symbols the cache holds (0 .. len(segment)) and the cursor behind the last of them.
        """
        ...

    def node_id(self, cursor: object) -> int:
        """The cache node or block that holds the symbol in front of `cursor`; for demand marks."""
        ...


@runtime_checkable
class CacheTree(CacheView, Protocol):
    """A cache whose entries form a tree with several symbols an entry (a radix cache).

    The one member more lets demand marks reach the inner nodes that an edge passes through.
    """

    def parent_id(self, node_id: int) -> int:
        """The parent of a cache node, 0 for a root."""
        ...


@runtime_checkable
class WaitingQueue(Protocol):
    """The engine's waiting queue, as `Planner.cycle` needs it."""

    def waiting_ids(self) -> Iterable[str]:
        """Ids of all waiting requests in the engine's present order."""
        ...

    def translate(self, request_id: str) -> PendingRequest:
        """Translate a request that arrived since the last cycle; called once per request."""
        ...

    def uncached_tokens(self, request_id: str) -> int:
        """For a request that left the queue: the prompt tokens it was admitted to compute.

        Negative when it was not admitted (aborted, withdrawn).
        """
        ...

    def reorder(self, order: Sequence[str]) -> None:
        """Bring the waiting requests into `order` (a permutation of `waiting_ids`)."""
        ...
