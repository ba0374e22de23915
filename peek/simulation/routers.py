"""The routers that people put in front of their engines, and peek's own, as a simulated fleet drives them.

Most choose a replica when a request arrives (`EarlyRouter`).  `CentralFifo` and `PeekRouter` hold requests
until a replica has room.  A router knows of the replicas what it is told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from peek.fleet import FleetConfig, FleetPlanner, RoutedHistory
from peek.request import PendingRequest
from peek.simulation.workload import SYMBOL_BYTES

if TYPE_CHECKING:
    from peek.protocols import CacheView


HASHED_TOKENS: Final = 1024
"""Tokens of a prompt that a static hash reads."""

WINDOW_TOKENS: Final = 8192
"""Uncached tokens that a router which holds requests lets queue at an engine: one step's."""


EVERY: Final = 2**40
"""A window that holds whatever comes: early binding."""

IMBALANCE: Final = 10
MATCH_RATE: Final = 0.1
"""Ray Serve's defaults of its prefix affinity: requests by which queues may differ, part of a prompt."""


class Arrival(NamedTuple):
    """A request as a router sees it; `key` in the symbols of the replicas' caches."""

    request_id: str
    key: bytes
    prompt_tokens: int
    output_tokens: int
    arrival_s: float
    namespace: str
    session: str = ""


@dataclass
class Site:
    """A replica as a router sees it."""

    name: int
    view: CacheView
    arena_tokens: int
    unit_tokens: int
    speed: float = 1.0
    seats: int = 0
    """Requests that it computes at once, 0 where nobody says."""
    news_s: float = 0.0
    """Seconds until the router hears of what happens there."""
    queued: dict[str, int] = field(default_factory=dict)
    """Uncached tokens of the requests sent there that have no first token, by id."""
    running: dict[str, None] = field(default_factory=dict)
    """Requests that have one."""

    @property
    def queued_tokens(self) -> int:
        """Uncached tokens that it has to compute."""
        return sum(self.queued.values())

    @property
    def outstanding(self) -> list[str]:
        """Requests sent there that have not ended."""
        return [*self.queued, *self.running]

    def uncached(self, arrival: Arrival) -> int:
        """Prompt tokens that its cache lacks, as far as is known."""
        segment = memoryview(arrival.key).cast("i")
        held = self.view.advance(self.view.root(arrival.namespace), segment, 0)[0]
        return max(1, arrival.prompt_tokens - held * self.unit_tokens)


class Router(ABC):
    """Told what happens to requests and replicas; says which requests to send where."""

    def __init__(self) -> None:
        self.sites: dict[int, Site] = {}
        self.requests: dict[str, Arrival] = {}
        """All that have not ended."""

    def joined(self, site: Site) -> None:
        """One more replica."""
        self.sites[site.name] = site

    def lost(self, name: int) -> None:
        """A replica is gone; what it had is routed again."""
        for request_id in self.sites.pop(name).outstanding:
            self.arrived(self.requests[request_id])

    @abstractmethod
    def arrived(self, arrival: Arrival) -> None:
        """A request is there, for the first time or because its replica was lost."""

    @abstractmethod
    def ready(self, now: float) -> list[tuple[str, int]]:
        """Requests to send now, each with its replica."""

    def send(self, arrival: Arrival, site: Site) -> tuple[str, int]:
        """Count a request with a replica that it is sent to; the pair that `ready` returns."""
        site.queued[arrival.request_id] = site.uncached(arrival)
        return arrival.request_id, site.name

    def started(self, request_id: str, name: int) -> None:
        """News: the first token of a request was there."""
        site = self.sites.get(name)
        if site is not None and site.queued.pop(request_id, None) is not None:
            site.running[request_id] = None

    def finished(self, request_id: str, name: int) -> None:
        """News: a request was answered."""
        self.started(request_id, name)
        site = self.sites.get(name)
        if site is not None:
            del site.running[request_id]
            del self.requests[request_id]


