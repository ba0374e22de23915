"""The command `peek-epp`: a gRPC server for Envoy, the list of endpoints, `/metrics`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from peek.adapters.epp.exchange import processing
from peek.adapters.epp.picker import Options, Picker
from peek.adapters.fleet_metrics import serve_metrics
from peek.errors import InvalidConfig

logger = logging.getLogger(__name__)

POLL_S: Final = 1.0  # seconds between two reads of the list of endpoints; each looks names up again
GRACE_S: Final = 5.0  # seconds that requests under way may take after SIGTERM; new ones are refused
SWITCH_S: Final = 0.0005  # seconds for which a thread keeps the interpreter while the other one waits
LONGEST_MESSAGE: Final = 2**25 + 2**20  # bytes: the longest body of deploy/envoy-epp.yaml, plus a margin
SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH: Final = "grpc.health.v1.Health"
SERVING: Final = b"\x08\x01"  # gRPC's `HealthCheckResponse` of status SERVING; its only field is a number
NOT_SERVING: Final = b"\x08\x02"
NEEDED: Final = ("grpc", "envoy", "prometheus_client")  # packages of the extra `[epp]`
ADVICE: Final = "the packages of gRPC, Envoy's messages or Prometheus are missing: pip install 'peek-kv[epp]'"


class EndpointList:
    """Endpoints from flags (`host:port`; all addresses of a host name) and from a file, see `listed`."""

    def __init__(self, named: Sequence[str], file: str = "") -> None:
        self._named = list(named)
        self._file = file
        self._of_file: list[str] = []
        self._known: dict[str, list[str]] = {}
        self._told: set[str] = set()

    def read(self) -> list[str]:
        """Return all endpoints as `ip:port`.  A source that fails is logged once and keeps its endpoints."""
        if self._file:
            try:
                self._of_file = listed(Path(self._file).read_text(encoding="utf-8"))
                self._told.discard(self._file)
            except (OSError, ValueError) as error:
                self._warn(self._file, error)
        known: dict[str, list[str]] = {}
        for name in (*self._named, *self._of_file):
            try:
                known[name] = addresses(name)
                self._told.discard(name)
            except (OSError, ValueError) as error:
                self._warn(name, error)
                known[name] = self._known.get(name, [])
        self._known = known
        return list(dict.fromkeys(address for found in known.values() for address in found))

    def _warn(self, what: str, error: Exception) -> None:
        if what not in self._told:
            self._told.add(what)
            logger.warning("endpoints of %s cannot be read, what is known stays: %s", what, error)


def listed(text: str) -> list[str]:
    """Return the endpoints in a file's text: lines (`#` begins a comment), or Envoy's JSON; `ValueError`."""
    if text.lstrip().startswith("{"):
        return _socket_addresses(json.loads(text))
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


def _socket_addresses(node: Any) -> list[str]:
    """Return the addresses anywhere in Envoy's JSON, as `host:port`; `ValueError`."""
    found = []
    for name, value in node.items() if isinstance(node, dict) else enumerate(node):
        if name == "socket_address":
            try:
                host = f"[{value['address']}]" if ":" in value["address"] else value["address"]
                found.append(f"{host}:{value['port_value']}")
            except (KeyError, TypeError):
                raise ValueError(f"socket address {value} is none; need address and port_value") from None
        elif isinstance(value, (dict, list)):
            found += _socket_addresses(value)
    return found


def addresses(name: str) -> list[str]:
    """Return `host:port` as `ip:port`, all addresses of a name in order; `ValueError`, `OSError`."""
    host, _, port = name.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"endpoint {name!r} is none; need host:port")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        found = [str(ip_address(bare))]
    except ValueError:
        known = socket.getaddrinfo(bare, int(port), type=socket.SOCK_STREAM)
        found = sorted({str(each[4][0]) for each in known})
    return [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in found]


