"""Workers of Dynamo that pass requests on to vLLM's servers: `dynamo_workers.py JSON`.

This runs in the environment of `ai-dynamo`, which has nothing of this package.  Dynamo's own worker holds
the engine in its process; here the engines are the same servers that all routers are measured with.  Each
worker publishes its server's KV events.  The argument names the model, its folder, the block, seats and
cache of a server, and for each server its URL and the endpoint of its events.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from dynamo.llm import KvEventPublisher, ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime

PATH = "bench.backend.generate"


class Worker:
    """One server, as Dynamo's frontend knows it."""

    def __init__(self, about: dict[str, Any], url: str, events: str, client: aiohttp.ClientSession) -> None:
        self._about, self._url, self._events, self._client = about, url, events, client

    async def serve(self) -> None:
        """Register, and answer until the process ends."""
        about = self._about
        runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
        endpoint = runtime.endpoint(PATH)
        self._publisher = KvEventPublisher(
            endpoint=endpoint, kv_block_size=about["block"], zmq_endpoint=self._events, zmq_topic="",
            enable_local_indexer=True,
        )  # fmt: skip
        config = ModelRuntimeConfig()
        config.context_length = about["context"]
        config.total_kv_blocks = about["blocks"]
        config.max_num_seqs = about["seats"]
        config.max_num_batched_tokens = about["step"]
        config.enable_local_indexer = True
        kinds = ModelType.Completions | ModelType.Chat
        await register_model(
            ModelInput.Tokens, kinds, endpoint, about["folder"], about["model"],
            worker_type=WorkerType.Aggregated, kv_cache_block_size=about["block"], runtime_config=config,
        )  # fmt: skip
        await endpoint.serve_endpoint(self.generate)

    async def generate(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Token ids to the server, token ids back as they come."""
        body = {"model": self._about["model"], "prompt": list(request["token_ids"]), "stream": True}
        body |= {"max_tokens": request["stop_conditions"]["max_tokens"], "temperature": 0.0}
        body |= {"ignore_eos": True, "return_token_ids": True}
        async with self._client.post(f"{self._url}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    said = {"token_ids": choice.get("token_ids") or []}
                    ends = choice.get("finish_reason")
                    yield said | ({"finish_reason": ends} if ends else {})


async def main(about: dict[str, Any]) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        await asyncio.gather(
            *(Worker(about, url, events, client).serve() for url, events in about["servers"])
        )


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
