"""Requests with their times, one JSON object a line: logs of OpenAI-style traffic.

A line holds a request (chat, message, completion, response or embedding; text or token ids), by itself or
under `body`, `request` or `params`, and beside it when it came and how long the answer was.  Where these
stand can be told; otherwise they are looked for in the usual places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from peek.errors import WorkloadError
from peek.offline.formats.echo import echoed
from peek.offline.formats.requests import HEAD_NAMES, NAMESPACE_NAMES, SYMBOL_BYTES, params_or_row, request_of
from peek.traffic.events import Arrival, Ending, Event
from peek.traffic.times import is_bare, seconds

TIME_NAMES: Final = (
    "timestamp", "arrival_time", "created", "created_at", "time", "ts", "request_time", "start_time",
)  # fmt: skip
"""Where the time is looked for, in this order; then the same in the request and in the response."""

OUTPUT_NAMES: Final = ("completion_tokens", "output_tokens", "output_length")
"""Where the length of the answer is looked for: under `usage` of row and response, then in the row itself."""

_ALLOWED_NAMES: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class Fields(NamedTuple):
    """Where in a row things stand, as dotted paths; "": in the usual places (no tenant).

    Attributes:
        time: of arrival; see `peek.traffic.times.seconds`.
        prompt: text, token ids, or messages; of what stands beside it, messages have tools and system prompts
            before them, while text and token ids are taken as the whole.
        output: length of the answer, its text, or its token ids.
        tenant: who asks.
        time_unit: of numbers.
    """

    time: str = ""
    prompt: str = ""
    output: str = ""
    tenant: str = ""
    time_unit: str = ""


class RequestRows:
    """Reads rows that are parsed.

    Args:
        fields: where things stand.
        encode: text to token ids, for the length of answers that are text; None: four bytes count as a token.
    """

    def __init__(self, fields: Fields, encode: Callable[[str], list[int]] | None = None) -> None:
        self._fields = fields
        self._encode = encode

    def events(self, row: Any, name: str) -> Iterator[Event]:
        """The arrival and, where the row tells of it, the ending; `WorkloadError` says what is wrong."""
        if not isinstance(row, dict):
            raise WorkloadError(f"a JSON {type(row).__name__}, not an object")
        body = next((row[key] for key in ("body", "request") if isinstance(row.get(key), dict)), None)
        body = params_or_row(row) if body is None else body
        fields = self._fields
        request = request_of({"body": _asked(row, body, fields.prompt) if fields.prompt else body})
        tenant = _at(row, fields.tenant) if fields.tenant else None
        allowed = next((body[key] for key in _ALLOWED_NAMES if _is_count(body.get(key))), 0)
        ending = self._ending(row, name)  # before anything is told: what is wrong with it leaves all out
        at = self._time(row, body)
        at_s = None if at is None else seconds(at, self._fields.time_unit)
        bare = at_s is not None and not self._fields.time_unit and is_bare(at)
        who = "" if tenant is None else str(tenant)
        yield Arrival(name, at_s, request.prompt, request.namespace, who, allowed, bare)
        yield ending

    def _ending(self, row: dict[str, Any], name: str) -> Ending:
        usage = _usage(row)
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        prompt_tokens = usage.get("prompt_tokens") or usage.get("input_tokens")
        known = _is_count(prompt_tokens) and isinstance(cached, int)
        return Ending(name, self._output(row, usage), *((prompt_tokens, cached) if known else ()))

    def _time(self, row: dict[str, Any], body: dict[str, Any]) -> object:
        """As it stands there, None where nothing does."""
        if self._fields.time:
            return _required(row, self._fields.time)
        places = ((place, name) for place in (row, body, *_responses(row)) for name in TIME_NAMES)
        return next((place[name] for place, name in places if place.get(name) is not None), None)

    def _output(self, row: dict[str, Any], usage: dict[str, Any]) -> int:
        """Tokens of the answer, 0 if the row does not tell."""
        if not self._fields.output:
            found = [place.get(name) for place in (usage, row) for name in OUTPUT_NAMES]
            return int(next(filter(_is_count, found), None) or 0)
        value = _at(row, self._fields.output)
        if isinstance(value, str):
            encode = self._encode
            return (
                -(-len(value.encode("utf-8", "surrogatepass")) // SYMBOL_BYTES)
                if encode is None
                else len(encode(value))
            )
        if isinstance(value, list):
            return len(value)
        if value is None or _is_count(value) or value == 0:
            return int(value or 0)
        raise WorkloadError(f"{self._fields.output} is {echoed(value)}, not the length of an answer")


def _asked(row: dict[str, Any], body: dict[str, Any], path: str) -> dict[str, Any]:
    """A body of the prompt that stands at `path`, and of what stands beside it."""
    prompt = _required(row, path)
    parent = _at(row, path.rpartition(".")[0]) if "." in path else row
    beside = {**body, **parent} if isinstance(parent, dict) else body
    is_chat = isinstance(prompt, list) and prompt and isinstance(prompt[0], dict)
    names = NAMESPACE_NAMES + (HEAD_NAMES if is_chat else ())
    return {
        **{name: beside[name] for name in names if name in beside},
        "messages" if is_chat else "prompt": prompt,
    }


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _responses(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The response, if it is in the row, and its body."""
    response = row.get("response")
    if not isinstance(response, dict):
        return []
    body = response.get("body")
    return [response, body] if isinstance(body, dict) else [response]


def _usage(row: dict[str, Any]) -> dict[str, Any]:
    for place in (row, *_responses(row)):
        if isinstance(place.get("usage"), dict):
            found: dict[str, Any] = place["usage"]
            return found
    return {}


def _at(row: Any, path: str) -> Any:
    """What stands at a dotted path; None if nothing does.  Numbers count the items of a list."""
    for name in path.split("."):
        if isinstance(row, dict):
            row = row.get(name)
        elif isinstance(row, list) and name.isdecimal() and int(name) < len(row):
            row = row[int(name)]
        else:
            return None
    return row


def _required(row: dict[str, Any], path: str) -> Any:
    value = _at(row, path)
    if value is None:
        raise WorkloadError(f"has no {echoed(path)}")
    return value
