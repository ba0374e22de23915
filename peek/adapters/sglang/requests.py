"""Reads, translates and follows SGLang's requests.  Only `Followed` keeps a request alive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final
from weakref import ref

from peek.adapters.engine_adapter import Stated, Statements, first_text
from peek.adapters.recording import Asked, Recorder
from peek.adapters.symbols import ALONE, Alphabet, Letter, namespace_of
from peek.errors import InvalidKey
from peek.trie.continuations import Continuations
from peek.trie.keys import SYMBOL_BYTES, PageTable, heads_of


def prompt_of(request: Any) -> tuple[Any, int]:
    """Return a request's tokens (read-only; with answers before a retraction), and how many may match."""
    tokens = request.origin_input_ids
    if len(request.output_ids):
        tokens = tokens + request.output_ids
    limit = len(tokens) - 1  # the last one is always computed
    compute = getattr(request, "_compute_max_prefix_len", None)
    if compute is not None:
        limit = compute(len(tokens))
    elif request.return_logprob and request.logprob_start_len >= 0:
        limit = min(limit, request.logprob_start_len)
    return tokens, max(limit, 0)


def request_namespace(request: Any, first: int | None = None) -> str:
    """Return what keeps a request's tokens apart from equal ones of others; `first`: see `namespace_of`."""
    if getattr(request, "positional_embed_overrides", None) is not None:
        return ALONE + str(request.rid)
    return namespace_of(request.extra_key, getattr(request, "cache_salt", None), first)


_TENANTS: Final = {"none": (), "named": ("routing_key",), "namespace": ("extra_key", "cache_salt")}


def tenant_of(request: Any, tenants: str) -> str:
    """Return the tenant of a request by the option `tenants`: none, its routing key, or its namespace."""
    return first_text(getattr(request, name, None) for name in _TENANTS[tenants])


def stated_by(request: Any, tenants: str, statements: Statements) -> Stated:
    """Return what `custom_params` states; if no session, it is SGLang's own session or the routing key."""
    own = getattr(getattr(request, "session", None), "session_id", None)
    key = None if tenants == "named" else getattr(request, "routing_key", None)  # "named": the tenant
    parameters = getattr(request.sampling_params, "custom_params", None)
    return statements.of(parameters, (own, getattr(request, "session_id", None), key))


def is_turn(request: Any) -> bool:
    """Whether a request is a turn of a streaming session, whose KV stays with the session."""
    return bool(getattr(getattr(request, "session", None), "streaming", False))


def was_admitted(request: Any, outputs_before: int) -> bool:
    """Whether a request that left the waiting queue went into a batch; False if it was aborted."""
    if len(request.output_ids) > outputs_before:
        return True
    if is_turn(request):  # a waiting turn may have been lent its session's row
        return bool(request.already_computed > 0)
    places = (request, getattr(request, "kv", None))
    return any(getattr(place, "req_pool_idx", None) is not None for place in places)


def cached_of(request: Any) -> int:
    """Return the tokens that SGLang found in its cache for a request of the batch that it has just made."""
    if not getattr(request, "retracted_stain", False):
        return int(request.cached_tokens)
    found = getattr(request, "prefix_len", None)  # `cached_tokens` no longer changes after a retraction
    return len(request.prefix_indices) if found is None else int(found)


def entry_time(request: Any) -> float:
    """Return when a request entered the waiting queue, on the engine's clock; it breaks ties in priority."""
    return float(request.time_stats.wait_queue_entry_time)


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in the planner or in flight, translated.

    Attributes:
        request: a weak reference; an idle server asks for no order, and its last batch would be kept alive.
        outputs: number of tokens that it had generated when it came.
        num_tokens, limit: tokens of its prompt, and those that may be matched.
        lent: tokens that its session lends it in place of the cache; -1 if the cache is asked.
        key: the planner's key; a request without symbols is alone in its namespace.
        session: the session that it states, else the one that the prompt seems to continue.
    """

    request: ref[Any]
    outputs: int
    namespace: str
    num_tokens: int
    limit: int
    lent: int = -1
    key: bytes = bytes(SYMBOL_BYTES)
    heads: tuple[object, ...] = ()
    session: str = ""
    letters: tuple[Letter, ...] = ()

    def prefill_ended(self) -> bool:
        """Whether an admitted request's prefix is in the cache now, or the request is gone."""
        request = self.request()
        if request is None:
            return True
        return len(request.output_ids) > self.outputs or request.finished() or request.is_retracted


