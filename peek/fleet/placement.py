"""Where a request waits: the replica at which it costs all requests the least time.

In a small fleet all replicas are asked.  In a large one each arrival would have to look into every cache, so
`Placement` asks a few: the replicas that were sent the longest beginnings of the prompt (`Beginnings`), the
home of its session, and the replicas with the least to do (`Loads`).  As far as the fleet knows, any other
replica lacks most of the prompt, and has more to do than some of these, which lack it, too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from typing import Final, final

from mypy_extensions import i64

from peek.fleet.replicas import Replica, Ticket
from peek.fleet.stats import FleetStats
from peek.request import PendingRequest
from peek.trie.continuations import session_of
from peek.trie.keys import SYMBOL_BYTES

# Factor on a token's weight if a session would leave its home: it takes room in a second cache, too, and the
# sessions of the replica it goes to lose theirs.  Of 1, 2, 3 and 4 the best on agents, seeds 7 to 12.
MOVING: Final = 3.0
USUAL: Final = 64.0  # requests in the mean that is a replica's usual backlog: those of some seconds
RECENT_SESSIONS: Final = 1024.0  # number of sessions over which the turns of a session are counted
MOST_TURNS: Final = 16  # later turns of a session that count: a session without end would raise the mean
STEP_TOKENS: Final = 150.0  # prompt tokens that a replica computes in the time of one token of an answer
MOST_SESSIONS: Final = 100_000  # sessions whose homes are remembered; those silent for longest are forgotten
_NEW: Final = ("", 0)  # what is known of a session that begins
ASKED: Final = 12  # most replicas of a large fleet that are asked, the home of the session included
LEAST_LOADED: Final = 6  # how many of these have the least to do; the others were sent similar prompts
LOOKED_UP: Final = 6  # longest beginnings of a prompt by which those are found: down to about an eighth of it
MOST_BEGINNINGS: Final = 1 << 18  # beginnings that are remembered, up to twice as many, some 200 bytes each
MOST_HOLDERS: Final = 64  # replicas that are remembered for one beginning: those that were sent it last


@final
class Beginnings:
    """Which replicas were sent prompts with the same beginning: a guess at which replicas to ask.

    The beginnings of 1, 2, 3, 5, 8, 12, ... symbols are noted as numbers.  The longest of these that two
    prompts have in common is at least 2/3 of what they share.
    """

    def __init__(self) -> None:
        self.most: i64 = MOST_BEGINNINGS
        self._newer: dict[int, list[str]] = {}
        """By beginning: names of the replicas that were sent it, the latest at the end."""
        self._older: dict[int, list[str]] = {}
        # The last answer of `numbers`, as each prompt is looked up when it comes and noted when it goes.
        self._asked: tuple[bytes, str] = (b"", "")
        self._found: list[int] = []

    def numbers(self, key: bytes, namespace: str) -> list[int]:
        """Return numbers for the beginnings of a packed prompt, longest first.  O(len(key))."""
        asked, within = self._asked
        if asked is key and within == namespace:
            return self._found
        number = hash(namespace)
        found: list[int] = []
        start: i64 = 0
        length: i64 = 1
        most: i64 = len(key) // SYMBOL_BYTES
        while length <= most:
            stop: i64 = length * SYMBOL_BYTES
            number = hash((number, key[start:stop]))
            found.append(number)
            start = stop
            length += (length + 1) // 2
        found.reverse()
        self._asked = (key, namespace)
        self._found = found
        return found

    def note(self, numbers: list[int], name: str) -> None:
        """Note that a replica was sent a prompt with these beginnings.  O(numbers)."""
        for number in numbers:
            names = self._newer.get(number)
            if names is None:
                names = self._older.pop(number, [])
                self._newer[number] = names
            if not names or names[-1] != name:
                if name in names:
                    names.remove(name)
                elif len(names) == MOST_HOLDERS:
                    del names[0]
                names.append(name)
        if len(self._newer) > self.most:
            self._older = self._newer
            self._newer = {}

    def holders(self, number: int) -> list[str]:
        """Return names of replicas, some perhaps gone, that were sent a prompt with this beginning.  O(1)."""
        names = self._newer.get(number)
        return self._older.get(number, []) if names is None else names

    def clear(self) -> None:
        """Forget everything: all caches are empty."""
        self._newer.clear()
        self._older.clear()


@final
class Loads:
    """The replicas sorted by backlog; only changed ones are sorted again."""

    def __init__(self) -> None:
        self.news: dict[Replica, None] = {}  # replicas that may now be sent, or take over, more than before
        self._changed: dict[Replica, None] = {}
        # Replicas that accept requests, least backlog first; among equals the one that was placed first.
        self._order: list[tuple[float, i64, Replica]] = []
        self._place: dict[Replica, tuple[float, i64, Replica]] = {}
        self._idle: dict[Replica, None] = {}  # replicas that accept requests and for which none waits
        self._paused: dict[Replica, None] = {}  # replicas that accept no requests and for which some wait
        self._serial: i64 = 0

    def touch(self, replica: Replica) -> None:
        """Note that a replica's work may have changed, or whether it accepts requests.  O(1)."""
        self.news[replica] = None
        self._changed[replica] = None

    def drop(self, replica: Replica) -> None:
        """Remove a replica that is gone.  O(R) moves of a pointer."""
        self.news.pop(replica, None)
        self._changed.pop(replica, None)
        self._take_out(replica)

    def _take_out(self, replica: Replica) -> None:
        place = self._place.pop(replica, None)
        if place is not None:
            del self._order[bisect_left(self._order, place)]
        self._idle.pop(replica, None)
        self._paused.pop(replica, None)

    def _settle(self) -> None:
        """Put changed replicas into their new places.  O(log R) each, and R moves of a pointer."""
        for replica in self._changed:
            self._take_out(replica)
            if replica.accepting:
                self._serial += 1
                place = (replica.backlog, self._serial, replica)
                insort(self._order, place)
                self._place[replica] = place
                if len(replica.planner) == 0:
                    self._idle[replica] = None
            elif len(replica.planner) > 0:
                self._paused[replica] = None
        self._changed.clear()

    def least(self, count: i64) -> list[Replica]:
        """Return the `count` accepting replicas with the smallest backlogs; equal ones take turns."""
        self._settle()
        return [place[2] for place in self._order[:count]]

    def idle(self) -> list[Replica]:
        """Return the accepting replicas for which no request waits, smallest backlog first."""
        self._settle()
        return sorted(self._idle, key=by_backlog)

    def neediest(self) -> Replica | None:
        """Return the replica to help: a paused one, or the longest backlog; None if nobody waits.  O(R)."""
        self._settle()
        if self._paused:
            return max(self._paused, key=longest_first)
        best: Replica | None = None
        longest = 0.0
        for backlog, _, replica in reversed(self._order):
            if best is not None and backlog < longest:
                break
            if len(replica.planner) > 0 and (best is None or replica.number < best.number):
                best = replica
                longest = backlog
        return best


