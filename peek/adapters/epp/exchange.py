"""One request as Envoy reports it over ext_proc, and the answers to Envoy's messages.

In the endpoint picker protocol of the Gateway API Inference Extension (its proposal 004) a header and dynamic
metadata name the picked endpoint.  Request bodies come whole (BUFFERED), or in pieces that have to be sent
back (FULL_DUPLEX_STREAMED) and are kept until the body ends or is too long to be read.  Bodies of answers
need not come: the stream of messages stays open until the answer has ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from peek.adapters.epp.picker import LONGEST_READ, Picked, Picker
from peek.errors import NoReplica

DESTINATION: Final = "x-gateway-destination-endpoint"  # header, and field in `LB`: the picked endpoint
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SERVED: Final = "x-gateway-destination-endpoint-served"
LB: Final = "envoy.lb"
SUBSET_HINT: Final = "envoy.lb.subset_hint"
UPSTREAM: Final = "upstream.address"  # attribute of an answer, if Envoy is so configured: who served it
SESSION: Final = "x-session-id"
PIECE: Final = 60_000  # bytes of a body that are sent back at a time; gateways take 64 KiB
NO_BODY, STREAMED, FULL_DUPLEX = 0, 1, 4  # of `ProcessingMode.BodySendMode`


class Exchange:
    """One stream of messages, for one request; `picker` is asked once."""

    def __init__(self, picker: Picker) -> None:
        from envoy.service.ext_proc.v3 import external_processor_pb2

        self._proto: Any = external_processor_pb2
        self._picker = picker
        self._picked: Picked | None = None
        self._session = ""
        self._subset: list[str] | None = None
        self._mode = -1  # how the request's body comes; -1 if Envoy is too old to say
        self._answer_mode = NO_BODY  # how the answer's body comes; changed if a part of it does come
        self._body = bytearray()
        self._good = False  # whether an answer has begun that is not an error

    def end(self, complete: bool = False) -> None:
        """End the request; answered if a good answer began, and its body is `complete` or not sent here."""
        if self._picked is not None:
            self._picker.ended(self._picked, self._good and (complete or self._answer_mode == NO_BODY))

    async def answer(self, message: Any) -> AsyncIterator[Any]:
        """Yield the answers to a message; none while more messages must come first."""
        kind = message.WhichOneof("request")
        if kind in ("request_headers", "request_body", "request_trailers"):
            async for response in self._answer_request(kind, message):
                yield response
        else:
            yield self._answer_response(kind, message)

    # -- on its way to an endpoint -------------------------------------------------------------------

    async def _answer_request(self, kind: str, message: Any) -> AsyncIterator[Any]:
        part = getattr(message, kind)
        if kind == "request_headers":
            self._begin(message, part)
        ends = kind == "request_trailers" or part.end_of_stream
        if kind == "request_body" and self._picked is None:
            self._body += part.body
        if self._picked is not None and kind == "request_body" and self._mode == FULL_DUPLEX:
            for piece in self._pieces(part.body, ends):
                yield piece
        elif self._picked is not None:
            yield self._plain(kind)
        elif self._mode == FULL_DUPLEX:
            if ends or len(self._body) > LONGEST_READ:  # no more of it will be read
                async for response in self._send_back(kind, ends):
                    yield response
        elif ends or self._mode in (NO_BODY, STREAMED) or kind == "request_body":
            yield await self._pick(kind)
        else:
            yield self._plain(kind)

    def _begin(self, message: Any, part: Any) -> None:
        if message.HasField("protocol_config"):
            self._mode = message.protocol_config.request_body_mode
            self._answer_mode = message.protocol_config.response_body_mode
        for header in part.headers.headers:
            if header.key == SESSION:
                self._session = header.value or header.raw_value.decode("utf-8", "replace")
        hint = _field(message, SUBSET_HINT, SUBSET)
        if hint is not None:
            listed = hint.list_value.values if hint.HasField("list_value") else ()
            names = [each.string_value for each in listed] or hint.string_value.split(",")
            self._subset = [name.strip() for name in names if name.strip()]

    async def _send_back(self, kind: str, ends: bool) -> AsyncIterator[Any]:
        """Yield what has come of a request: headers with the endpoint, the body in pieces, trailers."""
        body = bytes(self._body)
        first = await self._pick("request_headers")
        yield first
        if first.HasField("immediate_response") or kind == "request_headers":
            return
        if body or kind == "request_body":
            for piece in self._pieces(body, ends and kind == "request_body"):
                yield piece
        if kind == "request_trailers":
            yield self._plain(kind)

    async def _pick(self, kind: str) -> Any:
        """Return the endpoint, in an answer to a part of the request; 503 if there is none."""
        body, self._body = bytes(self._body), bytearray()
        try:
            self._picked = await self._picker.pick(body, self._session, self._subset)
        except NoReplica as error:
            refusal = {"status": {"code": 503}, "body": f"{error}\n".encode(), "details": "no_endpoint"}
            return self._proto.ProcessingResponse(immediate_response=refusal)
        endpoint = self._picked.endpoint
        response = self._plain(kind)
        response.dynamic_metadata.update({LB: {DESTINATION: endpoint}})
        if kind != "request_trailers":
            common = getattr(response, kind).response
            header = {"key": DESTINATION, "raw_value": endpoint.encode()}
            common.header_mutation.set_headers.add(header=header, append_action="OVERWRITE_IF_EXISTS_OR_ADD")
            common.clear_route_cache = True
        return response

    # -- on its way back -----------------------------------------------------------------------------

    def _answer_response(self, kind: str, message: Any) -> Any:
        part = getattr(message, kind)
        if kind == "response_headers":
            status = [each for each in part.headers.headers if each.key == ":status"]
            codes = [each.value or each.raw_value.decode() for each in status]
            self._good = bool(codes) and codes[0] < "400"
            told = _field(message, LB, SERVED)
            served = told.string_value if told is not None else ""
            for attributes in message.attributes.values():
                served = served or attributes.fields[UPSTREAM].string_value
            if self._picked is not None and served and served != self._picked.endpoint:
                self._picker.began(self._picked, served)  # another endpoint than was picked
        elif kind == "response_body":
            self._answer_mode = self._answer_mode or STREAMED
            if part.body and self._good and self._picked is not None:
                self._picker.began(self._picked)
        if kind == "response_trailers" or part.end_of_stream:
            self.end(True)
        if kind == "response_body" and self._answer_mode == FULL_DUPLEX:
            return self._piece(kind, part.body, part.end_of_stream)
        return self._plain(kind)

    # -- messages ------------------------------------------------------------------------------------

    def _plain(self, kind: str) -> Any:
        """Return an answer that changes nothing."""
        response = self._proto.ProcessingResponse()
        getattr(response, kind).SetInParent()
        return response

    def _pieces(self, body: bytes, ends: bool) -> Iterator[Any]:
        """Yield a request's body; `ends` if nothing follows it."""
        starts = range(0, max(1, len(body)), PIECE)
        for start in starts:
            yield self._piece("request_body", body[start : start + PIECE], ends and start == starts[-1])

    def _piece(self, kind: str, body: bytes, ends: bool) -> Any:
        response = self._plain(kind)
        streamed = getattr(response, kind).response.body_mutation.streamed_response
        streamed.body = body
        streamed.end_of_stream = ends
        return response


def _field(message: Any, namespace: str, name: str) -> Any:
    """Return a field of the metadata that came with a message; None if it is missing."""
    metadata = message.metadata_context.filter_metadata
    if namespace not in metadata or name not in metadata[namespace].fields:
        return None
    return metadata[namespace].fields[name]


def processing(picker: Picker) -> Any:
    """Return the handler of the service's one call, `Process`."""

    async def process(requests: AsyncIterator[Any], _: Any) -> AsyncIterator[Any]:
        exchange = Exchange(picker)
        try:
            async for message in requests:
                async for response in exchange.answer(message):
                    yield response
        finally:
            exchange.end()

    return process
