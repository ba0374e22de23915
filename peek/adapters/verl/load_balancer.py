"""A load balancer for verl's rollout servers: `FleetPlanner` behind verl's own `router_class` option.

In the YAML file that `rollout.router_config_path` names:

    router_class: peek.adapters.verl.load_balancer.FleetLoadBalancer
    max_inflight: 256         # requests at a server before others are held back: its max_num_seqs
    cache_tokens: 200000      # KV cache of a server
    metrics_port: 9400        # where the actor serves /metrics; 0: nowhere

verl makes an actor of the class, in which a request waits in `acquire_server`.  verl reports when a request
ends, not when its prompt is computed.  So it counts as queued to its end, and windows are of a batch's size.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec

from peek.adapters.fleet_metrics import FleetMetrics, serve_metrics
from peek.config import PeekConfig
from peek.errors import InvalidConfig, InvalidKey, QueueFull
from peek.fleet import FleetConfig, FleetPlanner
from peek.request import PendingRequest
from peek.settings import require_whole

P = ParamSpec("P")

logger = logging.getLogger(__name__)

NO_SERVERS: Final = "No available servers in load balancer"  # verl's clients look for this, and try again
OPTIONS: Final = {
    "policy": "peek",
    "max_inflight": 256,
    "max_warm_inflight": 1024,
    "cache_tokens": 200_000,
    "stickiness": 4.0,
    "decode_tokens": 0,
    "max_waiting": 100_000,
    "metrics_port": 0,
}
"""Options of the YAML file besides `router_class`, with their defaults."""


class FleetLoadBalancer:
    """verl's `RequestLoadBalancer` (0.9), made from handles by server id and the contents of the YAML file.

    Raises `InvalidConfig` for an unknown option or value, see `OPTIONS`.
    """

    def __init__(
        self,
        servers: Mapping[str, Any],
        options: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        unknown = sorted(set(options) - set(OPTIONS) - {"router_class"})
        if unknown:
            raise InvalidConfig(f"router option {unknown[0]!r} is unknown; valid: {', '.join(OPTIONS)}")
        found = self._options = {**OPTIONS, **options}
        require_whole("max_inflight", found["max_inflight"], 1, 2**40)
        require_whole("max_warm_inflight", found["max_warm_inflight"], found["max_inflight"], 2**40)
        require_whole("cache_tokens", found["cache_tokens"], 0, 2**60)
        require_whole("decode_tokens", found["decode_tokens"], 0, 2**40)
        self._clock = clock
        config = FleetConfig(
            order=PeekConfig.from_label(str(found["policy"])),
            stickiness=found["stickiness"],
            seats=found["max_inflight"],
            window_requests=found["max_inflight"],
            window_tokens=0,
            warm_requests=found["max_warm_inflight"],
            max_waiting=found["max_waiting"],
        )
        self._fleet = FleetPlanner(config)
        self._metrics = FleetMetrics(self._fleet)
        serve_metrics(self._metrics, self._options["metrics_port"])
        self._servers: dict[str, Any] = {}
        # By server and verl's request id: request ids of the planner.
        self._under_way: dict[str, dict[str, list[str]]] = {}
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._serial = 0
        self._stock: Any = None
        self.add_servers(servers)

    # -- requests --------------------------------------------------------------------------------------

    async def acquire_server(
        self, request_id: str, prompt_ids: list[int] | None = None, **_: Any
    ) -> tuple[str, Any]:
        """Return a server and its handle once there is room; `RuntimeError` without a server, `QueueFull`."""
        server = ""
        while server not in self._servers:  # the chosen one may be gone by now
            if not self._servers:
                raise RuntimeError(NO_SERVERS)
            self._serial += 1
            ours = f"{request_id}#{self._serial}"
            server = await self._wait_for_server(request_id, ours, prompt_ids or [self._serial])
        self._under_way[server].setdefault(request_id, []).append(ours)
        return server, self._servers[server]

    async def _wait_for_server(self, request_id: str, ours: str, prompt_ids: list[int]) -> str:
        if self._stock is not None:
            return self._stock_server(request_id)
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[ours] = future
        try:
            self._change(self._add, request_id, ours, prompt_ids)
            return await future
        except asyncio.CancelledError:  # the client left
            self._change(self._cancel, ours)
            if self._stock is not None:
                self._stock.release_server(_answer(future))
            raise
        finally:
            self._waiting.pop(ours, None)

    def _add(self, request_id: str, ours: str, prompt_ids: list[int]) -> None:
        tokens, now = self._options["decode_tokens"], self._clock()
        try:
            self._fleet.add(PendingRequest(ours, prompt_ids, now, session=request_id), tokens)
        except InvalidKey:  # not a prompt: it shares nothing
            self._fleet.add(PendingRequest(ours, [self._serial], now), tokens)

    def _cancel(self, ours: str) -> None:
        if ours in self._fleet:
            self._fleet.cancel(ours)

    def release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Note that a request has ended at a server; unknown ones are ignored."""
        at_server = self._under_way.get(server_id, {})
        name = request_id if request_id is not None else next(iter(at_server), "")
        ours = at_server.get(name)
        if not ours:
            return
        ended = ours.pop(0)
        if not ours:
            del at_server[name]
        if self._stock is not None:
            self._stock.release_server(server_id)
        self._change(self._fleet.finished, ended, server_id)

    def require_acquire_fields(self) -> list[str]:
        """Return the arguments that `acquire_server` needs."""
        return ["prompt_ids"]

    def require_release_fields(self) -> list[str]:
        """Return the arguments that `release_server` needs."""
        return ["request_id"]

    def _change(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the planner and send what may go, unless verl's own balancer decides (after an error)."""
        if self._stock is not None:
            return
        try:
            with self._metrics.deciding():
                function(*args, **kwargs)
                self._send()
        except QueueFull:
            raise
        except Exception:
            self._fall_back()

    def _send(self) -> None:
        for ours, server in self._fleet.dispatch(self._clock()):
            future = self._waiting[ours]
            if future.done():  # its client went away a moment ago
                self._fleet.cancel(ours)
            else:
                future.set_result(server)

    # -- servers ---------------------------------------------------------------------------------------

    def add_servers(self, servers: Mapping[str, Any]) -> None:
        """Add servers; a known one gets its new handle."""
        if self._stock is not None:
            self._stock.add_servers(servers)
        new = [server for server in servers if server not in self._servers]
        self._servers.update(servers)
        for server in new:
            self._under_way[server] = {}
            self._change(self._fleet.join, server, cache_tokens=self._options["cache_tokens"])

    def remove_servers(self, server_ids: list[str]) -> None:
        """Remove servers; requests waiting for them get another one, or `RuntimeError` if none is left."""
        if self._stock is not None:
            self._stock.remove_servers(server_ids)
        gone = [server for server in dict.fromkeys(server_ids) if server in self._servers]
        for server in gone:
            del self._servers[server], self._under_way[server]
        self._change(self._lose, gone)

    def _lose(self, gone: list[str]) -> None:
        for server in gone:
            self._fleet.lost(server, requeue=False)
        if not self._servers:
            for ours, future in self._waiting.items():
                if not future.done():  # otherwise `acquire_server` finds that its server is gone
                    self._fleet.cancel(ours)
                    future.set_exception(RuntimeError(NO_SERVERS))

    def get_all_servers(self) -> list[str]:
        return list(self._servers)

    def get_inflight_count(self, server_id: str) -> int:
        """Return the number of requests at a server, 0 for an unknown one."""
        return sum(map(len, self._under_way.get(server_id, {}).values()))

    def get_total_inflight(self) -> int:
        """Return the number of requests at all servers, without the ones held back here."""
        return sum(self._loads().values())

    def _loads(self) -> dict[str, int]:
        return {server: self.get_inflight_count(server) for server in self._servers}

    def get_status(self) -> dict[str, Any]:
        """Return the load as verl's own balancer does, requests waiting here, and the fleet's counters."""
        return {
            "servers": self._loads(),
            "total_inflight": self.get_total_inflight(),
            "active_servers": len(self._servers),
            "registered_handles": list(self._servers),
            "waiting": len(self._waiting),
            **(self._fleet.stats.as_dict() if self._stock is None else {}),
        }

    def clear_sticky_cache(self) -> dict[str, Any]:
        """Forget the servers' caches, which are or will be empty (new weights); requests may go anywhere."""
        self._change(self._fleet.forget_caches)
        cleared = 0 if self._stock is None else self._stock.clear_sticky_cache()["cleared_entries"]
        return {"cleared_entries": cleared, "server_loads": self._loads()}

    def _fall_back(self) -> None:
        """Let verl's own balancer decide from now on, also for the requests that wait."""
        from verl.workers.rollout.router import GlobalRequestLoadBalancer

        logger.exception("peek's load balancer failed; verl's own decides from now on")
        self._metrics.fell_back()
        self._stock = GlobalRequestLoadBalancer(self._servers)
        # Requests under way, or about to be, count there, too, because their ends will be reported there.
        chosen = [_answer(future) for future in self._waiting.values()]
        loads = {server: at_work + chosen.count(server) for server, at_work in self._loads().items()}
        getattr(self._stock, "_inflight_requests", {}).update(loads)
        for ours, future in self._waiting.items():
            if not future.done():
                try:
                    future.set_result(self._stock_server(ours.rpartition("#")[0]))
                except RuntimeError as error:  # no server is left
                    future.set_exception(error)

    def _stock_server(self, request_id: str) -> str:
        server: str = self._stock.acquire_server(request_id)[0]
        return server


def _answer(future: asyncio.Future[str]) -> str:
    """Return the server of which a client is about to hear; "" if none."""
    told = future.done() and not future.cancelled() and future.exception() is None
    return future.result() if told else ""