def by_backlog(replica: Replica) -> tuple[float, int]:
    """Sort key: the smallest backlog first, among equals the first that joined."""
    return replica.backlog, replica.number


def longest_first(replica: Replica) -> tuple[float, int]:
    """Key for `max`: the longest backlog, among equals the first that joined."""
    return replica.backlog, -replica.number


@final
class Placement:
    """Chooses the replica that each request waits for, its home; equal replicas take turns.

    The home is the replica with the least `cost`; if that has no free seat, the cheapest one with a free seat
    and no queue.  The later turns of a session count, too, because they mostly wait at its home.  Otherwise a
    replica between two turns looks idle, and sessions that begin alike all go where their beginning is.
    """

    def __init__(self, replicas: dict[str, Replica], stats: FleetStats, asked_whole: i64) -> None:
        self._replicas = replicas
        self._stats = stats
        self.loads = Loads()
        self.asked_whole: i64 = asked_whole
        self.most_sessions: i64 = MOST_SESSIONS
        self._beginnings = Beginnings()
        # By namespace and session: the replica of the last turn, and the number of turns, as far as they
        # count; the latest at the end.
        self._sessions: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()
        self._unplaced: OrderedDict[str, Ticket] = OrderedDict()  # first to wait first
        self._turn: i64 = 0
        self._begun: float = 0.0  # number of recent sessions
        self._continued: float = 0.0  # number of their later turns, at most `MOST_TURNS` of each session

    def choose(self, ticket: Ticket) -> tuple[Replica | None, i64]:
        """Return the home (None if there is no replica), and the prompt tokens that the request adds there.

        A paused replica is a home only if all are, a leaving one never.  Asks R views, or at most `ASKED`.
        """
        home = self._replicas.get(self._sessions.get(session_of(ticket.request), _NEW)[0])
        moves_from = "" if home is None or home.leaving else home.name
        turns = self._continued / self._begun if ticket.request.session and self._begun > 0.0 else 0.0
        asked = [each for each in self._candidates(ticket, moves_from) if not each.leaving]
        works: list[i64] = [each.added_tokens(ticket.request, ticket.key) for each in asked]
        waste = 0.0 if moves_from else waste_of(ticket, asked, works)
        best: Replica | None = None
        best_cost = 0.0
        spare: Replica | None = None
        spare_cost = 0.0
        spare_work: i64 = 0
        best_work: i64 = 0
        for replica, work in zip(asked, works, strict=True):
            if best is not None and best.accepting and not replica.accepting:
                continue
            replica.usual_backlog += (replica.backlog - replica.usual_backlog) / USUAL
            price = cost(replica, work, moves_from not in ("", replica.name), turns, waste)
            if best is None or price < best_cost or (replica.accepting and not best.accepting):
                best = replica
                best_cost = price
                best_work = work
            free = replica.accepting and replica.queued + len(replica.planner) == 0
            if free and not replica.is_full and (spare is None or price < spare_cost):
                spare = replica
                spare_cost = price
                spare_work = work
        if spare is not None and best is not None and best.is_full:
            best = spare
            best_work = spare_work
        if best is not None and 2 * best_work <= ticket.request.num_tokens:
            self._stats.sticky += 1
        return best, best_work

    def _candidates(self, ticket: Ticket, home: str) -> list[Replica]:
        """Return the replicas to ask: all, beginning with another each time, or a few of a large fleet."""
        if len(self._replicas) > self.asked_whole:
            least = self.loads.least(LEAST_LOADED)
            if least:
                return self._few(ticket, home, least)
        replicas = list(self._replicas.values())
        self._turn += 1
        at: i64 = self._turn % max(1, len(replicas))
        return replicas[at:] + replicas[:at]

    def _few(self, ticket: Ticket, home: str, least: list[Replica]) -> list[Replica]:
        """Return the replicas with the least to do, the session's home, and replicas sent similar prompts."""
        chosen: dict[Replica, None] = dict.fromkeys(least)
        if home:
            chosen[self._replicas[home]] = None
        numbers = self._beginnings.numbers(ticket.key, ticket.request.namespace)
        for number in numbers[:LOOKED_UP]:
            if len(chosen) >= ASKED:
                break
            found: list[Replica] = []
            for name in self._beginnings.holders(number):
                replica = self._replicas.get(name)
                if replica is not None and replica.accepting and replica not in chosen:
                    found.append(replica)
            found.sort(key=by_backlog)
            for replica in found[: ASKED - len(chosen)]:
                chosen[replica] = None
        return list(chosen)

    def went(self, ticket: Ticket, replica: Replica) -> None:
        """Note the home of a request, and so of its session.  O(len(key)) in a large fleet."""
        if self.note(ticket.request, ticket.key, replica):
            self._stats.sessions_moved += 1

    def note(self, request: PendingRequest, key: bytes, replica: Replica) -> bool:
        """Note where any router's request went; return whether its session moved.  Cost of `went`."""
        if 2 * len(self._replicas) > self.asked_whole:  # the fleet may soon be too large to ask all
            numbers = self._beginnings.numbers(key, request.namespace)
            self._beginnings.note(numbers, replica.name)
        moved = False
        if request.session:
            session = session_of(request)
            home, turns = self._sessions.pop(session, _NEW)
            moved = turns > 0 and home != replica.name
            if turns == 0:
                self._begun += 1.0
                if self._begun > RECENT_SESSIONS:
                    self._begun *= 0.5
                    self._continued *= 0.5
            elif turns <= MOST_TURNS:
                self._continued += 1.0
            self._sessions[session] = (replica.name, min(turns, MOST_TURNS) + 1)
            if len(self._sessions) > self.most_sessions:
                self._sessions.popitem(last=False)
        return moved

    def forget_caches(self) -> None:
        """Forget the homes of sessions, and which replica holds what."""
        self._sessions.clear()
        self._beginnings.clear()

    @property
    def unplaced(self) -> int:
        """Number of requests that wait for a home."""
        return len(self._unplaced)

    def wait(self, ticket: Ticket) -> None:
        """Note a request that waits, without a home until `settle`.  O(1)."""
        ticket.replica = None
        self._unplaced[ticket.request.request_id] = ticket

    def settle(self) -> None:
        """Give each request without a home one, if there is a replica.  The cost of `choose` for each."""
        while self._unplaced:
            request_id, ticket = next(iter(self._unplaced.items()))
            replica, work = self.choose(ticket)
            if replica is None:
                return
            if 2 * replica.cold_tokens(ticket.request, ticket.key) <= ticket.request.num_tokens:
                replica.due = True
            del self._unplaced[request_id]
            self.went(ticket, replica)
            replica.hold(ticket, work)
            self.loads.touch(replica)

    def give_up(self, ticket: Ticket) -> None:
        """Remove a request that no longer waits.  O(len(key))."""
        if ticket.replica is None:
            del self._unplaced[ticket.request.request_id]
        else:
            self.loads.touch(ticket.replica)
            ticket.replica.release(ticket)


