"""What Ray Serve's router of each deployment handle does with a request: find the prompt, ask the queue."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from peek.adapters.engine_adapter import Statements
from peek.adapters.ray_serve.queue import RouterMetrics
from peek.adapters.ray_serve.queue_client import FULL, STOCK, Arrival, QueueClient, in_no_context
from peek.adapters.ray_serve.settings import (
    ROUTER_OPTIONS,
    bypasses_the_queue,
    divided,
    find_queue,
    refusal,
    why_stand_aside,
)
from peek.errors import InvalidKey
from peek.fleet.prompt_keys import PromptKey, openai_key, text_key, token_key

logger = logging.getLogger("ray.serve.peek")

TRIES: Final = 5
"""Times that the queue may name a replica which this router lacks, before Ray's own rule decides."""

MOST_KNOWN: Final = 1000
"""Replicas that are gone and still known by name, those that are there among them."""

REPLICAS_S: Final = 1.0
"""How long the router waits for news of a replica that the queue knows before it does."""


@dataclass
class Sent:
    """A request at a replica, as the queue knows it.

    Attributes:
        serial: its number at the queue client.
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
        self._client: QueueClient | None = None
        self._exporting: Any = None
        self._sent: dict[str, list[Sent]] = {}
        """By Ray's internal request id, which several calls of one request have in common."""
        self._once_known: dict[str, Any] = {}
        """Ray's ids of all replicas there have been, by the name that the queue has for them."""
        self._blind = False
        self._statements = Statements()
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
        if self._client is not None:
            if is_retry:
                self._was_refused(pending_request)
            replica = await self._ask_queue(pending_request)
        if replica is None:
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        self._record_queue_wait_time(pending_request)
        return replica

    async def _ask_queue(self, pending_request: Any) -> Any:
        """The replica that the queue chooses, None if Ray's own rule is to."""
        assert self._client is not None
        arrival = self._arrival(pending_request)
        for _ in range(TRIES):
            serial, name = await self._client.acquire(arrival)
            if name == STOCK:
                return None
            if name == FULL:
                raise refusal(self._options["max_waiting"], self._options["retry_after_s"])
            replica = self._replicas.get(self._once_known.get(name))
            if replica is not None:
                sent = pending_request.peek_sent = Sent(serial, name)
                self._sent.setdefault(pending_request.metadata.internal_request_id, []).append(sent)
                return replica
            self._client.end(serial, False)
            if name in self._once_known:  # the queue does not know yet that it is gone
                self._client.lost(name)
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
        session = self._statements.of(prompt.parameters, (pending_request.metadata.session_id,)).session
        return Arrival(0, key.key, key.num_tokens, key.namespace, decode_tokens, age_s, session)

    async def _news_of_replicas(self) -> None:
        self._replicas_updated_event.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._replicas_updated_event.wait(), REPLICAS_S)

    def _was_refused(self, pending_request: Any) -> None:
        """The replica that the queue chose did not take the request, or died."""
        assert self._client is not None
        sent = getattr(pending_request, "peek_sent", None)
        if sent is not None:
            self._end(sent, False)
            self._client.full(sent.replica)

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
        if not sent.ended and self._client is not None:
            sent.ended = True
            self._client.end(sent.serial, computed)

    # -- replicas --------------------------------------------------------------------------------------

    def update_replicas(self, replicas: list[Any]) -> None:
        """Called by Ray when replicas have come or gone; in the router's event loop, from the beginning."""
        super().update_replicas(replicas)
        if self._exporting is None:
            self._exporting = in_no_context(self._export())
        if self._aside:
            return
        for replica in replicas:  # those that are there are the newest
            name = replica.replica_id.unique_id
            self._once_known.pop(name, None)
            self._once_known[name] = replica.replica_id
        while len(self._once_known) > max(MOST_KNOWN, len(replicas)):
            del self._once_known[next(iter(self._once_known))]
        if self._client is None:
            deployment_id = self._deployment_id
            self._client = QueueClient(lambda: find_queue(deployment_id))
        self._client.want(bool(replicas))

    async def _export(self) -> None:
        """Once a second, whether the queue decides here."""
        name = self._deployment_id.name
        labels = {"application": self._deployment_id.app_name, "deployment": name, "router": uuid4().hex[:8]}
        try:
            metrics = RouterMetrics(labels)
            while True:
                client = self._client
                metrics.tell(client is not None and client.active, client.fallbacks if client else 0)
                await asyncio.sleep(1.0)
        except Exception:
            logger.exception("the metrics of a router of peek's queue cannot be exported")

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """Called by Ray when a call has found a replica dead."""
        super().on_replica_actor_died(replica_id)
        if self._client is not None:
            self._client.lost(replica_id.unique_id)


# -- the prompt of a call -----------------------------------------------------------------------------


FIELDS: Final = (
    "prompt_token_ids",
    "prompt",
    "messages",
    "input",
    "system",
    "instructions",
    "tools",
    "model",
    "lora",
    "cache_salt",
    "documents",
    "chat_template",
    "chat_template_kwargs",
)
"""What is read of a request that is an object: an OpenAI request of vLLM or of `ray.serve.llm`."""

PARAMETERS: Final = ("vllm_xargs", "custom_params")
"""Where a body has parameters of ours: in vLLM, in SGLang."""

TOKEN_KWARGS: Final = ("prompt_token_ids", "request_token_ids")
MOST_TOKENS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class Prompt(NamedTuple):
    """What the queue is told of a call.

    Attributes:
        key: of the prompt.
        most_tokens: that its answer may have, 0 if the call does not say.
        parameters: in its body, where it may name its session.
    """

    key: PromptKey
    most_tokens: int
    parameters: object = None


def prompt_of(args: Sequence[Any], kwargs: Mapping[str, Any], namespace: str = "") -> Prompt | None:
    """The prompt of a call, None if there is none to be seen.

    It is looked for in the keywords `prompt_token_ids` and `request_token_ids`, then in each argument: the
    body of an OpenAI request as a mapping or an object, a text, or token ids.  `namespace` is added to its
    own.
    """
    for name in TOKEN_KWARGS:
        if name in kwargs:
            return _prompt(kwargs[name], namespace)
    for argument in (*args, *kwargs.values()):
        found = _prompt(argument, namespace)
        if found is not None:
            return found
    return None


def _prompt(argument: Any, namespace: str) -> Prompt | None:
    try:
        if isinstance(argument, (str, bytes)):
            return Prompt(text_key(argument, namespace), 0)
        if isinstance(argument, (list, tuple)) and argument and type(argument[0]) is int:
            return Prompt(token_key(argument, namespace), 0)
        body = argument if isinstance(argument, Mapping) else _fields(argument)
        key = openai_key(body)
    except InvalidKey:
        return None
    if namespace:
        key = key._replace(namespace=f"{key.namespace}\0{namespace}")
    get = argument.get if isinstance(argument, Mapping) else lambda name: getattr(argument, name, None)
    most = [number for number in map(get, MOST_TOKENS) if type(number) is int and number > 0]
    stated = [found for found in map(get, PARAMETERS) if found]
    return Prompt(key, most[0] if most else 0, stated[0] if stated else None)


def _fields(request: Any) -> dict[str, Any]:
    found = {name: getattr(request, name, None) for name in FIELDS}
    if isinstance(found["messages"], (list, tuple)):
        found["messages"] = [_plain(message) for message in found["messages"]]
    return {name: value for name, value in found.items() if value is not None and not callable(value)}


def _plain(message: Any) -> Any:
    return message.model_dump(exclude_none=True) if hasattr(message, "model_dump") else message
