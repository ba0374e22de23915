"""What Ray Serve's router of each deployment handle does with a request: it asks the queue."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from peek.adapters.ray_serve.line import FULL, STOCK, Arrival, QueueLine
from peek.adapters.ray_serve.prompts import Prompt, prompt_of
from peek.adapters.ray_serve.seams import bypasses_the_queue, find_queue, refusal, why_stand_aside
from peek.adapters.ray_serve.settings import ROUTER_OPTIONS, divided
from peek.fleet.prompt_keys import text_key

logger = logging.getLogger("ray.serve.peek")

TRIES: Final = 5
"""So often the queue may name a replica that this router does not have; then Ray's own rule decides."""

REPLICAS_S: Final = 1.0
"""How long the router waits for news of a replica that the queue knows before it does."""


@dataclass
class Sent:
    """A request at a replica, as the queue knows it.

    Attributes:
        serial: its number on the line.
        replica: where it is.
        ended: the queue knows that it is no longer there.
    """

    serial: int
    replica: str
    ended: bool = False


if TYPE_CHECKING:
    _Base = Any
else:
    _Base = object


class FleetRouting(_Base):  # type: ignore[misc]
    """The part of `classes.FleetRouter` that is not Ray's.

    A subclass may say what a prompt is: `prompt_of`.
    """

    def initialize_state(self, **options: Any) -> None:
        """Called by Ray with `request_router_kwargs`, see `ROUTER_OPTIONS`; `InvalidConfig`."""
        self._options = divided({**ROUTER_OPTIONS, **options})[1]
        self._line: QueueLine | None = None
        self._sent: dict[str, list[Sent]] = {}
        """By Ray's internal request id, which several calls of one request have in common."""
        self._once_known: dict[str, Any] = {}
        """Ray's ids of all replicas there have been, by the name that the queue has for them."""
        self._blind = False
        self._aside = why_stand_aside()
        if self._aside:
            logger.error("peek stands aside, Ray Serve's own router decides: %s", self._aside)
        elif bypasses_the_queue():
            logger.warning(
                "direct streaming is on (RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING): its requests pass by peek's "
                "queue, Ray Serve's own rule decides where they go"
            )

    def prompt_of(self, pending_request: Any) -> Prompt | None:
        """The prompt of a request of Ray's, None if there is none to be seen."""
        metadata = pending_request.metadata
        return prompt_of(pending_request.args, pending_request.kwargs, metadata.multiplexed_model_id)

    # -- the way of a request --------------------------------------------------------------------------

    async def _choose_replica_for_request(self, pending_request: Any, *, is_retry: bool = False) -> Any:
        replica = None
        if self._line is not None:
            if is_retry:
                self._was_refused(pending_request)
            replica = await self._ask_queue(pending_request)
        if replica is None:
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        self._record_queue_wait_time(pending_request)
        return replica

    async def _ask_queue(self, pending_request: Any) -> Any:
        """The replica that the queue chooses, None if Ray's own rule is to."""
        assert self._line is not None
        arrival = self._arrival(pending_request)
        for _ in range(TRIES):
            serial, name = await self._line.acquire(arrival)
            if name == STOCK:
                return None
            if name == FULL:
                raise refusal(self._options["max_waiting"], self._options["retry_after_s"])
            replica = self._replicas.get(self._once_known.get(name))
            if replica is not None:
                sent = pending_request.peek_sent = Sent(serial, name)
                self._sent.setdefault(pending_request.metadata.internal_request_id, []).append(sent)
                return replica
            self._line.end(serial, False)
            if name in self._once_known:  # the queue does not know yet that it is gone
                self._line.lost(name)
            else:
                await self._news_of_replicas()
        return None

    def _arrival(self, pending_request: Any) -> Arrival:
        prompt = None
        try:
            prompt = self.prompt_of(pending_request)
        except Exception:
            if not self._blind:
                logger.exception("a request's prompt could not be read")
        if prompt is None:
            if not self._blind and pending_request.args:
                self._blind = True
                logger.warning(
                    "a request shows peek no prompt (%s): it waits in the queue as one that shares nothing.  "
                    "The queue is for the deployment of the model, behind the one that reads HTTP requests",
                    ", ".join([type(each).__name__ for each in pending_request.args]),
                )
            prompt = Prompt(text_key(pending_request.metadata.internal_request_id), 0)
        decode_tokens = self._options["decode_tokens"]
        if prompt.most_tokens:
            decode_tokens = min(decode_tokens, prompt.most_tokens)
        age_s = max(0.0, time.time() - pending_request.created_at)
        key = prompt.key
        return Arrival(0, key.key, key.num_tokens, key.namespace, decode_tokens, age_s)

    async def _news_of_replicas(self) -> None:
        self._replicas_updated_event.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._replicas_updated_event.wait(), REPLICAS_S)

    def _was_refused(self, pending_request: Any) -> None:
        """The replica that the queue chose did not take the request, or died."""
        assert self._line is not None
        sent = getattr(pending_request, "peek_sent", None)
        if sent is not None:
            self._end(sent, False)
            self._line.full(sent.replica)

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """Called by Ray when a request has left a replica, however it ended."""
        super().on_request_completed(replica_id, internal_request_id)
        mine = self._sent.get(internal_request_id, [])
        for sent in mine:
            if sent.replica == replica_id.unique_id:
                mine.remove(sent)
                if not mine:
                    del self._sent[internal_request_id]
                self._end(sent, True)
                return

    def _end(self, sent: Sent, computed: bool) -> None:
        if not sent.ended and self._line is not None:
            sent.ended = True
            self._line.end(sent.serial, computed)

    # -- replicas --------------------------------------------------------------------------------------

    def update_replicas(self, replicas: list[Any]) -> None:
        """Called by Ray when replicas have come or gone; in the router's event loop, from the beginning."""
        super().update_replicas(replicas)
        if self._aside:
            return
        self._once_known.update({replica.replica_id.unique_id: replica.replica_id for replica in replicas})
        if self._line is None:
            deployment_id = self._deployment_id
            self._line = QueueLine(lambda: find_queue(deployment_id))
        self._line.want(bool(replicas))

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """Called by Ray when a call has found a replica dead."""
        super().on_replica_actor_died(replica_id)
        if self._line is not None:
            self._line.lost(replica_id.unique_id)
