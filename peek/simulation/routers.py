"""Simulated routers: the common ones in front of LLM engines, and that of `peek.fleet`.

Most routers bind early: they choose a replica when a request arrives (`EarlyRouter`).  `CentralFifo` and
`PeekRouter` bind late: they hold requests until a replica has room.  A router knows only what it is told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Final, NamedTuple
from zlib import crc32

from peek.fleet import FleetConfig, FleetPlanner, RoutedHistory
from peek.protocols import CacheView
from peek.request import PendingRequest
from peek.trie.keys import SYMBOL_BYTES

HASHED_TOKENS: Final = 1024  # number of leading prompt tokens that `prefix_hash` reads
WINDOW_TOKENS: Final = 8192  # uncached tokens that `CentralFifo` lets queue at a replica: those of a step
EVERY: Final = 2**40  # a window in requests that is never full, which turns late binding into early


class Arrival(NamedTuple):
    """A request as a router sees it; `key` is the prompt in the symbols of the replicas' caches."""

    request_id: str
    key: bytes
    prompt_tokens: int
    output_tokens: int
    arrival_s: float
    namespace: str
    session: str = ""

    def held_by(self, view: CacheView) -> int:
        """Return how many leading symbols of the prompt a cache holds."""
        return view.advance(view.root(self.namespace), memoryview(self.key).cast("i"), 0)[0]


@dataclass
class Site:
    """A replica as a router sees it: its cache, its limits, and the requests that were sent there."""

    name: int
    view: CacheView
    arena_tokens: int
    unit_tokens: int
    speed: float = 1.0
    seats: int = 0  # number of requests that the replica runs at once; 0 if that is not known
    news_s: float = 0.0  # delay of news from the replica to the router
    # uncached tokens of each request sent there that has no first token yet, by id
    queued: dict[str, int] = field(default_factory=dict)
    # ids of those that have a first token and have not ended
    running: dict[str, None] = field(default_factory=dict)

    @property
    def queued_tokens(self) -> int:
        """Number of uncached tokens that the replica still has to compute."""
        return sum(self.queued.values())

    @property
    def outstanding(self) -> list[str]:
        """Ids of the requests sent there that have not ended."""
        return [*self.queued, *self.running]

    def uncached(self, arrival: Arrival) -> int:
        """Return the uncached tokens of a prompt on this replica, at least 1, as far as the view knows."""
        return max(1, arrival.prompt_tokens - arrival.held_by(self.view) * self.unit_tokens)


class Router(ABC):
    """Base of routers: told what happens to requests and replicas, it says which requests to send where."""

    def __init__(self) -> None:
        self.sites: dict[int, Site] = {}
        self.requests: dict[str, Arrival] = {}  # all requests that have arrived and have not ended, by id
        self.queue: deque[Arrival] = deque()  # requests to send, in order of arrival

    def joined(self, site: Site) -> None:
        self.sites[site.name] = site

    def lost(self, name: int) -> None:
        """Remove a replica that died; its requests arrive again."""
        for request_id in self.sites.pop(name).outstanding:
            self.arrived(self.requests[request_id])

    def arrived(self, arrival: Arrival) -> None:
        """Take a request that arrives, for the first time or because its replica was lost."""
        self.requests[arrival.request_id] = arrival
        self.queue.append(arrival)

    @abstractmethod
    def ready(self, now: float) -> list[tuple[str, int]]:
        """Return the requests to send now, as pairs of request id and replica."""

    def send(self, arrival: Arrival, site: Site) -> tuple[str, int]:
        """Count a request as sent to a replica; return its pair for `ready`."""
        site.queued[arrival.request_id] = site.uncached(arrival)
        return arrival.request_id, site.name

    def started(self, request_id: str, name: int) -> None:
        """Hear that a request on replica `name` had its first token."""
        site = self.sites.get(name)
        if site is not None and site.queued.pop(request_id, None) is not None:
            site.running[request_id] = None

    def finished(self, request_id: str, name: int) -> None:
        """Hear that a request on replica `name` was answered."""
        self.started(request_id, name)
        site = self.sites.get(name)
        if site is not None:
            del site.running[request_id]
            del self.requests[request_id]