async def serve(picker: Picker, address: str) -> tuple[Any, int]:
    """Start a gRPC server; return it and its port.  `RuntimeError` if the address is taken."""
    import grpc
    from envoy.service.ext_proc.v3 import external_processor_pb2 as messages

    async def check(request: bytes, _: Any) -> bytes:
        return SERVING if picker.endpoints or b"liveness" in request else NOT_SERVING

    process = grpc.stream_stream_rpc_method_handler(
        processing(picker),
        request_deserializer=messages.ProcessingRequest.FromString,
        response_serializer=messages.ProcessingResponse.SerializeToString,
    )
    server = grpc.aio.server(
        options=[("grpc.max_receive_message_length", LONGEST_MESSAGE), ("grpc.so_reuseport", 0)]
    )
    checked = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    for service, methods in ((SERVICE, {"Process": process}), (HEALTH, checked)):
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    port = server.add_insecure_port(address)
    await server.start()
    return server, int(port)


async def follow(picker: Picker, endpoints: EndpointList) -> None:
    """Read the list of endpoints every `POLL_S`, even if a name server is slow; never ends."""
    loop = asyncio.get_running_loop()
    reading: set[asyncio.Future[list[str]]] = set()
    while True:
        await asyncio.sleep(POLL_S)
        try:
            picker.tick()
            done, reading = await asyncio.wait(
                reading or {loop.run_in_executor(None, endpoints.read)}, timeout=POLL_S
            )
            for each in done:
                picker.set_endpoints(each.result())
        except Exception:
            logger.exception("the list of endpoints could not be followed")


async def run(arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    picker = Picker(Options(**{each.name: getattr(arguments, each.name) for each in fields(Options)}))
    endpoints = EndpointList(arguments.endpoint, arguments.endpoints_file)
    picker.set_endpoints(endpoints.read())
    server, port = await serve(picker, arguments.listen)
    following = asyncio.create_task(follow(picker, endpoints))
    try:
        serve_metrics(picker, arguments.metrics_port)
        known = ", ".join(picker.endpoints) or "no endpoint yet"
        logger.info("peek-epp on port %d picks among %s", port, known)
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await stopped.wait()
    finally:
        following.cancel()
        await server.stop(GRACE_S)
        picker.close()


def parser() -> argparse.ArgumentParser:
    about = "Picks endpoints for Envoy, by the prefixes prompts share."
    made = argparse.ArgumentParser("peek-epp", description=about)
    add = partial(made.add_argument, metavar="X")
    add("--listen", default="0.0.0.0:9002", help="address for ext_proc, default %(default)s")
    add("--endpoint", action="append", default=[], help="host:port of an engine, repeatable")
    source = "file with host:port in each line, or Envoy's EDS in JSON; read once a second"
    add("--endpoints-file", default="", help=source)
    add("--metrics-port", type=int, default=9090, help="port of /metrics, 0: none, default %(default)s")
    helps = {
        "cache_tokens": "KV cache of an engine, in tokens of four bytes",
        "seats": "requests that an engine computes at once; 0: not known",
        "stickiness": "upper bound of the weight of a token to compute at a busy engine",
        "decode_tokens": "expected tokens of an answer",
        "deadline_s": "seconds that a decision may take; after that the fewest requests decide",
    }
    for each in fields(Options):
        default: Any = each.default
        text = f"{helps[each.name]}, default {default}"
        add(f"--{each.name.replace('_', '-')}", type=type(default), default=default, help=text)
    return made


def main() -> int:
    arguments = parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.setswitchinterval(SWITCH_S)
    try:
        if not (arguments.endpoint or arguments.endpoints_file):
            raise InvalidConfig("no endpoints: give --endpoint or --endpoints-file")
        asyncio.run(run(arguments))
    except (ImportError, InvalidConfig, OSError, RuntimeError) as error:
        missing = isinstance(error, ImportError) and (error.name or "").partition(".")[0] in NEEDED
        sys.stderr.write(f"peek-epp: {ADVICE if missing else error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