class EarlyRouter(Router):
    """Chooses a replica when a request arrives.  What arrives while there is none waits for one.

    Args:
        choose: the replica for a request; of equal ones the first of the list, which differs each time.
    """

    def __init__(self, choose: Callable[[Arrival, list[Site]], Site]) -> None:
        super().__init__()
        self.choose = choose
        self._arrived: list[Arrival] = []
        self._turn = -1

    def arrived(self, arrival: Arrival) -> None:
        self.requests[arrival.request_id] = arrival
        self._arrived.append(arrival)

    def ready(self, now: float) -> list[tuple[str, int]]:
        sent = []
        while self._arrived and self.sites:
            arrival = self._arrived.pop(0)
            sites = list(self.sites.values())
            self._turn += 1
            start = self._turn % len(sites)  # the next one first each time: so each wins ties in its turn
            sent.append(self.send(arrival, self.choose(arrival, sites[start:] + sites[:start])))
        return sent


def round_robin(_: Arrival, sites: list[Site]) -> Site:
    """One after the other."""
    return sites[0]


def least_outstanding(_: Arrival, sites: list[Site]) -> Site:
    """Fewest requests under way."""
    return min(sites, key=lambda site: len(site.outstanding))


def prefix_hash(arrival: Arrival, sites: list[Site]) -> Site:
    """By the prompt's beginning alone; rendezvous hashing, so that few move when the fleet changes."""
    head = arrival.key[: SYMBOL_BYTES * max(1, HASHED_TOKENS // sites[0].unit_tokens)]
    seed = crc32(arrival.namespace.encode(), crc32(head))
    return max(sites, key=lambda site: crc32(b"%d" % site.name, seed))


def token_balance(arrival: Arrival, sites: list[Site]) -> Site:
    """Fewest uncached tokens to compute, this prompt's included."""
    return min(sites, key=lambda site: site.queued_tokens + site.uncached(arrival))


def lmetric(arrival: Arrival, sites: list[Site]) -> Site:
    """Uncached tokens to compute, times requests under way."""
    return min(
        sites,
        key=lambda site: (site.queued_tokens + site.uncached(arrival)) * (len(site.outstanding) + 1),
    )


def session_hash(arrival: Arrival, sites: list[Site]) -> Site:
    """By the name of the session alone, by the request's where it has none; rendezvous hashing."""
    seed = crc32((arrival.session or arrival.request_id).encode())
    return max(sites, key=lambda site: crc32(b"%d" % site.name, seed))


class SessionLeast(EarlyRouter):
    """A session begins where least is under way, and stays there."""

    def __init__(self) -> None:
        super().__init__(self._by_session)
        self._homes: dict[str, int] = {}

    def _by_session(self, arrival: Arrival, sites: list[Site]) -> Site:
        site = self.sites.get(self._homes.get(arrival.session, -1)) or least_outstanding(arrival, sites)
        if arrival.session:
            self._homes[arrival.session] = site.name
        return site


class WeighedScores(EarlyRouter):
    """llm-d's default scorers, as published: 3 x prefix sent there, 2 x short queue, 2 x free cache.

    Each from 0 to 1; the queue is compared with the longest and the shortest one.
    """

    def __init__(self) -> None:
        super().__init__(self._by_score)
        self._sent: dict[int, RoutedHistory] = {}

    def joined(self, site: Site) -> None:
        super().joined(site)
        self._sent[site.name] = RoutedHistory(max(1, site.arena_tokens // site.unit_tokens), site.unit_tokens)

    def _by_score(self, arrival: Arrival, sites: list[Site]) -> Site:
        segment = memoryview(arrival.key).cast("i")
        queues = [len(site.queued) for site in sites]
        longest, shortest = max(queues), min(queues)

        def score(site: Site) -> float:
            sent = self._sent[site.name]
            prefix = sent.advance(sent.root(arrival.namespace), segment, 0)[0] / len(segment)
            queue = (longest - len(site.queued)) / (longest - shortest) if longest > shortest else 1.0
            used = sum(self.requests[name].prompt_tokens for name in site.running) / site.arena_tokens
            return 3 * prefix + 2 * queue + 2 * (1 - min(1.0, used))

        best = max(sites, key=score)
        self._sent[best.name].note(arrival.request_id, arrival.key, arrival.namespace)
        return best


class RayPrefix(EarlyRouter):
    """Ray Serve's prefix affinity, by its documented rule.

    While the longest queue has at most `IMBALANCE` requests more than the shortest: the replica that was sent
    the longest prefix of this prompt, if that is a `MATCH_RATE` of it or more; else the one that was sent the
    least.  Otherwise the shorter queue of two drawn by chance.  The record of what was sent is not bounded.
    """

    def __init__(self) -> None:
        super().__init__(self._by_rule)
        self._random = Random(0)
        self._sent: dict[int, RoutedHistory] = {}

    def joined(self, site: Site) -> None:
        super().joined(site)
        self._sent[site.name] = RoutedHistory(2**40, site.unit_tokens)

    def _by_rule(self, arrival: Arrival, sites: list[Site]) -> Site:
        queues = [len(site.outstanding) for site in sites]
        if max(queues) - min(queues) > IMBALANCE:
            drawn = self._random.sample(sites, min(2, len(sites)))
            site = min(drawn, key=lambda each: len(each.outstanding))
        else:
            site = self._by_prefix(arrival, sites)
        self._sent[site.name].note(arrival.request_id, arrival.key, arrival.namespace)
        return site

    def _by_prefix(self, arrival: Arrival, sites: list[Site]) -> Site:
        segment = memoryview(arrival.key).cast("i")
        matched = {}
        for site in sites:
            sent = self._sent[site.name]
            matched[site.name] = sent.advance(sent.root(arrival.namespace), segment, 0)[0]
        best = max(matched.values())
        if best >= MATCH_RATE * len(segment):
            candidates = [site for site in sites if matched[site.name] == best]
        else:
            least = min(self._sent[site.name].symbols for site in sites)
            candidates = [site for site in sites if self._sent[site.name].symbols == least]
        return min(candidates, key=lambda site: len(site.outstanding))


class CentralFifo(Router):
    """One queue in order of arrival; its head goes where there is room and least is under way."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[Arrival] = deque()

    def arrived(self, arrival: Arrival) -> None:
        self.requests[arrival.request_id] = arrival
        self._queue.append(arrival)

    def ready(self, now: float) -> list[tuple[str, int]]:
        sent = []
        while self._queue:
            free = [site for site in self.sites.values() if site.queued_tokens < WINDOW_TOKENS]
            if not free:
                break
            site = min(free, key=lambda each: len(each.outstanding))
            sent.append(self.send(self._queue.popleft(), site))
        return sent


class PeekRouter(Router):
    """`FleetPlanner`, which holds requests until a replica has room, or sends each at once (`early`).

    An answer is expected to have the mean length of the answers so far.

    Args:
        early: a window that holds whatever comes.
        exact: show it the caches; otherwise it guesses from what it sent.
        config: of the fleet; seats, late news, symbols and, if `early`, windows are those of the run.
    """

    def __init__(self, early: bool = False, exact: bool = False, config: FleetConfig | None = None) -> None:
        super().__init__()
        self.fleet = FleetPlanner()
        windows = FleetConfig() if config is None else config
        self._windows = replace(windows, window_requests=EVERY, warm_requests=EVERY) if early else windows
        self._exact = exact
        self._answers = 0
        self._answered_tokens = 0

    def joined(self, site: Site) -> None:
        super().joined(site)
        if not self.requests and not self.fleet.status():
            windows = replace(self._windows, seats=site.seats, news_s=site.news_s)
            self.fleet = FleetPlanner(replace(windows, unit_tokens=site.unit_tokens))
        view = site.view if self._exact else None
        self.fleet.join(str(site.name), cache_tokens=site.arena_tokens, view=view, speed=site.speed)

    def lost(self, name: int) -> None:
        del self.sites[name]
        self.fleet.lost(str(name))

    def arrived(self, arrival: Arrival) -> None:
        self.requests[arrival.request_id] = arrival
        request = PendingRequest(
            arrival.request_id, arrival.key, arrival.arrival_s, arrival.namespace, arrival.prompt_tokens,
            session=arrival.session,
        )  # fmt: skip
        self.fleet.add(request, self._answered_tokens // max(1, self._answers))

    def ready(self, now: float) -> list[tuple[str, int]]:
        return [(request_id, int(name)) for request_id, name in self.fleet.dispatch(now)]

    def started(self, request_id: str, name: int) -> None:
        self.fleet.started(request_id, str(name))

    def finished(self, request_id: str, name: int) -> None:
        if self.fleet.finished(request_id, str(name)):
            self._answers += 1
            self._answered_tokens += self.requests.pop(request_id).output_tokens
