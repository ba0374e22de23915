"""The router of each Ray Serve handle: finds a request's prompt and chooses its replica."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from peek.adapters import fleet_metrics
from peek.adapters.engine_adapter import Statements
from peek.adapters.fleet_metrics import ACTIVE, FALLBACKS, IMBALANCE, REPLICA, WAITING
from peek.adapters.metrics import Metric
from peek.adapters.prompts import Prompt, beginning_of
from peek.adapters.ray_serve.decider import Asked, Decider, Sent
from peek.adapters.ray_serve.exchange import ExchangeClient, in_no_context
from peek.adapters.ray_serve.settings import bypasses_the_router, checked, find_exchange, why_stand_aside
from peek.fleet.prompt_keys import text_key

logger = logging.getLogger("ray.serve.peek")

DOUBT_S: Final = 0.01  # seconds within which Ray retries a refused request after it has reported its end

if TYPE_CHECKING:
    _Base = Any
else:
    _Base = object


class FleetRouting(_Base):  # type: ignore[misc]
    """The part of `FleetRouter` that is not from Ray; override `prompt_of` to find prompts elsewhere."""

    def initialize_state(self, **options: Any) -> None:
        """Set the router up; Ray passes `request_router_kwargs`.  `InvalidConfig` as in `fleet_options`."""
        self._options = checked(options)
        self._decider: Decider | None = None
        self._exchange: ExchangeClient | None = None
        self._exporting: Any = None
        self._ids: dict[str, Any] = {}  # Ray's ids of the replicas, by the planner's names for them
        self._chosen: Sent | None = None  # the last request with a replica, until Ray sends it there
        self._blind = False
        self._statements = Statements()
        self._aside = why_stand_aside()
        if self._aside:
            logger.error("peek stands aside, Ray Serve's own router decides: %s", self._aside)
        elif bypasses_the_router():
            logger.warning(
                "direct streaming is on (RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING): its requests pass by peek, "
                "Ray Serve's own rule decides where they go"
            )

    def prompt_of(self, pending_request: Any) -> Prompt | None:
        """Return the prompt of Ray's request; None if it shows none."""
        metadata = pending_request.metadata
        return beginning_of(pending_request.args, pending_request.kwargs, metadata.multiplexed_model_id)

    # -- the way of a request --------------------------------------------------------------------------

    async def _choose_replica_for_request(self, pending_request: Any, *, is_retry: bool = False) -> Any:
        decider = self._decider
        if decider is None:
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        refused = getattr(pending_request, "peek_sent", None) if is_retry else None
        if refused is not None:  # by the chosen replica, which may have died
            rest_s = decider.rest(refused.replica)
            asyncio.get_running_loop().call_later(rest_s + 0.001, decider.tick)
            decider.refused(pending_request.metadata.internal_request_id, refused)
        asked = self._asked(pending_request)
        sent = await self._decision(decider, asked, max(0.0, time.time() - pending_request.created_at))
        replica = None if sent is None else self._replicas.get(self._ids.get(sent.replica))
        if replica is not None:
            self._record_queue_wait_time(pending_request)
        else:
            if sent is not None:
                decider.end(sent, False)
            replica = await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
            sent = decider.note(asked, replica.replica_id.unique_id)
        self._chosen = pending_request.peek_sent = sent
        if sent is not None:
            decider.tried(pending_request.metadata.internal_request_id, sent)
        return replica

    async def _decision(self, decider: Decider, asked: Asked, age_s: float) -> Sent | None:
        """Wait until a request may go; return where it goes, None for Ray's own rule."""
        decision: asyncio.Future[Sent | None] = asyncio.get_running_loop().create_future()
        serial = decider.ask(
            asked, lambda sent: None if decision.done() else decision.set_result(sent), age_s
        )
        try:
            return await decision
        except asyncio.CancelledError:
            decider.give_up(serial)
            raise

    def _asked(self, pending_request: Any) -> Asked:
        prompt = None
        try:
            prompt = self.prompt_of(pending_request)
        except Exception:
            if not self._blind:
                logger.exception("a request's prompt could not be read")
        if prompt is None:
            shown = (*pending_request.args, *pending_request.kwargs.values())
            if not self._blind and shown:
                self._blind = True
                logger.warning(
                    "a request shows peek no prompt (%s): it counts as one that shares nothing.  "
                    "fleet_options is for the model's deployment, behind the one that reads HTTP requests",
                    ", ".join([type(each).__name__ for each in shown]),
                )
            prompt = Prompt(text_key(pending_request.metadata.internal_request_id), 0)
        decode_tokens = self._options["decode_tokens"]
        if prompt.most_tokens:
            decode_tokens = min(decode_tokens, prompt.most_tokens)
        session = self._statements.of(prompt.parameters, (pending_request.metadata.session_id,)).session
        return Asked(*prompt.key, decode_tokens, session)

    def on_send_request(self, replica_id: Any) -> None:
        """Note that the chosen request is sent; Ray calls this right away, but not for `choose_replica`."""
        super().on_send_request(replica_id)
        if self._chosen is not None:
            self._chosen.gone = True
            self._chosen = None

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Note that a replica has not refused a request; Ray may have reported its end before."""
        super().on_request_routed(pending_request, replica_id, result)
        sent = getattr(pending_request, "peek_sent", None)
        if sent is not None:
            sent.taken = True

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """Note that a request has left a replica; Ray calls this however the request ended."""
        super().on_request_completed(replica_id, internal_request_id)
        decider = self._decider
        sent = None if decider is None else decider.left(internal_request_id, replica_id.unique_id)
        if decider is None or sent is None:
            return
        if sent.gone and not sent.taken:  # it may have been refused, and Ray be about to try again
            asyncio.get_running_loop().call_later(DOUBT_S, decider.end, sent, True)
        else:
            decider.end(sent, True)

    # -- replicas --------------------------------------------------------------------------------------

    def update_replicas(self, replicas: list[Any]) -> None:
        """Set the replicas; Ray calls this in the router's event loop at start and at each change."""
        super().update_replicas(replicas)
        if self._exporting is None:
            self._exporting = in_no_context(self._export())
        if self._aside:
            return
        if self._decider is None or self._exchange is None:
            deployment_id = self._deployment_id
            self._decider = Decider(self._options, later=asyncio.get_running_loop().call_soon)
            self._exchange = ExchangeClient(self._decider, lambda: find_exchange(deployment_id))
        self._ids = {each.replica_id.unique_id: each.replica_id for each in replicas}
        self._decider.set_replicas(self._ids)
        self._exchange.want(bool(replicas))

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """Drop a replica; Ray calls this when a call has found it dead."""
        super().on_replica_actor_died(replica_id)
        if self._decider is not None:
            self._decider.lose(replica_id.unique_id)

    # -- metrics ---------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the loads and counters of this router, and how many routers it knows of."""
        decider, exchange = self._decider, self._exchange
        if decider is None or exchange is None:
            return {"active": False, "replicas": {}}
        return {**decider.status(), "routers": exchange.routers, "exchange_failures": exchange.failures}

    async def _export(self) -> None:
        """Export the status once a second as metrics of Ray, which prefixes their names with `ray_`."""
        name = self._deployment_id.name
        try:
            metrics = RouterMetrics(self._deployment_id.app_name, name)
            while True:
                if self._decider is not None:
                    self._decider.tick()
                metrics.tell(self.status())
                await asyncio.sleep(1.0)
        except Exception:
            logger.exception("the metrics of a router of peek's cannot be exported")


