"""How long answers will be, learned from those that have ended.

An engine that is short of memory for as long as answers last has to know which will last; nobody tells it.
But prompts that begin alike (a template, a tool, a tenant's system prompt) mostly ask for answers of a kind.
So requests of a namespace are sorted by the beginnings of their prompts, at a few lengths, and each such
*kind* keeps the mean of its answers.  What is expected of a request is the mean of the narrowest kind that
has seen any, drawn towards that of the next wider one as if by one answer more.

Nothing here is an answer's true length before it has ended.  A namespace's own kinds are compared with its
own mean; of other namespaces no more enters than how long their answers are, which takes its time anyway.

Any client can ask for long answers, so what is learned is held in bounds.  What it may do to the order is
bounded by `LEAST` and `MOST`.  In a kind the answers of one tenant count for `MEMORY` at most.  Only answers
make kinds, and each namespace has its own room for them: another one's requests cannot make it forget, until
there are kinds for `_MOST_IN_ALL`; then the namespace that has most of them forgets its older half.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from mypy_extensions import i64

from peek.request import PendingRequest

LEAST: Final = 0.5
"""The index of a piece is at least this many times what it is without what is expected of answers, ..."""
MOST: Final = 2.0
"""... and at most this many times; see `bounded`."""

_WIDE_MEMORY: Final = 256.0
"""Answers that the mean of a namespace, or of all, looks back on, ..."""
MEMORY: Final = 32.0
"""... and that of one tenant's answers in a kind."""

_NEWS: Final = 0.1
"""Change of an expectation, to the mean, from which those who wait are told."""

_MOST_TENANTS: Final = 8
"""Tenants whose answers a kind keeps apart, those who answered last."""
_MOST_KINDS: Final = 2048
"""Kinds of a namespace that are found again, from half to all of these at least; the ones in use last."""
_MOST_IN_ALL: Final = 16384
"""Kinds of all namespaces."""
_MOST_SPACES: Final = 4096
"""Namespaces of which anything is known, those that answered last; of more while requests of more wait."""
_MOST_RUNNING: Final = 65536
"""Requests whose end is awaited; of more the oldest are forgotten, for hosts that never tell."""


def bounded(learned: float, plain: float) -> float:
    """The index of a piece with what is expected of answers, kept near its index without.

    Let a piece's plain index be p and what comes out here q.  As LEAST * p <= q <= MOST * p, for any two
    pieces a and b

        q(a) / q(b) <= MOST / LEAST * p(a) / p(b)

    and a plain index is an age times a number that does not depend on age or answers.  So where a goes before
    b because q(a) >= q(b), it would have gone first without any answers, too, had it been MOST / LEAST = 4
    times as old.  Hence, whatever the answers were, no piece is passed because of them by one that is more
    than 4 times younger than what it takes to pass without them.
    """
    return min(max(learned, LEAST * plain), MOST * plain)


@final
class Mean:
    """The mean of the last answers; each weighs 1 / `memory` once there are as many.

    Attributes:
        answers: those it has seen, `memory` at most.
        mean: tokens of one.
    """

    __slots__ = ("answers", "mean", "memory")

    def __init__(self, memory: float) -> None:
        self.memory: float = memory
        self.answers: float = 0.0
        self.mean: float = 0.0

    def add(self, tokens: float) -> None:
        """Add an answer.  O(1)."""
        self.answers = min(self.memory, self.answers + 1.0)
        self.mean += (tokens - self.mean) / self.answers


@final
class Kind:
    """How long the answers were to prompts that begin alike, or to all of a namespace, or to all.

    Attributes:
        prior: answers that what is expected of the wider kind counts for.
        answers: those that its mean is of.
        mean: tokens of one.
        told: the mean when those who wait last heard of it.
    """

    __slots__ = ("_by_tenant", "_one", "_whose", "answers", "mean", "prior", "told")

    def __init__(self, prior: float, memory: float) -> None:
        self.prior: float = prior
        self.answers: float = 0.0
        self.mean: float = 0.0
        self.told: float = 0.0
        self._one = Mean(memory)
        self._whose = ""
        self._by_tenant: dict[str, Mean] | None = None

    def learn(self, tokens: float, tenant: str) -> None:
        """Add an answer.  O(1), O(`_MOST_TENANTS`) where several tenants have answered."""
        several = self._by_tenant
        if several is None:
            if self.answers == 0.0:
                self._whose = tenant
            if self._whose == tenant:
                self._one.add(tokens)
                self.answers = self._one.answers
                self.mean = self._one.mean
                return
            several = {self._whose: self._one}
            self._by_tenant = several
        own = several.pop(tenant, None)
        if own is None:
            own = Mean(MEMORY)
            if len(several) == _MOST_TENANTS:
                del several[next(iter(several))]
        several[tenant] = own
        own.add(tokens)
        answers = 0.0
        total = 0.0
        for each in several.values():
            answers += each.answers
            total += each.answers * each.mean
        self.answers = answers
        self.mean = total / answers