def waste_of(ticket: Ticket, asked: list[Replica], works: list[i64]) -> float:
    """Return how likely the next two prompts have no use for a second copy.  O(R + shared part).

    It is the square of a share: of the prompts at the replica where this one adds least, those that began
    otherwise.  At 0.0 all begin alike, so each replica will need that beginning.  The square was better than
    the share itself on prompts of uneven popularity, seeds 7 to 10.
    """
    holder: Replica | None = None
    least: i64 = 0
    for i, each in enumerate(asked):
        if holder is None or works[i] < least or (works[i] == least and each.number < holder.number):
            holder = each
            least = works[i]
    if holder is None or holder.view.prompts == 0:
        return 1.0
    askers: i64 = holder.view.askers(ticket.key, ticket.request.namespace)
    others = 1.0 - float(askers) / float(holder.view.prompts)
    return others * others


def cost(replica: Replica, work: i64, moves: bool, turns: float, waste: float) -> float:
    """Return the time that all requests lose if one goes to a replica, in tokens at speed 1.0.  O(1).

        backlog ahead + wait for room + weight x work + turns x usual backlog

    The request itself waits for the first two, the others for the third, its session's later turns for the
    last.  It adds `work` tokens.  `moves`: whether its session has its home elsewhere; `turns`: how many
    later turns the session is expected to have; `waste`: see `waste_of`, 0.0 if the session has a home.
    """
    weight = replica.weight(waste) * (MOVING if moves else 1.0)
    wait = replica.wait(work) + wait_for_room(replica, work)
    return wait + weight * float(work) / replica.speed + turns * replica.usual_backlog


def wait_for_room(replica: Replica, work: i64) -> float:
    """Return the wait for a free seat, and for memory, of a request that adds `work` tokens, as in `cost`.

    In the time of a mean answer all seats, and all memory that requests hold, come free once.  So each wait
    is that time, times the part of the seats or memory that has to come free.  O(1).
    """
    own = len(replica.under_way) > 0
    requests: i64 = len(replica.under_way) if own else replica.other_requests
    if requests == 0:
        return 0.0
    tokens: i64 = replica.decode_tokens if own else replica.other_tokens
    answer = float(tokens) / float(requests)
    part = 0.0
    if replica.is_full:
        waiting: i64 = len(replica.planner) + 1 + replica.other_requests
        waiting += replica.unstarted if replica.tells else len(replica.under_way) - replica.seats
        part = float(waiting) / float(replica.seats)
    if own and replica.memory_tokens > 0:
        held = replica.held_tokens
        part += max(0.0, held + float(work) + answer - float(replica.memory_tokens)) / held
    return STEP_TOKENS * answer * part / replica.speed