class Translator:
    """Translates prompts for one cache, of pages of `page_tokens`.

    With `bigram` the keys are pairs of neighbours; a prompt has one pair less than tokens.  `lends`: see
    `lender_of`.

    Attributes:
        pages: the table of pages; None for pages of one token.
        lent: tokens that sessions lend, by the namespace of the request.
    """

    def __init__(
        self, page_tokens: int, bigram: bool = False, lends: Callable[[Any, int], int] = lambda *_: -1
    ) -> None:
        self.page_tokens = page_tokens
        self.bigram = bigram
        self.lends = lends
        self.lent: dict[str, int] = {}
        self.alphabet = Alphabet()
        self.continuations = Continuations()
        self.pages = PageTable(page_tokens) if page_tokens > 1 else None

    def translate(self, request: Any, session: str = "") -> Waiting:
        """Translate a request, with the session that it states; call `release` later.  O(tokens).

        `InvalidKey` for a token id below 0, or one that is no int; nothing is kept then.
        """
        tokens, limit = prompt_of(request)
        skipped = int(self.bigram)
        limit = max(limit - skipped, 0)
        whole = limit // self.page_tokens * self.page_tokens
        outputs, alone = len(request.output_ids), ALONE + str(request.rid)
        namespace = request_namespace(request)
        lent = self.lends(request, limit)
        made = Waiting(ref(request), outputs, namespace, len(tokens), limit, lent, session=session)
        if whole == 0:
            made.namespace = alone
        elif made.namespace != alone:
            symbols, made.letters = self.alphabet.pack(tokens, skipped, skipped + whole)
            if any(letter.value < 0 for letter in made.letters) or tokens[0] < 0:
                raise InvalidKey("a token id is below 0")
            made.heads = heads_of(symbols)
            made.session = session or self.continuations.session_of(str(request.rid), symbols, namespace)
            if made.lent < 0:
                if self.bigram:
                    made.namespace = request_namespace(request, int(tokens[0]))
                made.key = symbols if self.pages is None else self.pages.intern(symbols)
        if made.lent >= 0:  # its KV belongs to its session, and no other request shares it
            made.namespace = alone
            made.key = bytes(SYMBOL_BYTES * max(-(-made.lent // self.page_tokens), 1))
            self.lent[alone] = made.lent
        return made

    def known(self, tokens: Any, extra_key: str | None, cache_salt: str | None) -> tuple[str, bytes]:
        """Return namespace and packed symbols of a cache key, as far as waiting prompts can have them."""
        if len(tokens) and isinstance(tokens[0], tuple):  # pairs, in 0.5.9
            tokens = [tokens[0][0], *(pair[1] for pair in tokens)]
        first = int(tokens[0]) if self.bigram and len(tokens) else None
        symbols = self.alphabet.known(tokens, int(self.bigram))
        known = symbols if self.pages is None else self.pages.known(symbols)
        return namespace_of(extra_key, cache_salt, first), known

    def release(self, made: Waiting) -> None:
        """Release the pages of a request with which no prompt is compared any more.  O(pages)."""
        if made.lent >= 0:
            self.lent.pop(made.namespace, None)
        if self.pages is not None and not made.namespace.startswith(ALONE):
            self.pages.release(made.key)


SWEEP_EVERY: Final = 64
"""Turns of the scheduler between two looks at all followed requests; each look is O(queue)."""


class Followed:
    """The requests that were seen to wait, by id in `here`; keeps them alive until they have ended."""

    def __init__(self) -> None:
        self.here: dict[str, Any] = {}
        self._turns = 0

    def due(self) -> bool:
        """Count one more turn; return whether it is time to look at all requests."""
        self._turns += 1
        return self._turns % SWEEP_EVERY == 0

    def new(self, queue: list[Any]) -> list[Any]:
        """Follow and return the requests after the last known one that was not retracted.  O(these)."""
        found = []
        for request in reversed(queue):
            known = self.here.get(request.rid) is request
            if not known:
                found.append(request)
            elif not (len(request.output_ids) or request.retracted_stain):
                break
        found.reverse()
        self.here.update((request.rid, request) for request in found)
        return found

    def gone(self, queue: list[Any] | None) -> list[Any]:
        """Forget and return requests that finished or left `queue`, if given, unserved.  O(followed)."""
        waiting = None if queue is None else {id(request) for request in queue}

        def withdrawn(request: Any) -> bool:
            left = waiting is not None and id(request) not in waiting
            return left and (request.is_retracted or not was_admitted(request, 0))

        gone = [request for request in self.here.values() if request.finished() or withdrawn(request)]
        for request in gone:
            del self.here[request.rid]
        return gone


LONGEST_WAIT_S: Final = 86_400.0
"""Seconds; a longer wait means that the request's time is from another clock."""


class Served:
    """Reports requests to a recorder, from when they are seen in the waiting queue until they have ended."""

    def __init__(self, statements: Statements) -> None:
        self._followed = Followed()
        self._statements = statements

    def saw(self, queue: list[Any], recorder: Recorder) -> None:
        """Note the new requests.  O(new)."""
        for request in self._followed.new(queue):
            now, waited_s = recorder.clock(), perf_counter() - entry_time(request)
            at_s = now - waited_s if 0.0 <= waited_s < LONGEST_WAIT_S else now
            session = stated_by(request, "named", self._statements).session
            space, tenant = request_namespace(request), tenant_of(request, "named")
            recorder.came(Asked(str(request.rid), at_s, request.origin_input_ids, space, session, tenant))

    def turned(self, queue: list[Any], recorder: Recorder) -> None:
        """Write the requests that have ended; called each turn, O(followed + queue) every `SWEEP_EVERY`."""
        for request in self._followed.gone(queue) if self._followed.due() else ():
            if request.finished():
                recorder.ended(str(request.rid), len(request.output_ids))
            else:
                recorder.forget(str(request.rid))
