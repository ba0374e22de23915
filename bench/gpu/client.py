"""Replays a workload against the engine's process and takes the times, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.gpu.loads import Load, Request


class EngineFailed(Exception):
    """The engine's process ended, did not answer in time, or refused."""


@dataclass(slots=True)
class Answer:
    """What came back for one request; times are seconds after its planned arrival."""

    first_s: float | None = None
    done_s: float | None = None
    tokens: int = 0
    cached: int | None = None


@dataclass(slots=True)
class Replay:
    """The answers of a load in its order; `late_s` is how much too late the client was at worst."""

    answers: list[Answer]
    late_s: float = 0.0
    wall_s: float = 0.0
    broken: list[str] = field(default_factory=list)


class EngineProcess:
    """The process that holds vLLM, and the connection to it."""

    def __init__(self, process: subprocess.Popen[bytes], server: asyncio.Server) -> None:
        self._process = process
        self._server = server
        self._events: asyncio.Queue[tuple[float, dict[str, Any]]] = asyncio.Queue()
        self._writer: asyncio.StreamWriter
        self._listener: asyncio.Task[None]

    @classmethod
    async def launch(cls, folder: Path, environ: Mapping[str, str]) -> EngineProcess:
        """Start the process; its output goes to `folder/engine.log`."""
        address = folder / "socket"
        address.unlink(missing_ok=True)
        connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        connected = asyncio.get_running_loop().create_future()
        server = await asyncio.start_unix_server(
            lambda reader, writer: connected.set_result((reader, writer)), address, limit=1 << 24
        )
        with (folder / "engine.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "bench.gpu.host", str(address)],
                env=dict(environ), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        engine = cls(process, server)
        try:
            reader, engine._writer = await asyncio.wait_for(connected, 60)
        except asyncio.TimeoutError:
            engine.kill()
            raise EngineFailed("the engine's process did not connect; see engine.log") from None
        engine._listener = asyncio.create_task(engine._listen(reader))
        return engine

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            self._events.put_nowait((perf_counter(), json.loads(line)))
        self._events.put_nowait((perf_counter(), {"event": "gone"}))

    async def ask(self, limit_s: float, op: str, answer: str, **fields: Any) -> dict[str, Any]:
        """Send an order and wait for its answer; events of requests that come before it are dropped."""
        self._writer.write(json.dumps({"op": op, **fields}).encode() + b"\n")
        deadline = perf_counter() + limit_s
        while True:
            _, event = await self._next(deadline)
            if event["event"] == answer:
                return event
            if event["event"] == "failed":
                raise EngineFailed(event["message"])

    async def _next(self, deadline: float) -> tuple[float, dict[str, Any]]:
        try:
            when, event = await asyncio.wait_for(self._events.get(), max(0.01, deadline - perf_counter()))
        except asyncio.TimeoutError:
            raise EngineFailed("no answer in time; see engine.log") from None
        if event["event"] == "gone":
            raise EngineFailed("the engine's process ended; see engine.log")
        return when, event

    async def replay(self, load: Load, limit_s: float) -> Replay:
        """Send every request when it arrives, wait for all; what is not done at `limit_s` is aborted."""
        lines = [_order(number, request) for number, request in enumerate(load.requests)]
        result = Replay([Answer() for _ in lines])
        start = perf_counter() + 0.1
        sender = asyncio.create_task(self._send(load.requests, lines, start, result))
        left = len(lines)
        try:
            while left:
                when, event = await self._next(start + limit_s)
                left -= _note(result, load.requests, event, when - start)
        except EngineFailed:
            if self._process.poll() is not None or perf_counter() < start + limit_s:
                raise
            self._writer.write(b'{"op": "abort"}\n')
        finally:
            sender.cancel()
        result.wall_s = perf_counter() - start
        return result

    async def _send(self, requests: list[Request], lines: list[bytes], start: float, result: Replay) -> None:
        for request, line in zip(requests, lines, strict=True):
            planned = start + request.arrival_s
            await asyncio.sleep(max(0.0, planned - perf_counter()))
            result.late_s = max(result.late_s, perf_counter() - planned)
            self._writer.write(line)

    def kill(self) -> None:
        """End the process and everything that it started."""
        self._server.close()
        try:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            pass
        except ProcessLookupError:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def _order(number: int, request: Request) -> bytes:
    order = {"op": "add", "id": f"r{number}", "prompt": request.prompt, "output": request.output}
    return json.dumps(order).encode() + b"\n"


def _note(result: Replay, requests: list[Request], event: dict[str, Any], when_s: float) -> int:
    """Write an event into its request's answer; 1 if that request has ended."""
    number = int(event["id"][1:])
    answer, since_s = result.answers[number], when_s - requests[number].arrival_s
    if event["event"] == "first":
        answer.first_s = since_s
        return 0
    if event["event"] == "done":
        answer.done_s, answer.tokens, answer.cached = since_s, event["tokens"], event["cached"]
    else:
        result.broken.append(event["message"])
    return 1