GAUGES: Final = {
    "active": ACTIVE,
    "waiting": WAITING,
    "imbalance": IMBALANCE,
    "routers": Metric(
        "peek_fleet_routers", "gauge", "Routers of the deployment that one hears of, itself included"
    ),
}
"""By the name of the field of `FleetRouting.status`."""

COUNTERS: Final = {
    **fleet_metrics.COUNTERS,
    "fallbacks": FALLBACKS,
    "by_rays_rule": Metric(
        "peek_fleet_fallback_requests", "counter", "Times a request of a router went by Ray's own rule"
    ),
    "exchange_failures": Metric(
        "peek_fleet_exchange_failures", "counter", "Times a router could not reach the others"
    ),
}
"""Likewise."""


class RouterMetrics:
    """Exports a router's status as metrics of Ray."""

    def __init__(self, application: str, deployment: str) -> None:
        from uuid import uuid4

        from ray.util.metrics import Counter, Gauge

        self._labels = {"application": application, "deployment": deployment, "router": uuid4().hex[:8]}
        names = tuple(self._labels)
        self._gauges = {field: Gauge(each.name, each.text, names) for field, each in GAUGES.items()}
        self._counters = {field: Counter(each.name, each.text, names) for field, each in COUNTERS.items()}
        self._of_replicas = {
            field: Gauge(each.name, each.text, (*names, "replica")) for field, each in REPLICA.items()
        }
        self._told: dict[str, float] = {}
        self._replicas: set[str] = set()

    def tell(self, status: dict[str, Any]) -> None:
        """Export a status; counters grow by the difference to the last one."""
        for field, gauge in self._gauges.items():
            gauge.set(float(status.get(field, 0)), self._labels)
        for name in self._replicas | set(status["replicas"]):  # a replica that is gone has no load
            load = status["replicas"].get(name, {})
            for field, gauge in self._of_replicas.items():
                gauge.set(float(load.get(field, 0)), {**self._labels, "replica": name})
        self._replicas = set(status["replicas"])
        for field, counter in self._counters.items():
            grown = status.get(field, 0) - self._told.get(field, 0)
            self._told[field] = status.get(field, 0)
            if grown > 0:
                counter.inc(grown, self._labels)
