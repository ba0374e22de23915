"""The process that holds vLLM: `python -m bench.gpu.host SOCKET`.

Reads orders from the socket, one JSON object a line.

    {"op": "start", "engine": {...}}             -> {"event": "ready", ...}
    {"op": "add", "id", "prompt", "output"}      -> "first" at the first token, then "done" with counts
    {"op": "counters"}                           -> {"event": "counters", "counters": {...}}
    {"op": "reset"}                              -> {"event": "reset", "done": bool}: the cache is empty
    {"op": "abort"}                              what still runs ends without an event

An order that fails is answered by {"event": "failed", "message": ...}; the process ends with the connection.
vLLM's engine core is a process of its own below this one, as under its OpenAI server.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from typing import Any


class Host:
    """An engine, driven over one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._engine: Any = None
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        while line := await self._reader.readline():
            order = json.loads(line)
            if order["op"] == "add":
                task = asyncio.create_task(self._generate(order))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            else:
                await self._obey(order)
        if self._engine is not None:
            self._engine.shutdown()

    async def _obey(self, order: dict[str, Any]) -> None:
        try:
            await getattr(self, "on_" + order["op"])(order)
        except Exception as error:  # whatever it is, the client must hear of it
            traceback.print_exc()
            self._tell("failed", message=f"{type(error).__name__}: {error}")

    def _tell(self, event: str, **fields: Any) -> None:
        self._writer.write(json.dumps({"event": event, **fields}).encode() + b"\n")

    async def on_start(self, order: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        import peek

        if peek.backend() != "compiled":
            raise RuntimeError(f"{peek.__file__} is {peek.backend()}, not compiled")
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**order["engine"]))
        self._tell("ready", **_versions())

    async def _generate(self, order: dict[str, Any]) -> None:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            max_tokens=order["output"],
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt, count, cached = TokensPrompt(prompt_token_ids=order["prompt"]), 0, None
        try:
            async for output in self._engine.generate(prompt, sampling, order["id"]):
                if count == 0 and output.outputs[0].token_ids:
                    self._tell("first", id=order["id"])
                count += len(output.outputs[0].token_ids)
                cached = output.num_cached_tokens if output.num_cached_tokens is not None else cached
        except Exception as error:
            self._tell("broken", id=order["id"], message=f"{type(error).__name__}: {error}")
            return
        self._tell("done", id=order["id"], tokens=count, cached=cached)

    async def on_counters(self, order: dict[str, Any]) -> None:
        self._tell("counters", counters=_counters())

    async def on_reset(self, order: dict[str, Any]) -> None:
        self._tell("reset", done=bool(await self._engine.reset_prefix_cache()))

    async def on_abort(self, order: dict[str, Any]) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)  # else a reset overtakes the aborts


def _counters() -> dict[str, float]:
    """What `peek` counted in the engine's process; its files outlive it, so a caller takes differences."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    found: dict[str, float] = {}
    for family in registry.collect():
        for sample in family.samples:
            if sample.name.startswith("peek_") and sample.name.endswith("_total"):
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def _versions() -> dict[str, str]:
    import torch
    import vllm

    import peek

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "device": device,
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "peek": peek.__version__,
        "peek_backend": peek.backend(),
    }


async def _main(path: str) -> None:
    reader, writer = await asyncio.open_unix_connection(path, limit=1 << 24)
    await Host(reader, writer).serve()


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    asyncio.run(_main(sys.argv[1]))
