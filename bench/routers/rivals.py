"""Starts each router in front of the servers, with its defaults except for settings that it requires."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from urllib.request import Request, urlopen

from rig import Rig

from bench.servers.engines import MODEL
from bench.servers.processes import START_S, Failed, Server, clean_environment, free_port
from bench.servers.shapes import Shape

BLOCK: Final = 32
"""Tokens of a block of vLLM on a CPU."""

WORD_BYTES: Final = 6
"""Of a token in the text of a prompt; peek-epp counts four bytes as a token."""


@dataclass(frozen=True, slots=True)
class Backends:
    """The servers, as routers know them.

    Attributes:
        ports: of HTTP.
        events: the ports at which they publish their KV events.
        replays: those at which they repeat them.
        model: its folder.
    """

    ports: tuple[int, ...]
    events: tuple[int, ...]
    replays: tuple[int, ...]
    model: Path
    shape: Shape

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]


class Running(Protocol):
    """A router that was started."""

    @property
    def url(self) -> str: ...

    def close(self) -> None: ...


class Process:
    """A router that is a process of its own; answers when it is made, or raises `Failed`."""

    def __init__(self, command: Sequence[str], folder: Path, port: int, **environ: str) -> None:
        self._server = Server(command, folder, environ, port, "")
        self.url = self._server.address
        try:
            self._server.wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._server.close()


class Gateway:
    """A real Envoy, with the picker unless it is `plain`; with `told` the picker hears of first tokens."""

    def __init__(self, backends: Backends, folder: Path, plain: str = "", told: bool = False) -> None:
        shape = backends.shape
        cache_tokens = shape.pool * WORD_BYTES // 4
        flags = ("--cache-tokens", str(cache_tokens), "--seats", str(shape.seats))
        change = partial(without_picker, rule=plain) if plain else streamed if told else str
        self._rig = Rig(folder, change, flags)
        self._rig.list_engines([f"127.0.0.1:{port}" for port in backends.ports])
        self.url = self._rig.url
        names = ["envoy"] if plain else ["picker", "envoy"]
        for name in names:
            self._rig.start(name)
        for name in names:
            asyncio.run(self._rig.wait_for(name))

    def close(self) -> None:
        self._rig.stop_all()


def streamed(text: str) -> str:
    """The configuration of `deploy/` in which the picker is sent each part of an answer."""
    return text.replace("response_body_mode: NONE", "response_body_mode: STREAMED")


def without_picker(text: str, rule: str) -> str:
    """The configuration of `deploy/` without its picker, Envoy's own rule in its place."""
    begin = text.index("- name: envoy.filters.http.ext_proc")
    end = text.index("- name: envoy.filters.http.router")
    text = text[:begin] + text[end:]
    name = rule.title().replace("_", "")
    return text.replace("policies.least_request", f"policies.{rule}").replace("v3.LeastRequest", f"v3.{name}")


def sglang_router(policy: str, *flags: str) -> Callable[[Backends, Path, Path], Running]:
    """`sglang-router` with one of its policies."""

    def start(backends: Backends, folder: Path, python: Path) -> Running:
        port, metrics = free_port(), free_port()
        command = [str(python), "-m", "sglang_router.launch_router", "--policy", policy, *flags]
        command += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
        command += ["--log-level", "warn"]
        return Process([*command, "--worker-urls", *backends.urls], folder, port)

    return start


def vllm_router(policy: str, events: bool = False, *flags: str) -> Callable[[Backends, Path, Path], Running]:
    """`vllm-router` with one of its policies; with `events` it listens to what the servers cache."""

    def start(backends: Backends, folder: Path, python: Path) -> Running:
        port, metrics = free_port(), free_port()
        command = [str(python), "-m", "vllm_router.launch_router", "--policy", policy, *flags]
        command += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
        command += ["--log-level", "warning"]
        if events:
            command += ["--kv-event-block-size", str(BLOCK), "--kv-event-model", MODEL]
            for url, live, replay in zip(backends.urls, backends.events, backends.replays, strict=True):
                command += ["--kv-event-source", f"{url}=tcp://127.0.0.1:{live}"]
                command += ["--kv-event-replay-source", f"{url}=tcp://127.0.0.1:{replay}"]
        return Process([*command, "--worker-urls", *backends.urls], folder, port)

    return start


