"""The endpoint picker's protocol, message by message, on a real gRPC server of this process."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Event
from typing import Any

import grpc
import pytest
from envoy.config.core.v3.base_pb2 import HeaderValue, Metadata
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub
from google.protobuf.struct_pb2 import Struct
from support.loops import in_a_loop

from peek.adapters.epp.exchange import DESTINATION, PIECE
from peek.adapters.epp.picker import LONGEST_READ, Options, Picker
from peek.adapters.epp.server import HEALTH, LONGEST_MESSAGE, serve

AB = ["10.0.0.1:8000", "10.0.0.2:8000"]
PROMPT = "You are a helpful assistant who answers in one short sentence. " * 40
BODY = json.dumps({"model": "m", "prompt": PROMPT}).encode()
BUFFERED, STREAMED, FULL_DUPLEX = 2, 1, 4


class Gateway:
    """Speaks for Envoy, one stream of messages at a time."""

    def __init__(self, picker: Picker, channel: Any) -> None:
        self.picker = picker
        self.channel = channel
        self.stub = ExternalProcessorStub(channel)

    def stream(self) -> Any:
        return self.stub.Process()

    async def ask(self, stream: Any, **parts: Any) -> Any:
        await stream.write(messages.ProcessingRequest(**parts))
        return await stream.read()

    async def send(self, stream: Any, body: bytes = BODY, **more: Any) -> Any:
        """A request whose body comes whole; the answer to the body."""
        first = await self.ask(stream, **headers(**more))
        assert first == messages.ProcessingResponse(request_headers=messages.HeadersResponse())
        return await self.ask(stream, request_body=messages.HttpBody(body=body, end_of_stream=True))

    async def settled(self) -> dict[str, int]:
        """Requests at each endpoint as the planner knows them, when all news has come."""
        for _ in range(100):
            await asyncio.sleep(0.01)
            if not any(self.picker.endpoints.values()):
                break
        brain = self.picker._brain
        return {each.name: each.under_way for each in await brain.call(brain.fleet.status)}


@asynccontextmanager
async def gateway(endpoints: list[str] = AB, **options: Any) -> AsyncIterator[Gateway]:
    picker = Picker(Options(**{"deadline_s": 10.0, **options}))
    picker.set_endpoints(endpoints)
    server, port = await serve(picker, "127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Gateway(picker, channel)
    await server.stop(None)
    picker.close()


def headers(
    request_mode: int = BUFFERED,
    answer_mode: int | None = STREAMED,
    ends: bool = False,
    subset: object = None,
    **named: str,
) -> dict[str, Any]:
    sent = messages.HttpHeaders(end_of_stream=ends)
    for name, value in {":path": "/v1/completions", **named}.items():
        sent.headers.headers.add(key=name.replace("_", "-"), raw_value=value.encode())
    parts: dict[str, Any] = {"request_headers": sent}
    if answer_mode is not None:
        parts["protocol_config"] = messages.ProtocolConfiguration(
            request_body_mode=request_mode, response_body_mode=answer_mode
        )
    if subset is not None:
        parts["metadata_context"] = metadata(
            "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", subset
        )
    return parts


def metadata(namespace: str, name: str, value: object) -> Metadata:
    fields = Struct()
    fields.update({name: value})
    return Metadata(filter_metadata={namespace: fields})


def answer(status: str = "200", ends: bool = False, **more: Any) -> dict[str, Any]:
    sent = messages.HttpHeaders(end_of_stream=ends)
    sent.headers.headers.append(HeaderValue(key=":status", raw_value=status.encode()))
    return {"response_headers": sent, **more}


def picked(response: Any, kind: str = "request_body") -> str:
    """The endpoint that an answer names, the same in the header and in the metadata."""
    assert response.WhichOneof("response") == kind
    common = getattr(response, kind).response
    assert common.clear_route_cache
    (option,) = common.header_mutation.set_headers
    assert option.header.key == DESTINATION
    assert option.append_action == option.OVERWRITE_IF_EXISTS_OR_ADD
    endpoint: str = option.header.raw_value.decode()
    assert response.dynamic_metadata["envoy.lb"][DESTINATION] == endpoint
    return endpoint


@in_a_loop
async def test_a_request_with_a_whole_body() -> None:
    async with gateway() as to:
        stream = to.stream()
        endpoint = picked(await to.send(stream))
        assert to.picker.endpoints == {**dict.fromkeys(AB, 0), endpoint: 1}
        assert await to.ask(stream, **answer()) == messages.ProcessingResponse(
            response_headers=messages.HeadersResponse()
        )
        assert (await to.ask(stream, response_body=messages.HttpBody(body=b"data: 1\n"))) == (
            messages.ProcessingResponse(response_body=messages.BodyResponse())
        )
        brain = to.picker._brain
        (started,) = [each for each in await brain.call(brain.fleet.status) if each.under_way]
        assert (started.name, started.queued) == (endpoint, 0)
        await to.ask(stream, response_body=messages.HttpBody(body=b"data: 2\n", end_of_stream=True))
        assert await to.settled() == dict.fromkeys(AB, 0)
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        stats = to.picker._brain.fleet.stats
        assert (stats.finished, stats.cancelled) == (1, 0)


@in_a_loop
async def test_one_prefix_goes_to_one_endpoint() -> None:
    async with gateway() as to:
        where = set()
        for n in range(6):
            stream = to.stream()
            body = json.dumps({"prompt": f"{PROMPT} {n}"}).encode()
            where.add(picked(await to.send(stream, body)))
            await to.ask(stream, **answer(ends=True))
            await stream.done_writing()
            await to.settled()
        assert len(where) == 1


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("trailers", [False, True])
@in_a_loop
async def test_a_request_that_comes_in_pieces_is_sent_back_whole(pieces: int, trailers: bool) -> None:
    body = json.dumps({"prompt": "x" * (3 * PIECE)}).encode()
    async with gateway() as to:
        stream = to.stream()
        await stream.write(messages.ProcessingRequest(**headers(FULL_DUPLEX, FULL_DUPLEX)))
        size = -(-len(body) // pieces)
        for n in range(pieces):
            piece = messages.HttpBody(
                body=body[n * size : (n + 1) * size], end_of_stream=n == pieces - 1 and not trailers
            )
            await stream.write(messages.ProcessingRequest(request_body=piece))
        if trailers:
            await stream.write(messages.ProcessingRequest(request_trailers=messages.HttpTrailers()))
        assert picked(await stream.read(), "request_headers") in AB
        came, ended = b"", False
        while len(came) < len(body):
            assert not ended
            part = (await stream.read()).request_body.response.body_mutation.streamed_response
            assert 0 < len(part.body) <= PIECE
            came += part.body
            ended = part.end_of_stream
        assert (came, ended) == (body, not trailers)
        if trailers:
            assert (await stream.read()).WhichOneof("response") == "request_trailers"
        await to.ask(stream, **answer())
        for text, ends in ((b"one", False), (b"", False), (b"two", True)):
            sent = messages.HttpBody(body=text, end_of_stream=ends)
            back = (await to.ask(stream, response_body=sent)).response_body.response
            part = back.body_mutation.streamed_response
            assert (part.body, part.end_of_stream) == (text, ends)
        assert await to.settled() == dict.fromkeys(AB, 0)


@in_a_loop
async def test_a_request_of_headers_and_trailers_is_sent_back_without_a_body() -> None:
    """Envoy ends a request whose answers tell of a body that it has not sent."""
    async with gateway() as to:
        stream = to.stream()
        await stream.write(messages.ProcessingRequest(**headers(FULL_DUPLEX, FULL_DUPLEX)))
        first = await to.ask(stream, request_trailers=messages.HttpTrailers())
        assert picked(first, "request_headers") in AB
        assert (await stream.read()).WhichOneof("response") == "request_trailers"


@pytest.mark.parametrize("trailers", [False, True])
@in_a_loop
async def test_a_long_request_is_sent_on_before_all_of_it_has_come(trailers: bool) -> None:
    """No more of it is kept than is read; what comes later passes through."""
    piece = b"x" * 1_000_000
    pieces = LONGEST_READ // len(piece) + 1
    async with gateway() as to:
        stream = to.stream()
        await stream.write(messages.ProcessingRequest(**headers(FULL_DUPLEX, FULL_DUPLEX)))
        came, ended, endpoint = 0, False, ""
        for number in range(pieces + 3):
            ends = number == pieces + 2 and not trailers
            sent = messages.HttpBody(body=piece, end_of_stream=ends)
            await stream.write(messages.ProcessingRequest(request_body=sent))
            if number == pieces - 1:
                endpoint = picked(await stream.read(), "request_headers")
            while number >= pieces - 1 and came < (number + 1) * len(piece):
                part = (await stream.read()).request_body.response.body_mutation.streamed_response
                came += len(part.body)
                ended = part.end_of_stream
        assert ended == (not trailers)
        if trailers:
            passed = await to.ask(stream, request_trailers=messages.HttpTrailers())
            assert passed.WhichOneof("response") == "request_trailers"
        assert to.picker.endpoints == {**dict.fromkeys(AB, 0), endpoint: 1}
        assert to.picker._brain.metrics.fallbacks == 1


@in_a_loop
async def test_a_message_longer_than_any_body_is_refused() -> None:
    async with gateway() as to:
        assert picked(await to.send(to.stream(), b"x" * 2**25)) in AB
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await to.send(to.stream(), b"x" * (LONGEST_MESSAGE + 1))
        assert sum(to.picker.endpoints.values()) == 1


@pytest.mark.parametrize(
    ("mode", "ends"), [(BUFFERED, True), (FULL_DUPLEX, True), (STREAMED, False), (0, False)]
)
@in_a_loop
async def test_where_no_body_is_to_be_waited_for_the_headers_are_answered(mode: int, ends: bool) -> None:
    async with gateway() as to:
        stream = to.stream()
        assert picked(await to.ask(stream, **headers(mode, ends=ends)), "request_headers") in AB
        if not ends:
            part = await to.ask(stream, request_body=messages.HttpBody(body=BODY, end_of_stream=True))
            assert part == messages.ProcessingResponse(request_body=messages.BodyResponse())
        assert sum(to.picker.endpoints.values()) == 1


@pytest.mark.parametrize("as_text", [False, True])
@in_a_loop
async def test_the_data_plane_may_name_candidates(as_text: bool) -> None:
    async with gateway() as to:
        for _ in range(3):
            names = ["10.9.9.9:1", AB[1]]
            subset = ", ".join(names) if as_text else names
            assert picked(await to.send(to.stream(), subset=subset)) == AB[1]


@pytest.mark.parametrize("subset", [[], "", ["10.9.9.9:1"]])
@pytest.mark.parametrize("mode", [BUFFERED, FULL_DUPLEX])
@in_a_loop
async def test_no_candidate_is_a_503(subset: object, mode: int) -> None:
    async with gateway() as to:
        stream = to.stream()
        await stream.write(messages.ProcessingRequest(**headers(mode, subset=subset)))
        if mode == BUFFERED:
            await stream.read()
        await stream.write(
            messages.ProcessingRequest(request_body=messages.HttpBody(body=BODY, end_of_stream=True))
        )
        refused = (await stream.read()).immediate_response
        assert (refused.status.code, refused.body) == (503, b"none of 2 endpoints may be picked\n")


@in_a_loop
async def test_no_endpoint_is_a_503() -> None:
    async with gateway([]) as to:
        refused = (await to.send(to.stream())).immediate_response
        assert (refused.status.code, refused.body) == (503, b"none of 0 endpoints may be picked\n")


@pytest.mark.parametrize("answer_mode", [STREAMED, None])
@pytest.mark.parametrize("began", [False, True])
@in_a_loop
async def test_a_cancelled_stream_frees_its_slot(answer_mode: int | None, began: bool) -> None:
    async with gateway() as to:
        stream = to.stream()
        endpoint = picked(await to.send(stream, answer_mode=answer_mode))
        if began:
            await to.ask(stream, **answer())
            await to.ask(stream, response_body=messages.HttpBody(body=b"data: 1\n"))
        assert to.picker.endpoints[endpoint] == 1
        stream.cancel()
        assert await to.settled() == dict.fromkeys(AB, 0)
        assert to.picker.endpoints == dict.fromkeys(AB, 0)
        assert to.picker._brain.fleet.stats.cancelled == 1


@pytest.mark.parametrize("status", ["200", "503"])
@pytest.mark.parametrize("answer_mode", [0, None])
@in_a_loop
async def test_without_bodies_of_answers_a_stream_that_closes_is_their_end(
    answer_mode: int | None, status: str
) -> None:
    """Also where Envoy is too old to say that none come."""
    async with gateway() as to:
        stream = to.stream()
        endpoint = picked(await to.send(stream, answer_mode=answer_mode))
        await to.ask(stream, **answer(status))
        assert to.picker.endpoints[endpoint] == 1
        await stream.done_writing()
        assert await to.settled() == dict.fromkeys(AB, 0)
        stats = to.picker._brain.fleet.stats
        assert (stats.finished, stats.cancelled) == ((1, 0) if status == "200" else (0, 1))


@pytest.mark.parametrize("status", ["200", "503"])
@in_a_loop
async def test_only_an_answer_counts_as_one(status: str) -> None:
    async with gateway() as to:
        stream = to.stream()
        await to.send(stream)
        await to.ask(stream, **answer(status, ends=True))
        await to.settled()
        stats = to.picker._brain.fleet.stats
        assert (stats.finished, stats.cancelled) == ((1, 0) if status == "200" else (0, 1))


@pytest.mark.parametrize("status", ["200", "503"])
@in_a_loop
async def test_a_prompt_is_computed_where_an_answer_begins_that_is_no_error(status: str) -> None:
    async with gateway() as to:
        stream = to.stream()
        await to.send(stream)
        await to.ask(stream, **answer(status))
        await to.ask(stream, response_body=messages.HttpBody(body=b"overloaded, or a token"))
        brain = to.picker._brain
        loads = await brain.call(brain.fleet.status)
        assert sum(each.queued for each in loads) == (0 if status == "200" else 1)
        assert sum(each.under_way for each in loads) == 1


@pytest.mark.parametrize("told", ["metadata", "attribute"])
@in_a_loop
async def test_the_data_plane_tells_who_served(told: str) -> None:
    async with gateway() as to:
        stream = to.stream()
        endpoint = picked(await to.send(stream))
        (other,) = set(AB) - {endpoint}
        fields = Struct()
        fields.update({"upstream.address": other})
        more: dict[str, Any] = {"attributes": {"envoy.filters.http.ext_proc": fields}}
        if told == "metadata":
            more = {"metadata_context": metadata("envoy.lb", f"{DESTINATION}-served", other)}
        await to.ask(stream, **answer(**more))
        assert to.picker.endpoints == {endpoint: 0, other: 1}
        assert picked(await to.send(to.stream())) == other  # the one that did not serve rests


@in_a_loop
async def test_a_planner_that_fails_or_hangs_is_not_noticed_by_the_gateway() -> None:
    free = Event()
    async with gateway(deadline_s=0.05) as to:
        to.picker._brain.place = lambda *_: free.wait()  # type: ignore[assignment]
        assert {picked(await to.send(to.stream())) for _ in range(2)} == set(AB)
        free.set()
    async with gateway() as to:
        to.picker._brain.place = lambda *_: 1 // 0  # type: ignore[assignment]
        assert {picked(await to.send(to.stream())) for _ in range(2)} == set(AB)
        assert to.picker._brain.metrics.fallbacks == 2


@in_a_loop
async def test_it_is_ready_once_there_is_an_endpoint() -> None:
    async with gateway([]) as to:
        check = to.channel.unary_unary(f"/{HEALTH}/Check")
        assert await check(b"") == b"\x08\x02"
        assert await check(b"\x0a\x08liveness") == b"\x08\x01"
        to.picker.set_endpoints(AB)
        assert await check(b"") == b"\x08\x01"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "peek.adapters.epp.server", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_says_what_is_wrong() -> None:
    done = command()
    assert (done.returncode, done.stderr) == (
        1,
        "peek-epp: no endpoints: give --endpoint or --endpoints-file\n",
    )
    done = command("--endpoint", AB[0], "--seats", "-1")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("peek-epp: seats is -1; need")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = command("--endpoint", AB[0], "--listen", f"127.0.0.1:{port}", "--metrics-port", "0")
    assert done.returncode == 1
    assert "peek-epp: Failed to bind to address" in done.stderr
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        done = command("--endpoint", AB[0], "--listen", "127.0.0.1:0", "--metrics-port", str(port))
    assert done.returncode == 1
    assert done.stderr.endswith("peek-epp: [Errno 98] Address already in use\n")
