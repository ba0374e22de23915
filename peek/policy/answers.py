"""How long answers will be, learned from those that have ended.

An engine that is short of memory for as long as answers last has to know which will last; nobody tells it.
But prompts that begin alike (a template, a tool, a tenant's system prompt) mostly ask for answers of a kind.
So requests of a namespace are sorted by the beginnings of their prompts, at a few lengths, and each such
*kind* keeps the mean of its answers.  What is expected of a request is the mean of the narrowest kind that
has seen any, drawn towards that of the next wider one as if by one answer more.

Nothing here is an answer's true length before it has ended.  A namespace's own kinds are compared with its
own mean; of other namespaces no more enters than how long their answers are, which takes its time anyway.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from peek.request import PendingRequest
from peek.trie.keys import SYMBOL_BYTES

HEADS: Final = (64, 256, 1024)
"""Tokens of a prompt's beginnings that name its kinds."""

_WIDE_MEMORY: Final = 256.0
"""Answers that the mean of a namespace, or of all, looks back on, ..."""
_MEMORY: Final = 32.0
"""... and that of a kind."""

_NEWS: Final = 0.1
"""Change of an expectation, to the mean, from which those who wait are told."""

_MOST_KINDS: Final = 2048
"""Kinds that are found again, from half to all of these at least; the ones in use last."""
_MOST_RUNNING: Final = 65536
"""Requests whose end is awaited; of more the oldest are forgotten, for hosts that never tell."""


def heads_of(packed: bytes, unit_tokens: int = 1) -> tuple[object, ...]:
    """Names of a packed prompt's beginnings, shortest first: one for each of `HEADS` that it has.

    For keys whose symbols mean the same as long as the process lives.  O(1024 / unit_tokens).
    """
    found: list[object] = []
    for tokens in HEADS:
        end = max(1, tokens // unit_tokens) * SYMBOL_BYTES
        if end <= len(packed):
            found.append(hash(packed[:end]))
    return tuple(found)


@final
class Kind:
    """Requests of a namespace whose prompts begin alike, and how long their answers were.

    Attributes:
        above: the next wider kind; None for that of all requests.
        prior: answers that what is expected of the wider kind counts for.
        memory: answers that the mean looks back on.
        answers: those it has seen, `memory` at most.
        mean: tokens of one.
        told: the mean when those who wait last heard of it.
        waiting: requests of it that wait.
    """

    __slots__ = ("above", "answers", "mean", "memory", "prior", "told", "waiting")

    def __init__(self, above: Kind | None, prior: float, memory: float) -> None:
        self.above = above
        self.prior: float = prior
        self.memory: float = memory
        self.answers: float = 0.0
        self.mean: float = 0.0
        self.told: float = 0.0
        self.waiting: i64 = 0


@final
class AnswerLengths:
    """What the answers of waiting requests will take, as far as can be learned.

    Writes `answer_ratio` and `answer_excess` of a request when it arrives; later `tell` does.

    Attributes:
        news: an expectation has changed for somebody who waits: call `tell` on all of them.
    """

    __slots__ = ("_all", "_kinds", "_older", "_running", "news")

    def __init__(self) -> None:
        self._all = Kind(None, 0.0, _WIDE_MEMORY)
        self._kinds: dict[tuple[str, object], Kind] = {}
        self._older: dict[tuple[str, object], Kind] = {}
        self._running: dict[str, Kind] = {}
        self.news = False

    @property
    def kinds(self) -> int:
        """Kinds that are found again.  O(1)."""
        return len(self._kinds) + len(self._older)

    @property
    def running(self) -> int:
        """Requests whose end is awaited.  O(1)."""
        return len(self._running)

    # -- who comes and goes ------------------------------------------------------------------------

    def arrived(self, request: PendingRequest, heads: tuple[object, ...]) -> None:
        """A request waits whose prompt has these beginnings.  O(heads)."""
        kind = self._found(self._all, request.namespace, None)
        for head in heads:
            kind = self._found(kind, request.namespace, head)
        request.kind = kind
        _count(kind, 1)
        request.answer_ratio, excess, _ = self._expected(kind)
        request.answer_excess = int(excess)

    def withdrawn(self, request: PendingRequest) -> None:
        """A request left without being served.  O(heads)."""
        _count(_kind_of(request), -1)

    def admitted(self, request: PendingRequest) -> None:
        """A request is served from now on.  O(heads)."""
        kind = _kind_of(request)
        _count(kind, -1)
        self._running[request.request_id] = kind
        if len(self._running) > _MOST_RUNNING:
            del self._running[next(iter(self._running))]

    def answered(self, tokens: int, request_id: str) -> None:
        """An answer of so many tokens is complete; of an unknown request it counts for the common mean.

        O(heads).
        """
        kind: Kind | None = self._running.pop(request_id, None)
        if kind is None:
            kind = self._all
        while kind is not None:
            kind.answers = min(kind.memory, kind.answers + 1.0)
            kind.mean += (float(tokens) - kind.mean) / kind.answers
            if kind.waiting > 0 and abs(kind.mean - kind.told) > _NEWS * kind.told:
                kind.told = kind.mean
                self.news = True
            kind = kind.above

    def _found(self, above: Kind, namespace: str, head: object) -> Kind:
        """A kind by name; a new one below `above` if there is none.  O(1)."""
        name = (namespace, head)
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._older.get(name)
            if kind is None:
                wide = head is None
                kind = Kind(above, 0.0 if wide else 1.0, _WIDE_MEMORY if wide else _MEMORY)
            if len(self._kinds) >= _MOST_KINDS // 2:
                self._older = self._kinds
                self._kinds = {}
            self._kinds[name] = kind
        return kind

    # -- what to expect ----------------------------------------------------------------------------

    def tell(self, request: PendingRequest) -> bool:
        """Write what is expected of a waiting request by now, if that is news; whether it was.  O(heads)."""
        ratio, excess, own = self._expected(_kind_of(request))
        if (
            abs(ratio - request.answer_ratio) <= _NEWS * request.answer_ratio
            and abs(excess - float(request.answer_excess)) <= _NEWS * own
        ):
            return False
        request.answer_ratio = ratio
        request.answer_excess = int(excess)
        return True

    def _expected(self, kind: Kind) -> tuple[float, float, float]:
        """Of an answer of a kind: its length to the mean of all, its tokens beyond the mean of its namespace,
        and that mean; 1, 0 and 0 where nothing is known."""
        path: list[Kind] = []
        at: Kind | None = kind
        while at is not None:
            path.append(at)
            at = at.above
        expected = 0.0
        common = 0.0
        own = 0.0
        while path:
            at = path.pop()
            if at.answers > 0.0:
                expected = (at.answers * at.mean + at.prior * expected) / (at.answers + at.prior)
            if at is self._all:
                common = expected
            if at.prior == 0.0:
                own = expected
        ratio = expected / common if expected > 0.0 else 1.0
        return ratio, max(0.0, expected - own), own


def _count(kind: Kind, change: i64) -> None:
    """So many more, or fewer, of a kind wait."""
    at: Kind | None = kind
    while at is not None:
        at.waiting += change
        at = at.above


def _kind_of(request: PendingRequest) -> Kind:
    kind = request.kind
    assert isinstance(kind, Kind)
    return kind
