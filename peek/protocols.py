"""What an engine must offer to be driven by a `Planner`.

Three protocols, four members each at most.  They are structural: an engine object satisfies them by having
the members, no inheritance needed.  This module is never compiled, because protocols that are checked at run
time must stay ordinary Python classes.

A *symbol* is one unit of the engine's cache: a token, a page of tokens, or an interned block hash.
`unit_tokens` says how many tokens one symbol stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from peek.request import PendingRequest

__all__ = ["CacheTree", "CacheView", "WaitingQueue"]


@runtime_checkable
class CacheView(Protocol):
    """Read-only view of an engine's prefix cache, descended one pending edge at a time.

    A *cursor* is any object that marks a place in the cache.  It belongs to the view and is only handed back
    to it.  Calls must change neither the cache (no node splits, no recency refresh) nor the waiting requests.

    Whole numbers may be of any type that Python takes for one (numpy's, say).  An answer that no cache can
    give ends the walk with `InvalidCache`.

    Granularity.  A cache that matches single symbols needs nothing here.  Some caches match whole blocks of
    several symbols: with blocks of 8 they hold 16 or 24 symbols of a prompt, never 18.  There are two ways to
    say so:

    - Make every block one symbol of the keys (intern its content as a number) and let `unit_tokens` be the
      tokens of a block.  This is the faster way, as keys are shorter.
    - Keep smaller symbols and declare the attribute `block_symbols`, the symbols per block (8 above).

    It matters because waiting prompts part ways at any symbol.  Say 24 symbols of a prompt are cached, and
    another prompt shares the first 18 of them.  `advance` is then asked for the first 18, of which such a
    cache holds 16.  With `block_symbols = 8` the next question starts there: at the other 2 symbols and those
    that follow in the cached prompt.  8 of these are cached, 24 in all.  Without the attribute the answer
    would be 16, so a walk that notices a cache of this kind raises `InvalidCache` instead.

    Optional members:

    - `version`: changes whenever an answer of `advance` could change.  Walks between two changes only ask
      about new requests.  Without it every walk asks anew.
    - `changed_since(version) -> list[int] | None`: the symbols whose answers may differ from those at an
      earlier `version`; None if any symbol's may.  It is for chained keys, where a symbol stands for all
      symbols before it.  Walks then look at these symbols and at new requests only.
    - `inserted_since(version) -> list[tuple[str, bytes]] | None`: the keys, packed int32 symbols with their
      namespaces, that were put into the cache since an earlier `version`; None if not known.  Nothing else
      may have come in, but anything may have gone.  Walks then look along these keys, at what was cached and
      at new requests only.
    - `keeps_since(version) -> bool`: used with `inserted_since`; whether the cache still holds all that it
      held at that version, and cursors from then stand where they stood, also in entries that were split.
      Walks then go on from these cursors and skip what was cached.
    - `block_symbols`: symbols per block that the cache matches whole, at least 1; see above.
    - `lone_requests`: number of waiting requests that, as the cache knows, share with no other request and
      hit nothing.  Where that is all of them, nothing is walked.
    - `worth(cursor, matched) -> int`: what `matched` symbols up to `cursor` save, in tokens, 0 .. matched *
      unit_tokens.  For caches where a cached token is not always worth a whole one (on the host, say).  Its
      answers may change where those of `advance` do not, so a walk asks about every edge
      again.
    """

    if TYPE_CHECKING:  # to read: a property will do

        @property
        def unit_tokens(self) -> int: ...
    else:
        unit_tokens: int
        """Tokens per symbol, at least 1."""

    def root(self, namespace: str) -> object:
        """Return the cursor in front of the first symbol of `namespace`."""
        ...

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> tuple[int, object]:
        """Follow `segment` (int32 symbols of one pending edge) from `cursor`.

        `offset` is the absolute position of the segment's first symbol.  Returns a tuple: how many leading
        symbols the cache holds (0 .. len(segment)), and the cursor behind the last of them.
        """
        ...

    def node_id(self, cursor: Any) -> int:
        """Return the cache node or block that holds the symbol in front of `cursor`; for demand marks.

        An engine that evicts asks for scores while its cache changes, so the cursor may be one of the last
        walk whose entry has gone since.
        """
        ...


@runtime_checkable
class CacheTree(CacheView, Protocol):
    """A cache whose entries form a tree with several symbols per entry (a radix cache).

    Its one additional member lets demand marks reach the inner nodes that an edge passes through.
    """

    def parent_id(self, node_id: int) -> int:
        """Return the parent of a cache node; 0 for a root, and where the parent is a root without symbols.

        0 also for a node that has gone since the last walk.
        """
        ...


@runtime_checkable
class WaitingQueue(Protocol):
    """The engine's waiting queue, as `Planner.cycle` needs it."""

    def waiting_ids(self) -> Iterable[str]:
        """Return the ids of all waiting requests in the engine's present order."""
        ...

    def translate(self, request_id: str) -> PendingRequest:
        """Translate a request, by the same id, that arrived since the last cycle; called once per arrival."""
        ...

    def uncached_tokens(self, request_id: str) -> int:
        """Return the prompt tokens that a request which left the queue was admitted to compute.

        Negative when it was not admitted (aborted, withdrawn).
        """
        ...

    def reorder(self, order: Sequence[str]) -> None:
        """Bring the waiting requests into `order` (a permutation of `waiting_ids`)."""
        ...
