"""A request of SGLang as the planner knows it: namespace, packed symbols, length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peek.adapters.sglang.alphabet import Alphabet, Letter
from peek.adapters.sglang.namespaces import ALONE, behind, namespace_of
from peek.adapters.sglang.pages import PageTable
from peek.adapters.sglang.seams import prompt_of, request_namespace
from peek.errors import InvalidKey
from peek.request import PendingRequest
from peek.trie.keys import SYMBOL_BYTES, heads_of


class Translated:
    """What is kept of a request while it is compared with others."""

    __slots__ = ("blank", "heads", "lent", "letters", "limit", "namespace", "num_tokens", "symbols")

    def __init__(self, namespace: str, num_tokens: int) -> None:
        self.namespace = namespace
        self.num_tokens = num_tokens
        self.symbols = b""
        self.heads: tuple[object, ...] = ()
        self.letters: tuple[Letter, ...] = ()
        self.limit = 0
        """Tokens that may be matched."""
        self.lent = -1
        """Tokens that the request's session lends it in place of the cache; -1 if the cache is asked."""
        self.blank = 1
        """Symbols of the key of a request that is alone."""

    @property
    def key(self) -> bytes:
        """What the planner takes; a request without symbols is alone in its namespace."""
        return self.symbols or bytes(SYMBOL_BYTES * self.blank)

    def pending(self, rid: str, arrival: float, tenant: str) -> PendingRequest:
        """The request as the planner sees it."""
        return PendingRequest(
            rid, self.key, arrival, self.namespace, self.num_tokens, tenant=tenant, heads=self.heads
        )


class Translator:
    """Translates prompts for one cache.

    Args:
        page_tokens: the cache's page size.
        bigram: whether the cache's keys are pairs of neighbours, of which a prompt has one less than tokens.
        lends: what tells the tokens that a request's streaming session lends, see `lender_of`; None without.

    Attributes:
        alphabet: the letters of waiting prompts and of cached ones.
        pages: the table of pages, None for pages of one token.
        lent: tokens that sessions lend, by the namespaces of the requests that they lend them to.
    """

    def __init__(
        self, page_tokens: int, bigram: bool = False, lends: Callable[[Any, int], int] | None = None
    ) -> None:
        self.page_tokens = page_tokens
        self.bigram = bigram
        self.lends = lends
        self.lent: dict[str, int] = {}
        self.alphabet = Alphabet()
        self.pages = PageTable(page_tokens) if page_tokens > 1 else None

    def translate(self, request: Any) -> Translated:
        """O(tokens).  `release` it later; nothing is kept if this raises.

        Raises:
            InvalidKey: a token id below 0, or one that is no int.
        """
        tokens, limit = prompt_of(request)
        made = Translated(request_namespace(request), len(tokens))
        skipped = 1 if self.bigram else 0
        made.limit = max(limit - skipped, 0)
        whole = made.limit // self.page_tokens * self.page_tokens
        if self.lends is not None:
            made.lent = self.lends(request, made.limit)
        if whole == 0:
            made.namespace = ALONE + str(request.rid)
        elif not made.namespace.startswith(ALONE):
            symbols, made.letters = self.alphabet.pack(tokens[skipped : skipped + whole])
            if any(letter.value < 0 for letter in made.letters) or tokens[0] < 0:
                raise InvalidKey("a token id is below 0")
            made.heads = heads_of(symbols)
            if made.lent < 0:
                if self.bigram:
                    made.namespace = behind(tokens[0], made.namespace)
                made.symbols = symbols if self.pages is None else self.pages.intern(symbols)
        if made.lent >= 0:  # its KV is its session's: nobody shares it, and it shares nobody's
            made.namespace = ALONE + str(request.rid)
            made.blank = max(-(-made.lent // self.page_tokens), 1)
            self.lent[made.namespace] = made.lent
        return made

    def known(self, tokens: Any, extra_key: str | None, cache_salt: str | None) -> tuple[str, bytes]:
        """Namespace and packed symbols of a key of the cache, as far as a waiting prompt may have them.

        O(tokens); nothing is kept.
        """
        namespace = namespace_of(extra_key, cache_salt)
        if self.bigram and len(tokens):
            namespace, tokens = behind(int(tokens[0]), namespace), tokens[1:]
        symbols = self.alphabet.known(tokens)
        return namespace, symbols if self.pages is None else self.pages.known(symbols)

    def release(self, made: Translated) -> None:
        """Nobody compares with it any more.  O(pages)."""
        if made.lent >= 0:
            self.lent.pop(made.namespace, None)
        if self.pages is not None:
            self.pages.release(made.symbols)
