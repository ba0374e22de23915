"""What is expected of a waiting request: how long its answer is, and how much its session still has to do.

A request holds memory until its answer ends, and no engine is told when that will be.  A session is not done
before its last turn.  If the sessions with the fewest turns left go first, fewer sessions wait at any time.
A session may also begin with several requests at once, as a map-reduce job does, and it waits for the last of
them.  So a session with fewer of these left goes before others, too.  Later turns that arrive at once do not
count: their context is cached, and may not stay so.

Prompts that begin alike (a template, a tool, an agent's system prompt) mostly ask for answers of similar
length, and belong to sessions of similar length.  So the requests of a namespace are sorted by the beginnings
of their prompts, at a few lengths.  Each such *kind* keeps the mean length of its answers, and how many of
its requests were a first turn, a second and so on.  The expected answer of a request is the mean of its
narrowest kind that has any answers.  That mean is drawn towards the mean of the next wider kind as if by one
more answer.  The number of turns that follow is expected in the same way.

No answer's true length is used before that answer has ended.  A kind's answers are compared with the mean of
its own namespace; nothing is learned from another one.

Any client can ask for long answers or for many turns, so what is learned is bounded.  `MOST_WORTH`,
`MOST_TURNS` and `MOST_AT_ONCE` bound its effect on the order.  In a kind the answers of one tenant count as
`MEMORY` at most.  Only answers make kinds, and each namespace has its own room for them, so requests cannot
make another namespace forget.  Only above `_MOST_IN_ALL` kinds does the namespace with the most forget half.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Final, final

from mypy_extensions import i64

from peek.request import PendingRequest
from peek.trie.continuations import session_of, short

MOST_WORTH: Final = 2.0
"""Maximum factor, up or down, by which expected answers change the index of a piece.  Between two pieces they
make up for at most 1.5 times the mean age and a fifth of the younger one's age (`frontier.index`)."""

MOST_TURNS: Final = 4.0
"""Maximum factor by which expected turns make a request larger.  With 8 or 16 no figure of agents, chats or a
live mix was better.  At the default's power it is a factor of 28 in the index; the best hit is 15,625."""

MOST_AT_ONCE: Final = 4.0
"""Maximum factor by which the waiting requests that a session begins with make each other larger.  The larger
it is, the sooner whole map-reduce jobs end, and the later first tokens come (`bench.ablation`)."""

TURNS: Final = 16
"""Number of turns that are told apart; later ones count as the last of them."""

_TURNS_MEMORY: Final = 512.0
"""Requests of a kind after which its counts of turns are halved."""

_MOST_SESSIONS: Final = 16384
"""Maximum number of remembered sessions; the ones with the latest admissions stay."""

_WIDE_MEMORY: Final = 256.0
"""Number of latest answers in the mean of a namespace."""
MEMORY: Final = 32.0
"""Number of latest answers in the mean of one tenant in a kind."""

_NEWS: Final = 0.1
"""Relative change of an expected length above which waiting requests are updated.  At the default power it
changes the index by a quarter."""

_MOST_TENANTS: Final = 8
"""Maximum number of tenants whose answers a kind keeps apart; the tenants answered last stay."""
_MOST_KINDS: Final = 2048
"""Maximum number of kinds of a namespace.  Within `_MOST_IN_ALL` at least the 1,024 used last stay."""
_MOST_IN_ALL: Final = 16384
"""Maximum number of kinds of all namespaces together."""
_MOST_SPACES: Final = 4096
"""Maximum number of namespaces, beside one per waiting request; the namespaces answered last stay."""
_MOST_RUNNING: Final = 16384
"""Maximum number of admitted requests whose end is awaited; the oldest go, as some hosts report no end."""


@final
class Mean:
    """The mean length of the latest answers; each weighs 1 / `memory` once there are that many.

    Attributes:
        answers: number of answers seen, at most `memory`.
        mean: mean length of an answer, tokens.
    """

    def __init__(self, memory: float) -> None:
        self.memory: float = memory
        self.answers: float = 0.0
        self.mean: float = 0.0

    def add(self, tokens: float) -> None:
        """Add an answer of `tokens` tokens.  O(1)."""
        self.answers = min(self.memory, self.answers + 1.0)
        self.mean += (tokens - self.mean) / self.answers


