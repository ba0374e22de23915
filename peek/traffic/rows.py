"""Reads requests from rows: a body like OpenAI's or Anthropic's, its time, its answer's length."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from peek.errors import WorkloadError
from peek.offline import formats
from peek.offline.formats import excerpt_of
from peek.traffic.events import Arrival, Ending, Event
from peek.traffic.times import is_bare, seconds

TIME_NAMES: Final = (
    "timestamp", "arrival_time", "created", "created_at", "time", "ts", "request_time", "start_time",
    "startTime", "@timestamp", "requestTime", "received_at", "datetime", "date", "msec", "time_iso8601",
    "time_local",
)  # fmt: skip
"""Names of the field with the time, in order; first in the row, then in the request, then in the response.
In each, a date counts before a bare number, which may be a duration, like nginx's `request_time`."""

OUTPUT_NAMES: Final = ("completion_tokens", "output_tokens", "output_length")
"""Fields of the answer's length, in order; first under `usage` of row or response, then in the row itself."""

BODY_NAMES: Final = ("body", "request", "request_body", "requestBody", "req_body", "proxy_server_request")
"""Fields that may hold the request: as an object, as JSON text, or as JSON text in base64."""

BASE64_OBJECTS: Final = ("eyJ", "ewo", "eyA", "ew0")
"""Beginnings of JSON objects in base64: of `{"`, or of `{` before white space."""

LARGEST: Final = 100_000_000  # a larger number of tokens is no length, but for example "no limit"

_RESPONSE_NAMES: Final = ("response", "response_body", "responseBody", "resp_body")
_ALLOWED_NAMES: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_ANTHROPIC_CACHED: Final = "cache_read_input_tokens"
_REDACTED: Final = "redacted-by-litellm"