@final
class Space:
    """A namespace: its kinds, and how many of each wait.

    Attributes:
        whole: of all its answers.
        kinds, older: the kinds of its prompts' beginnings, by name; the ones in use last.
        waiting: requests that wait, by the names of their beginnings.
        waits: requests that wait.
    """

    __slots__ = ("kinds", "older", "waiting", "waits", "whole")

    def __init__(self) -> None:
        self.whole = Kind(0.0, _WIDE_MEMORY)
        self.kinds: dict[object, Kind] = {}
        self.older: dict[object, Kind] = {}
        self.waiting: dict[object, int] = {}
        self.waits: i64 = 0

    @property
    def size(self) -> int:
        """Kinds that are found again."""
        return len(self.kinds) + len(self.older)

    def found(self, head: object) -> Kind | None:
        """A kind by name, if there is one; it counts as used.  O(1)."""
        kind = self.kinds.get(head)
        if kind is None and self.older:
            kind = self.older.pop(head, None)
            if kind is not None:
                self._enter(head, kind)
        return kind

    def made(self, head: object) -> Kind:
        """A new kind of this name.  O(1)."""
        kind = Kind(1.0, MEMORY)
        self._enter(head, kind)
        return kind

    def _enter(self, head: object, kind: Kind) -> None:
        if len(self.kinds) >= _MOST_KINDS // 2:
            self.older = self.kinds
            self.kinds = {}
        self.kinds[head] = kind

    def forget(self) -> None:
        """The older half of the kinds, all if there is no older one."""
        if not self.older:
            self.kinds = {}
        self.older = {}

    def count(self, heads: tuple[object, ...], change: int) -> None:
        """So many more, or fewer, wait of these beginnings.  O(heads)."""
        self.waits += change
        waiting = self.waiting
        for head in heads:
            now = waiting.get(head, 0) + change
            if now > 0:
                waiting[head] = now
            else:
                del waiting[head]


@final
class Expected:
    """What is expected of the answer of a request that waits.

    Attributes:
        namespace, heads: whose kinds it is compared with.
        ratio: its length, to the mean of all answers; 1.0 if unknown.
        excess: tokens that it is longer than the mean of its namespace.
    """

    __slots__ = ("excess", "heads", "namespace", "ratio")

    def __init__(self, namespace: str, heads: tuple[object, ...]) -> None:
        self.namespace = namespace
        self.heads = heads
        self.ratio: float = 1.0
        self.excess: i64 = 0