@final
class Turns:
    """How many requests were the first, second, ... turn of their sessions, and so how many turns follow."""

    def __init__(self) -> None:
        self._reached: list[float] = []
        """By turn: number of requests that were this turn or a later one."""

    def add(self, turn: i64) -> None:
        """Add a request that was the turn number `turn` of its session, from 0.  O(TURNS)."""
        reached = self._reached
        turn = min(turn, TURNS - 1)
        while len(reached) <= turn:
            reached.append(0.0)
        for i in range(turn + 1):
            reached[i] += 1.0
        if reached[0] > _TURNS_MEMORY:
            self._reached = [0.5 * each for each in reached]

    def after(self, turn: i64, wider: float, prior: float) -> float:
        """The mean number of turns after `turn`, drawn towards `wider` as if by `prior` requests.  O(1)."""
        reached = self._reached
        turn = min(turn, TURNS - 1)
        if turn >= len(reached):
            return wider
        later = reached[turn + 1] if turn + 1 < len(reached) else 0.0
        here = reached[turn] - later
        return (later + prior * wider) / (here + prior) if here > 0.0 else wider


@final
class Opening:
    """The waiting requests of a session, by id, that came before any of its requests was admitted."""

    def __init__(self, session: tuple[str, str]) -> None:
        self.session = session
        self.ids: dict[str, None] = {}

    @property
    def size(self) -> float:
        """Number of these requests, at most `MOST_AT_ONCE`."""
        return min(float(len(self.ids)), MOST_AT_ONCE)


@final
class Sessions:
    """How many requests of each session were admitted, and which requests a session begins with."""

    def __init__(self) -> None:
        self._openings: dict[tuple[str, str], Opening] = {}
        """By session: its requests that came before any was admitted, and still wait."""
        self._admitted: OrderedDict[tuple[str, str], int] = OrderedDict()

    def __len__(self) -> int:
        """Number of sessions of which a request was admitted."""
        return len(self._admitted)

    def turn_of(self, request: PendingRequest) -> i64:
        """Number of requests of its session that were admitted; 0 if it names no session.  O(1).

        A session belongs to one namespace; equal names in two namespaces are two sessions.
        """
        return self._admitted.get(session_of(request), 0)

    def begin(self, request: PendingRequest) -> Opening:
        """Add a first turn to the opening of its session; return that opening.  O(1)."""
        name = session_of(request)
        opening = self._openings.get(name)
        if opening is None:
            opening = Opening(name)
            self._openings[name] = opening
        opening.ids[request.request_id] = None
        return opening

    def left(self, request_id: str, opening: Opening) -> None:
        """Remove a request that no longer waits from an opening.  O(1)."""
        del opening.ids[request_id]
        if not opening.ids:
            del self._openings[opening.session]

    def admitted(self, request: PendingRequest) -> None:
        """Count an admitted request.  O(1)."""
        if request.session:
            name = session_of(request)
            self._admitted[name] = self._admitted.pop(name, 0) + 1
            if len(self._admitted) > _MOST_SESSIONS:
                self._admitted.popitem(last=False)


@final
class Kind:
    """Answers and turns of prompts that begin alike, or of a whole namespace.

    Attributes:
        prior: weight of the wider kind's expected length, in answers.
        answers: number of answers in the mean.
        mean: mean length of an answer, tokens.
        told: the mean when it last gave a reason to renew waiting requests, tokens.
        turns: which turns its requests were.
    """

    def __init__(self, prior: float, memory: float) -> None:
        self.prior: float = prior
        self.answers: float = 0.0
        self.mean: float = 0.0
        self.told: float = 0.0
        self.turns = Turns()
        self._memory: float = memory
        self._by_tenant: dict[str, Mean] = {}

    def learn(self, tokens: float, tenant: str) -> None:
        """Add an answer of one tenant.  O(`_MOST_TENANTS`)."""
        several = self._by_tenant
        own = several.pop(tenant, None)
        if own is None:
            own = Mean(self._memory)
            if len(several) == _MOST_TENANTS:
                del several[next(iter(several))]
        several[tenant] = own
        own.add(tokens)
        if len(several) == 1:
            self.answers = own.answers
            self.mean = own.mean
            return
        answers = 0.0
        total = 0.0
        for each in several.values():
            answers += each.answers
            total += each.answers * each.mean
        self.answers = answers
        self.mean = total / answers