@dataclass(frozen=True, slots=True)
class RequestRows:
    """Reads requests from parsed rows.

    A row holds a request: a chat, message, completion, response or embedding, with text or token ids.  The
    row is the request, or holds it in `params` or a field of `BODY_NAMES`, with its time and answer beside.

    The first four fields are dotted paths; "" for the usual places (no tenant).  The prompt is text, token
    ids or messages.  Tools and system prompts beside messages are put before them; text and token ids are the
    whole prompt.  The output is the answer's length, text or token ids.
    """

    time: str = ""
    prompt: str = ""
    output: str = ""
    tenant: str = ""
    time_unit: str = ""  # of numeric times, see `seconds`
    encode: formats.Encode | None = None  # measures text answers; None: four bytes count as a token

    def events(self, row: Any, name: str) -> Iterator[Event]:
        """Yield the arrival and the ending (0 tokens if unknown); `WorkloadError` says what is wrong."""
        if not isinstance(row, dict):
            raise WorkloadError(f"a JSON {type(row).__name__}, not an object")
        row = _untapped(row)
        body = _body_of(row)
        messages = parsed(body.get("messages"))
        if _REDACTED in (row.get("messages"), messages, _at(messages, "0.content")):
            raise WorkloadError("LiteLLM has left the messages out (turn_off_message_logging)")
        body = {**body, "messages": messages} if messages is not None else body
        asked = _each(_asked(row, body, self.prompt) if self.prompt else body)
        requests = [formats.request_of({"body": each}) for each in asked]
        tenant = _at(row, self.tenant) if self.tenant else None
        allowed = next(filter(None, (tokens_of(body.get(key)) for key in _ALLOWED_NAMES)), 0)
        ending = self._ending(row, name)  # before the first `yield`: an error leaves the whole row out
        shares, at = len(requests), self._time(row, body)
        at_s = None if at is None else seconds(at, self.time_unit)
        bare = not self.time_unit and is_bare(at)
        named = "" if tenant is None else str(tenant)
        priority = body["priority"] if type(body.get("priority")) is int else 0
        for place, request in enumerate(requests):
            known = name if shares == 1 else f"{name}/{place}"
            yield Arrival(known, at_s, request.prompt, request.namespace, named, allowed, bare, priority)
            yield ending._replace(name=known, output_tokens=-(-ending.output_tokens // shares))
            ending = ending._replace(prompt_tokens=0, cached_tokens=-1)  # the first has the sums for all

    def _ending(self, row: dict[str, Any], name: str) -> Ending:
        places = (row, *_responses(row))
        usage: dict[str, Any] = next(
            (place["usage"] for place in places if isinstance(place.get("usage"), dict)), {}
        )
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        cached = _at(details, "cached_tokens")
        prompt_tokens = tokens_of(usage.get("prompt_tokens") or usage.get("input_tokens"))
        if _ANTHROPIC_CACHED in usage:  # beside `input_tokens`, not among them
            cached = tokens_of(usage[_ANTHROPIC_CACHED])
            prompt_tokens += cached + tokens_of(usage.get("cache_creation_input_tokens"))
        return ending(name, self._output(row, usage), prompt_tokens, cached)

    def _time(self, row: dict[str, Any], body: dict[str, Any]) -> object:
        if self.time:
            return _required(row, self.time)
        for place in (row, body, *_responses(row)):
            if found := [place[name] for name in TIME_NAMES if place.get(name) is not None]:
                return next((each for each in found if not is_bare(each)), found[0])
        return None

    def _output(self, row: dict[str, Any], usage: dict[str, Any]) -> int:
        """Return the answer's length in tokens; 0 if unknown."""
        if not self.output:
            found = (tokens_of(place.get(name)) for place in (usage, row) for name in OUTPUT_NAMES)
            return next(filter(None, found), 0)
        value = _at(row, self.output)
        if isinstance(value, str):
            quarters = len(formats.text_symbols(value)) // formats.SYMBOL_BYTES
            return len(self.encode(value)) if self.encode else quarters
        if isinstance(value, list):
            return len(value)
        if value is None or tokens_of(value) or value == 0:
            return tokens_of(value)
        raise WorkloadError(f"{self.output} is {excerpt_of(value)}, not the length of an answer")


def _asked(row: dict[str, Any], body: dict[str, Any], path: str) -> dict[str, Any]:
    """Make a body of the prompt at `path` and the fields beside it that belong to the prompt."""
    prompt = _required(row, path)
    parent = _at(row, path.rpartition(".")[0]) if "." in path else row
    beside = {**body, **parent} if isinstance(parent, dict) else body
    is_chat = isinstance(prompt, list) and prompt and isinstance(prompt[0], dict)
    names = formats.NAMESPACE_NAMES + (formats.HEAD_NAMES if is_chat else ())
    kept = {name: beside[name] for name in names if name in beside}
    return {**kept, "messages" if is_chat else "prompt": prompt}


def tokens_of(value: object) -> int:
    """Return a number of tokens, also from a table's text or float; 0 if it is none."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LARGEST:
        return 0
    return int(value) if value == int(value) else 0


def ending(name: str, output: object, prompt: object, cached: object) -> Ending:
    """Make an ending from the counts in a log, without impossible ones."""
    prompt_tokens = tokens_of(prompt)
    known = type(cached) is int and 0 <= cached <= prompt_tokens
    return Ending(name, tokens_of(output), *((prompt_tokens, cached) if known else ()))


def parsed(value: object) -> Any:
    """Return a list or an object that is written as JSON text; anything else as it is."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _each(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a body for each of several prompts, because an engine serves each as one request."""
    for name in ("prompt", "input"):
        several = body.get(name)
        if isinstance(several, list) and all(isinstance(each, (str, list)) for each in several) and several:
            return [{**body, name: each} for each in several]
    return [body]


def _body_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the request in a row: a field, `params`, or the row itself.  `WorkloadError` if it is cut.

    A field without a prompt, such as a `request` with method and path, gives way to a place with one.
    """
    named = ((name, _object(row.get(name), name)) for name in BODY_NAMES)
    found = (_object(body.get("body"), name) or body for name, body in named if body is not None)
    first: dict[str, Any] | None = None
    for body in chain(found, [formats.params_or_row(row)]):
        if _has_prompt(body):
            return body
        first = body if first is None else first
    return first or {}


def _untapped(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of Envoy's tap with request and response as its fields; any other row as it is."""
    tapped = row.get("http_buffered_trace")
    return {**row, **tapped} if isinstance(tapped, dict) else row


def _has_prompt(body: dict[str, Any]) -> bool:
    return any(name in body for name in formats.PROMPT_NAMES)


def is_request(row: dict[str, Any]) -> bool:
    """Whether a row holds a prompt in one of the usual places; True also for a prompt that is cut."""
    try:
        return _has_prompt(_body_of(_untapped(row)))
    except WorkloadError:
        return True


def _object(value: object, name: str) -> dict[str, Any] | None:
    """Return a value that is a JSON object, or the object that it holds as text; None if there is none."""
    if isinstance(value, dict):
        tapped = value.get("as_string") or value.get("as_bytes")
        return _object(tapped, name) if isinstance(tapped, str) else value
    if not isinstance(value, str):
        return None
    text = value.strip()
    if text.startswith(BASE64_OBJECTS):
        with suppress(ValueError):
            text = base64.b64decode(text, validate=True).decode("utf-8")
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise WorkloadError(f"{name} is no whole JSON: whoever logged it has cut it") from None
    return found if isinstance(found, dict) else None


def _responses(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the response and its body, as far as the row has them."""
    for name in _RESPONSE_NAMES:
        response = row.get(name)
        if isinstance(response, str):
            response = _streamed(response)
        if isinstance(response, dict):
            tapped = response if "as_string" in response or "as_bytes" in response else response.get("body")
            body = _quietly(tapped)
            return [response, body] if body is not None else [response]
    return []


def _quietly(value: object) -> dict[str, Any] | None:
    """Like `_object`, but None for a value that is cut, so that a cut response does not spoil its request."""
    with suppress(WorkloadError):
        return _object(value, "")
    return None


def _streamed(text: str) -> dict[str, Any] | None:
    """Return the response as one object, or the last chunk with `usage` if it was streamed."""
    if not text.lstrip().startswith(("data:", "event:")):
        return _quietly(text)
    lines = [line for line in text.splitlines() if line.startswith("data:") and '"usage"' in line]
    chunks = (_quietly(line[5:]) for line in reversed(lines))
    return next((chunk for chunk in chunks if chunk and isinstance(chunk.get("usage"), dict)), None)


def _at(row: Any, path: str) -> Any:
    """Return the value at a dotted path, or None.  A number in the path is an index of a list."""
    for name in path.split("."):
        if isinstance(row, dict):
            row = row.get(name)
        elif isinstance(row, list) and name.isdecimal() and len(name) < 10 and int(name) < len(row):
            row = row[int(name)]
        else:
            return None
    return row


def _required(row: dict[str, Any], path: str) -> Any:
    value = _at(row, path)
    if value is None:
        raise WorkloadError(f"has no {excerpt_of(path)}")
    return value