class Dynamo:
    """Dynamo's frontend, and the workers that pass on what it sends; neither etcd nor NATS is needed."""

    def __init__(self, command: Sequence[str], backends: Backends, folder: Path, port: int) -> None:
        shape, environ = backends.shape, {"DYN_FILE_KV": str(folder / "store"), "DYN_LOG": "warn"}
        about = {
            "model": MODEL, "folder": str(backends.model), "block": BLOCK, "blocks": shape.pool // BLOCK,
            "context": shape.context, "seats": shape.seats, "step": shape.step,
            "servers": [
                (url, f"tcp://127.0.0.1:{events}")
                for url, events in zip(backends.urls, backends.events, strict=True)
            ],
        }  # fmt: skip
        script = str(Path(__file__).with_name("dynamo_workers.py"))
        with (folder / "workers.log").open("w") as log:
            self._workers = subprocess.Popen(
                [command[0], script, json.dumps(about)], cwd=folder, env=clean_environment(**environ),
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            self._frontend = Process(command, folder, port, **environ)
            self.url = self._frontend.url
            self._wait_for_workers(folder)
        except BaseException:
            self.close()
            raise

    def _wait_for_workers(self, folder: Path) -> None:
        """Until an answer comes."""
        body = json.dumps({"model": MODEL, "prompt": "w1", "max_tokens": 1}).encode()
        asked = Request(f"{self.url}/v1/completions", body, {"Content-Type": "application/json"})
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._workers.poll() is None:
            with suppress(OSError), urlopen(asked, timeout=30):
                return
            time.sleep(0.5)
        raise Failed(f"Dynamo's workers do not answer:\n{(folder / 'workers.log').read_text()[-2000:]}")

    def close(self) -> None:
        self._workers.kill()
        self._workers.wait()
        self._frontend.close()


def dynamo(mode: str, *flags: str) -> Callable[[Backends, Path, Path], Running]:
    """Dynamo with one of its router modes."""

    def start(backends: Backends, folder: Path, python: Path) -> Running:
        port = free_port()
        command = [str(python), "-m", "dynamo.frontend", "--router-mode", mode, *flags]
        command += [
            "--kv-cache-block-size",
            str(BLOCK),
            "--discovery-backend",
            "file",
            "--event-plane",
            "zmq",
        ]
        command += ["--http-host", "127.0.0.1", "--http-port", str(port)]
        return Dynamo(command, backends, folder, port)

    return start


def envoy(plain: str = "", told: bool = False) -> Callable[[Backends, Path, Path], Running]:
    """Envoy with peek-epp, or with a rule of its own."""

    def start(backends: Backends, folder: Path, python: Path) -> Running:
        assert python == Path(sys.executable)
        return Gateway(backends, folder, plain, told)

    return start


@dataclass(frozen=True, slots=True)
class Rival:
    """A router with one of its policies.

    Attributes:
        package: whose environment it runs in; "" is this process's.
        start: with the servers, a folder for its files, and the Python of its environment.
        by_session: it goes by the session's name, and is of no interest where none is named.
    """

    name: str
    package: str
    start: Callable[[Backends, Path, Path], Running]
    by_session: bool = False


PEEK: Final = "peek-epp"
DEFAULT: Final = "envoy least_request"
"""What a burst gets through this one gives the rates."""

RIVALS: Final = (
    Rival("envoy round_robin", "", envoy("round_robin")),
    Rival(DEFAULT, "", envoy("least_request")),
    Rival("sglang cache_aware", "sglang-router", sglang_router("cache_aware")),
    Rival("sglang power_of_two", "sglang-router", sglang_router("power_of_two")),
    Rival("sglang manual", "sglang-router", sglang_router("manual"), True),
    Rival("vllm cache_aware", "vllm-router", vllm_router("cache_aware")),
    Rival("vllm kv_aware", "vllm-router", vllm_router("kv_aware", True)),
    Rival("vllm consistent_hash", "vllm-router", vllm_router("consistent_hash"), True),
    Rival("vllm sticky_least_loaded", "vllm-router", vllm_router("sticky_least_loaded"), True),
    Rival("dynamo kv", "ai-dynamo", dynamo("kv")),
    Rival(PEEK, "", envoy()),
    Rival("peek-epp told", "", envoy(told=True)),
)