@final
class Space:
    """One namespace: its kinds, and how many requests of each kind wait.

    Attributes:
        whole: the kind of all its answers.
        kinds, older: the other kinds, by the name of a prompt's beginning: those used last, and older ones.
        waiting: number of waiting requests by the name of a beginning.
        waits: number of waiting requests.
    """

    def __init__(self) -> None:
        self.whole = Kind(0.0, _WIDE_MEMORY)
        self.kinds: dict[object, Kind] = {}
        self.older: dict[object, Kind] = {}
        self.waiting: dict[object, int] = {}
        self.waits: i64 = 0

    @property
    def size(self) -> int:
        """Number of kinds, without `whole`."""
        return len(self.kinds) + len(self.older)

    def found(self, head: object) -> Kind | None:
        """Return the kind of this name, if there is one, and mark it as used.  O(1)."""
        kind = self.kinds.get(head)
        if kind is None and self.older:
            kind = self.older.pop(head, None)
            if kind is not None:
                self._enter(head, kind)
        return kind

    def made(self, head: object) -> Kind:
        """Make a new kind of this name.  O(1)."""
        kind = Kind(1.0, MEMORY)
        self._enter(head, kind)
        return kind

    def _enter(self, head: object, kind: Kind) -> None:
        if len(self.kinds) >= _MOST_KINDS // 2:
            self.older = self.kinds
            self.kinds = {}
        self.kinds[head] = kind

    def forget(self) -> None:
        """Forget the older half of the kinds; all of them if there is no older half."""
        if not self.older:
            self.kinds = {}
        self.older = {}

    def count(self, heads: tuple[object, ...], change: int) -> None:
        """Change the number of waiting requests with these beginnings by `change`.  O(heads)."""
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
    """What is expected of a waiting request.

    Attributes:
        namespace, heads: the request's namespace and beginnings, which name the kinds that it belongs to.
        session: the session that it names, "" for none.
        turn: number of its session's requests that were admitted before it.
        opening: the opening of its session, if it names one and is part of the opening.
        ratio: a product of three factors, 1.0 if nothing is known: expected answer over the namespace's mean
            answer, within `most_ratio`; 1 + the number of turns expected to follow, at most `MOST_TURNS`; and
            the size of the opening.
    """

    def __init__(self, namespace: str, heads: tuple[object, ...], session: str, turn: i64) -> None:
        self.namespace = namespace
        self.heads = heads
        self.session = session
        self.turn: i64 = turn
        self.opening: Opening | None = None
        self.ratio: float = 1.0


NOTHING: Final = Expected("", (), "", 0)
"""What is expected of a request that never arrived here."""


