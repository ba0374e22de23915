"""What an engine must offer to be driven by a `Planner`.

There are three protocols, with four members at most.  They are structural: an engine object satisfies them by
having the members, without inheritance.  This module is never compiled, because protocols that are checked at
run time must stay ordinary Python classes.

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
    another prompt shares the first 18 of them.  `advance` is then asked about the first 18, of which such a
    cache holds 16.  With `block_symbols = 8` the next call starts after these 16: with the other 2 symbols
    and those that follow in the cached prompt.  8 of them are cached, 24 in all.  Without the attribute the
    result would be 16, so a walk that notices a cache of this kind raises `InvalidCache` instead.

    Optional members:

    - `version`: changes whenever an answer of `advance` could change.  Walks between two changes ask only
      about new requests.  Without it every walk asks about all requests.
    - `changed_since(version) -> list[int] | None`: the symbols whose answers may differ from those at an
      earlier `version`; None if any symbol's may.  It is for chained keys, where a symbol stands for all
      symbols before it.  Walks then look at these symbols and at new requests only.
    - `inserted_since(version) -> list[tuple[str, bytes]] | None`: the keys that were put into the cache since
      an earlier `version`, each as a namespace and packed int32 symbols; None if not known.  Nothing else may
      have come in, but anything may have gone.  Walks then look only along these keys, at what was cached and
      at new requests.
    - `keeps_since(version) -> bool`: used with `inserted_since`.  Whether the cache still holds all that it
      held at that version, and cursors from then still mark the same places, also in entries that were split.
      Walks then go on from these cursors and skip what was cached.
    - `block_symbols`: symbols per block, if the cache matches only whole blocks, at least 1; see above.
    - `lone_requests`: number of waiting requests that share with no other request and hit nothing, as far as
      the cache knows.  If that is all of them, nothing is walked.
    - `worth(cursor, matched) -> int`: tokens that `matched` symbols up to `cursor` save, 0 .. matched *
      unit_tokens.  For caches in which a cached token is not always worth a whole one (on the host, say).
      Its answers may change while those of `advance` do not, so a walk asks about every edge again.
    """

    if TYPE_CHECKING:  # to read: a property will do

        @property
        def unit_tokens(self) -> int: ...
    else:
        unit_tokens: int
        """Tokens per symbol, at least 1."""

    def root(self, namespace: str) -> object:
        """Return the cursor before the first symbol of `namespace`."""
        ...

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> tuple[int, object]:
        """Follow `segment` (int32 symbols of one pending edge) from `cursor`.

        `offset` is the absolute position of the segment's first symbol.  Returns a tuple: how many leading
        symbols the cache holds (0 .. len(segment)), and the cursor after the last of them.
        """
        ...

    def node_id(self, cursor: Any) -> int:
        """Return the cache node or block that holds the symbol before `cursor`; for demand marks.

        An engine that evicts asks for scores while its cache changes, so the cursor may be one from the last
        walk whose entry is gone.
        """
        ...


@runtime_checkable
class CacheTree(CacheView, Protocol):
    """A cache whose entries form a tree with several symbols per entry (a radix cache).

    Its one additional member lets demand marks reach the inner nodes that an edge passes.
    """

    def parent_id(self, node_id: int) -> int:
        """Return the parent of a cache node; 0 for a root, and if the parent is a root without symbols.

        0 also for a node that is gone since the last walk.
        """
        ...


@runtime_checkable
class WaitingQueue(Protocol):
    """The engine's waiting queue, as `Planner.cycle` needs it."""

    def waiting_ids(self) -> Iterable[str]:
        """Return the ids of all waiting requests in the engine's current order."""
        ...

    def translate(self, request_id: str) -> PendingRequest:
        """Translate a request that arrived since the last cycle, keeping its id; called once per arrival."""
        ...

    def uncached_tokens(self, request_id: str) -> int:
        """Return the prompt tokens that an engine computes for a request that left the queue.

        Negative if it was not admitted (aborted, withdrawn).
        """
        ...

    def reorder(self, order: Sequence[str]) -> None:
        """Bring the waiting requests into `order` (a permutation of `waiting_ids`)."""
        ...