def round_robin(_: Arrival, sites: list[Site]) -> Site:
    return sites[0]


class EarlyRouter(Router):
    """Chooses a replica by `rule` when a request arrives, from a list rotated by one each time."""

    def __init__(self, rule: Callable[[Arrival, list[Site]], Site] = round_robin) -> None:
        super().__init__()
        self._rule = rule
        self._turn = -1

    def choose(self, arrival: Arrival, sites: list[Site]) -> Site:
        """Return the replica for a request; a subclass may choose by what it remembers."""
        return self._rule(arrival, sites)

    def ready(self, now: float) -> list[tuple[str, int]]:
        sent = []
        while self.queue and self.sites:
            arrival = self.queue.popleft()
            sites = list(self.sites.values())
            self._turn += 1
            start = self._turn % len(sites)
            sent.append(self.send(arrival, self.choose(arrival, sites[start:] + sites[:start])))
        return sent


def least_outstanding(_: Arrival, sites: list[Site]) -> Site:
    return min(sites, key=lambda site: len(site.outstanding))


def prefix_hash(arrival: Arrival, sites: list[Site]) -> Site:
    """Choose by a rendezvous hash of the prompt's beginning, so that few prompts move with the fleet."""
    head = arrival.key[: SYMBOL_BYTES * max(1, HASHED_TOKENS // sites[0].unit_tokens)]
    seed = crc32(arrival.namespace.encode(), crc32(head))
    return max(sites, key=lambda site: crc32(b"%d" % site.name, seed))


def token_balance(arrival: Arrival, sites: list[Site]) -> Site:
    """Choose the replica with the fewest uncached tokens to compute, this prompt's included."""
    return min(sites, key=lambda site: site.queued_tokens + site.uncached(arrival))


def lmetric(arrival: Arrival, sites: list[Site]) -> Site:
    """Choose the least product of uncached tokens to compute and outstanding requests, this one included."""
    return min(
        sites,
        key=lambda site: (site.queued_tokens + site.uncached(arrival)) * (len(site.outstanding) + 1),
    )


def session_hash(arrival: Arrival, sites: list[Site]) -> Site:
    """Choose by a rendezvous hash of the session's name, or of the request's id if it has no session."""
    seed = crc32((arrival.session or arrival.request_id).encode())
    return max(sites, key=lambda site: crc32(b"%d" % site.name, seed))


class SessionLeast(EarlyRouter):
    """Sends a new session to the replica with the fewest outstanding requests, later turns to the same."""

    def __init__(self) -> None:
        super().__init__()
        self._homes: dict[str, int] = {}

    def choose(self, arrival: Arrival, sites: list[Site]) -> Site:
        site = self.sites.get(self._homes.get(arrival.session, -1)) or least_outstanding(arrival, sites)
        if arrival.session:
            self._homes[arrival.session] = site.name
        return site


class WeighedScores(EarlyRouter):
    """llm-d's scorers, as published, each 0 to 1: 3 x prefix sent there, 2 x short queue, 2 x free cache."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[int, RoutedHistory] = {}

    def joined(self, site: Site) -> None:
        super().joined(site)
        self._sent[site.name] = RoutedHistory(max(1, site.arena_tokens // site.unit_tokens), site.unit_tokens)

    def choose(self, arrival: Arrival, sites: list[Site]) -> Site:
        queues = [len(site.queued) for site in sites]
        longest, shortest = max(queues), min(queues)

        def score(site: Site) -> float:
            prefix = arrival.held_by(self._sent[site.name]) / (len(arrival.key) // SYMBOL_BYTES)
            queue = (longest - len(site.queued)) / (longest - shortest) if longest > shortest else 1.0
            used = sum(self.requests[name].prompt_tokens for name in site.running) / site.arena_tokens
            return 3 * prefix + 2 * queue + 2 * (1 - min(1.0, used))

        best = max(sites, key=score)
        self._sent[best.name].note(arrival.request_id, arrival.key, arrival.namespace)
        return best


class PrefixAffinity(EarlyRouter):
    """Sends a request where the longest prefix of it was sent, while the replicas are evenly loaded.

    The documented rules of Ray Serve and of SGLang's router.  The load is uneven if the largest number of
    outstanding requests exceeds the smallest by more than `apart` and is over `ratio` times as large.  Then
    the least loaded of `drawn` replicas (0: all) is taken.  A prefix counts from the part `match` of a prompt
    on; without one, the replica that was sent the fewest symbols is taken.  The record is not bounded.
    """

    def __init__(self, apart: int, ratio: float, match: float, drawn: int) -> None:
        super().__init__()
        self._apart = apart
        self._ratio = ratio
        self._match = match
        self._drawn = drawn
        self._random = Random(0)
        self._sent: dict[int, RoutedHistory] = {}

    def joined(self, site: Site) -> None:
        super().joined(site)
        self._sent[site.name] = RoutedHistory(2**40, site.unit_tokens)

    def choose(self, arrival: Arrival, sites: list[Site]) -> Site:
        loads = [len(site.outstanding) for site in sites]
        most, fewest = max(loads), min(loads)
        if most - fewest > self._apart and most > self._ratio * fewest:
            asked = self._random.sample(sites, min(self._drawn, len(sites))) if self._drawn else sites
        else:
            matched = {site.name: arrival.held_by(self._sent[site.name]) for site in sites}
            if max(matched.values()) < self._match * (len(arrival.key) // SYMBOL_BYTES):
                matched = {site.name: -self._sent[site.name].symbols for site in sites}
            best = max(matched.values())
            asked = [site for site in sites if matched[site.name] == best]
        site = least_outstanding(arrival, asked)
        self._sent[site.name].note(arrival.request_id, arrival.key, arrival.namespace)
        return site


class CentralFifo(Router):
    """Holds one queue: its head goes to the least loaded replica that has room in its window."""

    def ready(self, now: float) -> list[tuple[str, int]]:
        sent = []
        while self.queue:
            free = [site for site in self.sites.values() if site.queued_tokens < WINDOW_TOKENS]
            if not free:
                break
            arrival = self.queue.popleft()
            sent.append(self.send(arrival, least_outstanding(arrival, free)))
        return sent


class PeekRouter(Router):
    """Routes by `FleetPlanner`, which binds late, or early with `early`.

    An answer is expected to have the mean length of the answers so far.  With `early` windows have no bound.
    The run sets `seats`, `news_s` and `unit_tokens` of `config`.
    """

    def __init__(self, early: bool = False, config: FleetConfig | None = None) -> None:
        super().__init__()
        self.fleet = FleetPlanner()
        windows = config or FleetConfig()
        self._windows = replace(windows, window_requests=EVERY, warm_requests=EVERY) if early else windows
        self._answers = 0
        self._answered_tokens = 0

    def joined(self, site: Site) -> None:
        super().joined(site)
        if not self.requests and not self.fleet.status():
            windows = replace(self._windows, seats=site.seats, news_s=site.news_s)
            self.fleet = FleetPlanner(replace(windows, unit_tokens=site.unit_tokens))
        self.fleet.join(str(site.name), cache_tokens=site.arena_tokens, speed=site.speed)

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


ROUTERS: Final[dict[str, Callable[[], Router]]] = {
    "round-robin": partial(EarlyRouter, round_robin),
    "least-outstanding": partial(EarlyRouter, least_outstanding),
    "prefix-hash": partial(EarlyRouter, prefix_hash),
    "token-balance": partial(EarlyRouter, token_balance),
    "lmetric": partial(EarlyRouter, lmetric),
    "ray-prefix": partial(PrefixAffinity, 10, 1.0, 0.1, 2),
    "cache-aware": partial(PrefixAffinity, 64, 1.5, 0.3, 0),
    "session-hash": partial(EarlyRouter, session_hash),
    "session-least": SessionLeast,
    "llm-d": WeighedScores,
    "central-fifo": CentralFifo,
    "peek": PeekRouter,
    "peek-early": partial(PeekRouter, early=True),
}
"""Makers of routers by name; `--router` takes these names."""