@final
class AnswerLengths:
    """What the answers of waiting requests will take, as far as can be learned.

    Attributes:
        news: an expectation has changed for a request that waits: call `renew` for all of them.
    """

    __slots__ = ("_all", "_expected", "_in_all", "_running", "_spaces", "news")

    def __init__(self) -> None:
        self._all = Kind(0.0, _WIDE_MEMORY)
        self._spaces: OrderedDict[str, Space] = OrderedDict()
        self._running: OrderedDict[str, tuple[str, str, tuple[object, ...]]] = OrderedDict()
        self._expected: dict[str, Expected] = {}
        self._in_all: i64 = 0
        self.news = False

    @property
    def kinds(self) -> int:
        """Kinds that are found again.  O(namespaces)."""
        return sum([space.size for space in self._spaces.values()])

    @property
    def namespaces(self) -> int:
        """Namespaces of which anything is known.  O(1)."""
        return len(self._spaces)

    @property
    def running(self) -> int:
        """Requests whose end is awaited.  O(1)."""
        return len(self._running)

    # -- who comes and goes ------------------------------------------------------------------------

    def arrived(self, request: PendingRequest, heads: tuple[object, ...]) -> None:
        """A request waits whose prompt has these beginnings.  O(heads)."""
        space = self._spaces.get(request.namespace)
        if space is None:
            space = Space()
            self._spaces[request.namespace] = space
        space.count(heads, 1)
        expected = Expected(request.namespace, heads)
        expected.ratio, excess, _ = self._estimate(space, heads)
        expected.excess = int(excess)
        self._expected[request.request_id] = expected

    def withdrawn(self, request_id: str) -> Expected:
        """A request left without being served; nothing is kept of it.  O(heads)."""
        expected = self._expected.pop(request_id)
        space = self._spaces[expected.namespace]
        space.count(expected.heads, -1)
        if space.waits == 0 and space.whole.answers == 0.0:
            del self._spaces[expected.namespace]
        return expected

    def admitted(self, request: PendingRequest) -> None:
        """A request is served from now on.  O(heads)."""
        heads = self.withdrawn(request.request_id).heads
        self._running[request.request_id] = (request.namespace, request.tenant, heads)
        if len(self._running) > _MOST_RUNNING:
            self._running.popitem(last=False)

    def answered(self, tokens: int, request_id: str) -> None:
        """An answer of so many tokens is complete; of an unknown request it counts for the common mean.

        O(heads).
        """
        length = float(tokens)
        self._learn(self._all, length, "", len(self._expected))
        ended = self._running.pop(request_id, None)
        if ended is None:
            return
        namespace, tenant, heads = ended
        space = self._spaces.get(namespace)
        if space is None:
            space = Space()
            self._spaces[namespace] = space
        self._learn(space.whole, length, "", space.waits)
        before = space.size
        for head in heads:
            kind = space.found(head)
            if kind is None:
                kind = space.made(head)
            self._learn(kind, length, tenant, space.waiting.get(head, 0))
        self._spaces.move_to_end(namespace)
        self._in_all += space.size - before
        self._make_room()

    def _learn(self, kind: Kind, tokens: float, tenant: str, waiting: i64) -> None:
        kind.learn(tokens, tenant)
        if waiting > 0 and abs(kind.mean - kind.told) > _NEWS * kind.told:
            kind.told = kind.mean
            self.news = True

    def _make_room(self) -> None:
        """Forget what is beyond the bounds.  O(1) within them, else O(namespaces)."""
        while self._in_all > _MOST_IN_ALL:
            largest = max(self._spaces.values(), key=_size)
            self._in_all -= largest.size
            largest.forget()
            self._in_all += largest.size
        if len(self._spaces) - len(self._expected) > _MOST_SPACES:
            for namespace, space in self._spaces.items():
                if space.waits == 0:
                    self._in_all -= space.size
                    del self._spaces[namespace]
                    return

    # -- what to expect ----------------------------------------------------------------------------

    def expected(self, request_id: str) -> Expected:
        """What is expected of a waiting request, as of its arrival or the last `renew`.  O(1)."""
        expected = self._expected.get(request_id)
        return Expected("", ()) if expected is None else expected

    def renew(self, request_id: str) -> bool:
        """Update what is expected of a waiting request, if that is news; whether it was.  O(heads)."""
        expected = self.expected(request_id)
        space = self._spaces.get(expected.namespace)
        if space is None:
            return False
        ratio, excess, own = self._estimate(space, expected.heads)
        if (
            abs(ratio - expected.ratio) <= _NEWS * expected.ratio
            and abs(excess - float(expected.excess)) <= _NEWS * own
        ):
            return False
        expected.ratio = ratio
        expected.excess = int(excess)
        return True

    def _estimate(self, space: Space, heads: tuple[object, ...]) -> tuple[float, float, float]:
        """Of an answer: its length to the mean of all, its tokens beyond the mean of its namespace, and that
        mean; 1, 0 and 0 where nothing is known."""
        common = self._all.mean
        own = common
        if space.whole.answers > 0.0:
            own = space.whole.mean
        expected = own
        for head in heads:
            kind = space.found(head)
            if kind is not None:
                expected = (kind.answers * kind.mean + kind.prior * expected) / (kind.answers + kind.prior)
        ratio = expected / common if expected > 0.0 else 1.0
        return ratio, max(0.0, expected - own), own


def _size(space: Space) -> int:
    return space.size