@final
class Expectations:
    """What is expected of waiting requests, as far as it can be learned.

    Args:
        most_ratio: upper bound of an expected answer over the mean; its inverse is the lower bound.

    Attributes:
        news: an expected length has changed, so the policy has to call `renew` for each waiting request.
        changed: ids of waiting requests whose session's opening has changed, so that it has to call `renew`.
        sessions: how many requests of each session were admitted, and which requests it begins with.
        waiting: what is expected of each waiting request, by id, as of its arrival or the last `renew`.
        kinds: number of kinds of all namespaces.
    """

    def __init__(self, most_ratio: float) -> None:
        self._most_ratio: float = most_ratio
        self._spaces: OrderedDict[str, Space] = OrderedDict()
        self._running: OrderedDict[str, tuple[str, Expected]] = OrderedDict()
        self.waiting: dict[str, Expected] = {}
        self.kinds: i64 = 0
        self.news = False
        self.changed: dict[str, None] = {}
        self.sessions = Sessions()

    @property
    def namespaces(self) -> int:
        """Number of namespaces of which anything is known.  O(1)."""
        return len(self._spaces)

    @property
    def running(self) -> int:
        """Number of admitted requests whose end is awaited.  O(1)."""
        return len(self._running)

    # -- arrivals and departures -------------------------------------------------------------------

    def arrived(self, request: PendingRequest, heads: tuple[object, ...], learns: bool = True) -> None:
        """Work out what to expect of a new waiting request; `heads` name its beginnings.  O(heads).

        `learns`: whether `admitted` will be called, so that turns are known.
        """
        namespace = short(request.namespace)
        space = self._space_of(namespace)
        space.count(heads, 1)
        before = self._preempted(request)
        turn = self.sessions.turn_of(request) if before is None else before.turn
        expected = Expected(namespace, heads, request.session, turn)
        if learns and request.session and expected.turn == 0:
            opening = self.sessions.begin(request)
            expected.opening = opening
            if 1 < len(opening.ids) <= MOST_AT_ONCE:
                self.changed.update(opening.ids)
        expected.ratio = self._ratio(space, expected)
        self.waiting[request.request_id] = expected

    def _space_of(self, namespace: str) -> Space:
        space = self._spaces.get(namespace)
        if space is None:
            space = Space()
            self._spaces[namespace] = space
        return space

    def withdrawn(self, request_id: str) -> Expected:
        """Forget a request that left without being admitted; return what was expected of it.  O(heads)."""
        expected = self.waiting.pop(request_id)
        self.changed.pop(request_id, None)
        opening = expected.opening
        if opening is not None:
            self.sessions.left(request_id, opening)
            expected.opening = None
            if len(opening.ids) < MOST_AT_ONCE:
                self.changed.update(opening.ids)
        space = self._spaces[expected.namespace]
        space.count(expected.heads, -1)
        if space.waits == 0 and space.whole.answers == 0.0:
            del self._spaces[expected.namespace]
        return expected

    def _preempted(self, request: PendingRequest) -> Expected | None:
        """What was expected of a preempted request when it was admitted; None if it was not admitted."""
        running = self._running.get(request.request_id)
        if running is None:
            return None
        before = running[1]
        same = (before.namespace, before.session) == (short(request.namespace), request.session)
        return before if same else None

    def admitted(self, request: PendingRequest) -> None:
        """Await the end of an admitted request.  After a preemption it is not counted again.  O(heads)."""
        expected = self.withdrawn(request.request_id)
        if self._preempted(request) is None:
            expected.turn = self.sessions.turn_of(request)
            self.sessions.admitted(request)
        self._running[request.request_id] = (request.tenant, expected)
        if len(self._running) > _MOST_RUNNING:
            self._running.popitem(last=False)

    def answered(self, tokens: int, request_id: str) -> None:
        """Learn from the complete answer of a request that was admitted; ignore any other.  O(heads)."""
        length = float(tokens)
        ended = self._running.pop(request_id, None)
        if ended is None:
            return
        tenant, expected = ended
        space = self._space_of(expected.namespace)
        self._learn(space.whole, length, "", space.waits)
        space.whole.turns.add(expected.turn)
        before = space.size
        for head in expected.heads:
            kind = space.found(head)
            if kind is None:
                kind = space.made(head)
            self._learn(kind, length, tenant, space.waiting.get(head, 0))
            kind.turns.add(expected.turn)
        self._spaces.move_to_end(expected.namespace)
        self.kinds += space.size - before
        self._make_room()

    def _learn(self, kind: Kind, tokens: float, tenant: str, waiting: i64) -> None:
        kind.learn(tokens, tenant)
        if waiting > 0 and abs(kind.mean - kind.told) > _NEWS * kind.told:
            kind.told = kind.mean
            self.news = True

    def _make_room(self) -> None:
        """Forget what exceeds the bounds.  O(1) amortised, and O(namespaces) once in a thousand new kinds."""
        if self.kinds > _MOST_IN_ALL:
            self._forget_kinds(_MOST_IN_ALL - _MOST_IN_ALL // 16)  # a few more, so that this stays rare
        while len(self._spaces) - len(self.waiting) > _MOST_SPACES:
            namespace = next(iter(self._spaces))
            space = self._spaces[namespace]
            if space.waits > 0:
                self._spaces.move_to_end(namespace)
                continue
            self.kinds -= space.size
            del self._spaces[namespace]

    def _forget_kinds(self, most: i64) -> None:
        """Let the largest namespaces forget kinds until at most `most` are left in all.  O(namespaces)."""
        sizes = [(-space.size, place, space) for place, space in enumerate(self._spaces.values())]
        heapq.heapify(sizes)
        while self.kinds > most:
            size, place, space = sizes[0]
            space.forget()
            self.kinds += size + space.size
            heapq.heapreplace(sizes, (-space.size, place, space))

    # -- what to expect ----------------------------------------------------------------------------

    def renew(self, request_id: str) -> bool:
        """Update what is expected of a waiting request; return whether it changed by enough.  O(heads)."""
        expected = self.waiting.get(request_id, NOTHING)
        space = self._spaces.get(expected.namespace)
        if space is None or expected is NOTHING:
            return False
        ratio = self._ratio(space, expected)
        if abs(ratio - expected.ratio) <= _NEWS * expected.ratio:
            return False
        expected.ratio = ratio
        return True

    def _ratio(self, space: Space, expected: Expected) -> float:
        """Work out `Expected.ratio`.  O(heads)."""
        whole = space.whole
        at_once = 1.0 if expected.opening is None else expected.opening.size
        if whole.answers == 0.0:
            return at_once
        turn = expected.turn
        length = whole.mean
        later = whole.turns.after(turn, 0.0, 0.0)
        before = space.size
        for head in expected.heads:
            kind = space.found(head)
            if kind is not None:
                length = (kind.answers * kind.mean + kind.prior * length) / (kind.answers + kind.prior)
                later = kind.turns.after(turn, later, kind.prior)
        self.kinds += space.size - before  # using a kind of the older half can drop the rest of that half
        most = self._most_ratio
        ratio = min(max(length / whole.mean, 1.0 / most), most) if whole.mean > 0.0 else 1.0
        return ratio * min(1.0 + later, MOST_TURNS) * at_once
