"""`FleetPlanner` in front of a simulated fleet."""

from __future__ import annotations

from dataclasses import replace

from peek.fleet import FleetConfig, FleetPlanner
from peek.request import PendingRequest
from peek.simulation.routers import Arrival, Router, Site


class PeekRouter(Router):
    """`FleetPlanner`, which holds requests until a replica has room, or chooses one at once (`early`).

    An answer is expected to be as long as those so far were on average.

    Args:
        early: choose when a request arrives.
        exact: show it the caches; otherwise it guesses from what it sent.
        config: of the fleet; `unit_tokens` and `news_s` are filled in.
    """

    def __init__(self, early: bool = False, exact: bool = False, config: FleetConfig | None = None) -> None:
        super().__init__()
        self.fleet = FleetPlanner(config)
        self._early = early
        self._exact = exact
        self._placed: list[tuple[str, int]] = []
        self._answers = 0
        self._answered_tokens = 0

    def joined(self, site: Site) -> None:
        super().joined(site)
        if not self.requests and not self.fleet.status():
            config = replace(self.fleet.config, unit_tokens=site.unit_tokens, news_s=site.news_s)
            self.fleet = FleetPlanner(config)
        view = site.view if self._exact else None
        self.fleet.join(str(site.name), cache_tokens=site.arena_tokens, view=view, speed=site.speed)

    def lost(self, name: int) -> None:
        del self.sites[name]
        for request_id in self.fleet.lost(str(name), requeue=not self._early):
            if self._early:
                self.arrived(self.requests[request_id])

    def arrived(self, arrival: Arrival) -> None:
        self.requests[arrival.request_id] = arrival
        request = PendingRequest(
            arrival.request_id, arrival.key, arrival.arrival_s, arrival.namespace, arrival.prompt_tokens
        )
        expected = self._answered_tokens // max(1, self._answers)
        if self._early:
            self._placed.append((arrival.request_id, int(self.fleet.place(request, expected))))
        else:
            self.fleet.add(request, expected)

    def ready(self, now: float) -> list[tuple[str, int]]:
        if self._early:
            placed, self._placed = self._placed, []
            return placed
        return [(request_id, int(name)) for request_id, name in self.fleet.dispatch(now)]

    def started(self, request_id: str, name: int) -> None:
        self.fleet.started(request_id, str(name))

    def finished(self, request_id: str, name: int) -> None:
        if self.fleet.finished(request_id, str(name)):
            self._answers += 1
            self._answered_tokens += self.requests.pop(request_id).output_tokens
