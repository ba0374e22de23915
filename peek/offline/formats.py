"""Parse and write the lines of batch files: requests, results and order files.  Opens no file.

**Lines** keep their bytes, without a byte order mark.  A missing end of the last line belongs to the file,
not to the line: when that line moves away from the bottom, it swaps ends with the new last line.  When lines
are moved back by the same rule, the file is what it was, byte for byte.

**Requests** are OpenAI-style, `{"custom_id": ..., "method": ..., "url": ..., "body": {...}}`, or Anthropic's,
`{"custom_id": ..., "params": {...}}`.  A body has `messages` (chat completions, Anthropic's messages),
`input` (responses, embeddings) or `prompt` (completions).  No template is applied: prompts with a common
start become texts with a common start.

**An order file** has one line per request, in the order of the output: a JSON list of the line number in the
batch file and the custom_id, "" for none.  **Results** are matched with requests by custom_id, in any order.
A result is left out and named if it could belong to two requests, or if its request has an earlier result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from typing import Any, Final, NamedTuple, TypeVar

from peek.errors import InvalidKey, WorkloadError
from peek.trie.keys import SYMBOL_BYTES as SYMBOL_BYTES
from peek.trie.keys import pack

BOM: Final = b"\xef\xbb\xbf"
EXCERPT_BYTES: Final = 200  # most of user content in a message: enough to find a line, never a whole prompt
SYSTEM_ROLES: Final = ("system", "developer")

PROMPT_NAMES: Final = ("messages", "prompt", "input", "prompt_token_ids", "tokens")
"""Fields of a body that hold the prompt; the first field found counts."""

HEAD_NAMES: Final = ("tools", "system", "instructions")
"""Fields of a body that come before its messages, in this order.  In Anthropic's requests and in responses
the system prompt is a field of its own, of which servers make a system message."""

_SALT_NAMES: Final = ("cache_salt", "extra_key", "lora_path")
"""Fields that keep requests of one model from sharing KV, by their names in vLLM and SGLang."""

NAMESPACE_NAMES: Final = ("model", *_SALT_NAMES)

# Tokens of an image or a sound of any size: LLaVA's 24 x 24 patches; other models take 250 to 2,000.
IMAGE_TOKENS: Final = 576

# An image, sound or video by its address, in the `repr` of a part of a message, or any base64 text.
_MEDIA: Final = re.compile(r"'(?:image|audio|video)_url': (?:\{[^{}]*\}|'[^']*')|[A-Za-z0-9+/=]{1024,}")
_Made = TypeVar("_Made")

Loads = Callable[[bytes], Any]  # parses JSON
Encode = Callable[[str], list[int]]  # turns text into token ids


def excerpt_of(value: object) -> str:
    return excerpt(repr(value))


def excerpt(text: str) -> str:
    """Return `text`, cut to `EXCERPT_BYTES` of UTF-8; also for messages that may quote input.

    Control characters are escaped as in `repr`, because a terminal would obey those in someone else's log.
    """
    start = text[: EXCERPT_BYTES + 1]  # a character has at least one byte
    shown = "".join([each if each.isprintable() or each.isspace() else repr(each)[1:-1] for each in start])
    raw = shown.encode("utf-8", "backslashreplace")
    if len(raw) <= EXCERPT_BYTES:
        return raw.decode("utf-8")
    return raw[: EXCERPT_BYTES - 3].decode("utf-8", "ignore") + "..."


# -- lines ----------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A line of a file that is not blank."""

    number: int  # from 1; blank lines count, too
    content: bytes
    end: bytes  # `\\n`, `\\r\\n` or empty


def lines_of(stream: Iterable[bytes]) -> Iterator[Line]:
    for number, raw in enumerate(stream, start=1):
        content, end = split_end(raw.removeprefix(BOM) if number == 1 else raw)
        if content.strip():
            yield Line(number, content, end)


def split_end(raw: bytes) -> tuple[bytes, bytes]:
    for end in (b"\r\n", b"\n"):
        if raw.endswith(end):
            return raw[: -len(end)], end
    return raw, b""


def new_ends(bare: int, last: int, last_line: bytes, files: int = 1) -> dict[int, bytes]:
    """Return new ends, by index, of lines whose end changes, so that the last line is the one without.

    The line `bare` had no end (-1: no line); the line `last` is written last.  Several `files` may be
    concatenated, so every line gets an end.
    """
    end = split_end(last_line)[1]
    if files > 1:
        return {bare: end or b"\n"}
    return {} if bare in (-1, last) else {bare: end, last: b""}


def with_end(line: bytes, end: bytes | None) -> bytes:
    """Return a line with another end; None for its own."""
    return line if end is None else split_end(line)[0] + end


# -- requests -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchRequest:
    custom_id: str  # "" for none
    namespace: str  # model and other fields that keep requests from sharing KV, such as `cache_salt`
    prompt: str | list[int]
    system: str = ""  # text of a chat up to the last of its leading system messages; "" for token ids
    fault: str = ""  # why the line is not understood; the prompt is then the whole line


def parse_request(line: bytes, loads: Loads) -> BatchRequest:
    """Parse the request of one line; `WorkloadError` names the fault."""
    return _parsed(line, loads, request_of)


def id_of(line: bytes, loads: Loads) -> object:
    """Return the custom_id of a line, None for none; `WorkloadError` if the line is not JSON."""
    return _parsed(line, loads, lambda row: (row.get("custom_id") or None) if isinstance(row, dict) else None)


def any_request(line: Line, loads: Loads, encode: Encode | None) -> tuple[BatchRequest, bytes]:
    """Return the request of a line and its key; a line that is not understood gets one that shares nothing.

    `WorkloadError` or `InvalidKey` if such a line has no custom_id, by which its result could be found.
    """
    try:
        request = parse_request(line.content, loads)
        return request, key_of(request.prompt, encode)
    except (WorkloadError, InvalidKey) as error:
        custom_id = id_of(line.content, loads)
        if not isinstance(custom_id, str):
            raise
        text = line.content.decode("utf-8", "replace")
        request = BatchRequest(custom_id, f"\0{line.number}", text, fault=excerpt(str(error)))
        return request, key_of(text, None)


def _parsed(line: bytes, loads: Loads, make: Callable[[Any], _Made]) -> _Made:
    try:
        return make(loads(line))
    except WorkloadError:
        raise
    except ValueError as error:
        raise WorkloadError(f"not valid JSON: {json_fault(error)}") from None
    except RecursionError:
        raise WorkloadError("nested too deeply") from None


def json_fault(error: Exception) -> str:
    """What is wrong with a line that is no JSON, and where."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, column {error.colno}"
    return excerpt(str(error))


def request_of(row: Any) -> BatchRequest:
    """Make the request of a parsed line; `WorkloadError` names the fault."""
    if not isinstance(row, dict):
        raise WorkloadError(f"a JSON {type(row).__name__}, not an object")
    custom_id = row.get("custom_id", "")
    if not isinstance(custom_id, str):
        raise WorkloadError(f"custom_id is {excerpt_of(custom_id)}, not a string")
    body = row["body"] if "body" in row else params_or_row(row)
    if not isinstance(body, dict):
        raise WorkloadError("body is not an object")
    prompt = _prompt_of(body)
    if not prompt:
        raise WorkloadError("the prompt is empty")
    system = _system_of(body) if isinstance(prompt, str) else ""
    return BatchRequest(custom_id, namespace_of(body), prompt, system)


def params_or_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return the `params` of a line if they hold its request, not beside a prompt; else the line."""
    params = row.get("params")
    return params if isinstance(params, dict) and not any(name in row for name in PROMPT_NAMES) else row


def namespace_of(body: dict[str, Any]) -> str:
    """Return a body's namespace: equal for one model, cache salt, extra key and LoRA adapter."""
    model = body.get("model", "")
    model = model if isinstance(model, str) else repr(model)
    salts = [body.get(name) or "" for name in _SALT_NAMES]
    return repr([model, *salts]) if any(salts) else model


def _prompt_of(body: dict[str, Any]) -> str | list[int]:
    for name in PROMPT_NAMES:
        value = body.get(name)
        if value is not None:  # loggers write null for what is not there
            is_input = name == "input" and isinstance(value, list) and value and isinstance(value[0], dict)
            if name == "messages" or is_input:
                return _head(body) + _chat(value)
            plain = _plain(value, name)
            return _head(body) + plain if isinstance(plain, str) else plain
    raise WorkloadError("body has none of messages, prompt, input")


def _head(body: dict[str, Any]) -> str:
    """Return what templates put before the messages: tools, then system prompts as messages."""
    tools, *systems = (body.get(name) for name in HEAD_NAMES)
    parts = [tools if isinstance(tools, str) else repr(tools)] if tools else []
    told = [system for system in systems if system and isinstance(system, (str, list))]  # else a log's field
    parts += [_message({"role": "system", "content": system}) for system in told]
    return "".join(f"{part}\n" for part in parts)


def _system_of(body: dict[str, Any]) -> str:
    messages = body.get("messages", body.get("input"))
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return _head(body)
    leading = list(takewhile(lambda message: message.get("role") in SYSTEM_ROLES, messages))
    return _head(body) + (_chat(leading) if leading else "")


def _chat(messages: Any) -> str:
    if not isinstance(messages, list) or not messages:
        raise WorkloadError("messages is not a list of messages")
    parts = []
    for message in messages:
        if not isinstance(message, dict):
            raise WorkloadError(f"a message is {excerpt_of(message)}, not an object")
        is_message = "role" in message or "content" in message  # else a call, or its result, of a response
        parts.append(_message(message) if is_message else _content([message]))
        if message.get("tool_calls"):
            parts.append(repr(message["tool_calls"]))
    return "\n".join(parts)


def _message(message: dict[str, Any]) -> str:
    return f"<{message.get('role', '')}>\n{_content(message.get('content'))}"


def _content(content: Any) -> str:
    """Return the text of a message; other parts are included as their `repr`, media as a digest."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return repr(content)
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "".join(
        text if isinstance(text, str) else _MEDIA.sub(_digest, repr(part))
        for text, part in zip(texts, content, strict=True)
    )


def _digest(media: re.Match[str]) -> str:
    """Return a text for an image or a sound, equal for equal ones, as long as an image counts."""
    digest = blake2b(media[0].encode()).hexdigest()
    return digest * (IMAGE_TOKENS * SYMBOL_BYTES // len(digest))


def _plain(value: Any, name: str) -> str | list[int]:
    """Return a string or token ids; of a list of either, joins them."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if value and isinstance(value[0], int):
            return value  # `pack` refuses invalid token ids later
        if all(isinstance(part, str) for part in value):
            return "\n".join(value)
        if all(isinstance(part, list) for part in value):
            return [token for part in value for token in part]
    raise WorkloadError(f"{name} is neither text nor token ids")


def kind_of(prompt: str | list[int]) -> str:
    """Return a name that keeps text and token ids apart: their equal symbols mean different things."""
    return "" if isinstance(prompt, str) else "ids"


def text_symbols(text: str) -> bytes:
    """Make a key of text without a tokenizer: four UTF-8 bytes per symbol, about one token of English.

    Two texts share a quarter as many symbols as leading bytes, rounded down.
    """
    raw = text.encode("utf-8", "surrogatepass")
    return raw + b"\0" * (-len(raw) % SYMBOL_BYTES)


def key_of(prompt: str | list[int], encode: Encode | None) -> bytes:
    """Return the packed key of a prompt, `text_symbols` if there is no `encode`; `InvalidKey` as `pack`."""
    if not isinstance(prompt, str):
        return pack(prompt)
    if encode is None:
        return text_symbols(prompt)
    whole = prompt.encode("utf-8", "replace").decode()  # tokenizers refuse half a pair of surrogates
    return pack(encode(whole) or [0])


# -- order files ----------------------------------------------------------------------------------------


def order_line(number: int, id_text: str) -> bytes:
    """Return a line of an order file; `id_text` is the custom_id as JSON in ASCII."""
    return f"[{number}, {id_text}]\n".encode("ascii")


def read_order(lines: Iterable[Line], loads: Loads) -> tuple[list[int], list[str]]:
    """Read an order file: line numbers and custom_ids of the requests; `WorkloadError` names a bad line."""
    numbers: list[int] = []
    ids: list[str] = []
    for at, content, _ in lines:
        try:
            number, custom_id = loads(content)
            if type(number) is not int or number < 1 or not isinstance(custom_id, str):
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise WorkloadError(f"line {at}: not a line of an order file") from None
        numbers.append(number)
        ids.append(custom_id)
    if len(set(numbers)) < len(numbers):
        raise WorkloadError("not an order file: a line number occurs twice")
    return numbers, ids


def repeated_id_error(first: int, second: int, custom_id: str) -> WorkloadError:
    """Make the error for two requests with one custom_id, whose results could not be told apart."""
    return WorkloadError(
        f"line {second}: custom_id {excerpt_of(custom_id)} is that of line {first}, too: "
        "their results could not be told apart"
    )


def check_ids(requests: Iterable[tuple[int, str]]) -> None:
    """Raise `WorkloadError` if two of these (line number, custom_id) have one id, other than ""."""
    seen: dict[str, int] = {}
    for number, custom_id in requests:
        if custom_id and seen.setdefault(custom_id, number) != number:
            raise repeated_id_error(seen[custom_id], number, custom_id)


# -- results --------------------------------------------------------------------------------------------


def match_results(
    found: dict[int, object], lines: list[int], numbers: list[int], ids: list[str], by_position: bool = False
) -> tuple[dict[int, int], list[str]]:
    """Match results with requests by custom_id; by position if neither results nor requests have one.

    Args:
        found: custom_id of each result, from `id_of`, by the number of its line.
        lines: numbers of all lines of the results, also of those that are not JSON.
        numbers, ids: line number and custom_id of each request in the order it ran, from `read_order`.
        by_position: whether to match by position also if requests have ids and no result has one.  Otherwise
            that is a `WorkloadError`, because runners may change the order.

    Returns line numbers in the batch file, by line numbers of results; and a message for each result, then
    each request, without a match.  `WorkloadError` also if results without ids are not as many as requests.
    """
    if not found:
        return {}, []
    if any(custom_id is not None for custom_id in found.values()):
        return _by_id(found, numbers, ids)
    if any(ids) and not by_position:
        raise WorkloadError(
            "no result has a custom_id, though the requests have: --by-position takes the results in the"
            " order of the reordered batch"
        )
    if len(lines) != len(numbers):
        counts = f"{len(lines)} results without custom_id cannot be matched to {len(numbers)} requests"
        raise WorkloadError(counts)
    return {at: number for at, number in zip(lines, numbers, strict=True) if at in found}, []


def _by_id(found: dict[int, object], numbers: list[int], ids: list[str]) -> tuple[dict[int, int], list[str]]:
    due: dict[object, list[int]] = {}
    for number, custom_id in zip(numbers, ids, strict=True):
        due.setdefault(custom_id, []).append(number)
    placed: dict[int, int] = {}
    faults: list[str] = []
    first: dict[object, int] = {}
    for at, answered in found.items():
        if fault := _fault_of(answered, due, first):
            faults.append(f"line {at}: {fault}")
        else:
            first[answered] = at
            (placed[at],) = due[answered]
    unanswered = sorted((lines, str(custom_id)) for custom_id, lines in due.items() if custom_id not in first)
    return placed, faults + [_missing(*each) for each in unanswered]


def _fault_of(custom_id: object, due: dict[object, list[int]], first: dict[object, int]) -> str:
    """Return why a result has no match, "" if it has one."""
    if custom_id is None:
        return "has no custom_id"
    shown = excerpt_of(custom_id)
    if not isinstance(custom_id, str):
        return f"custom_id is {shown}, not a string"
    if custom_id not in due:
        return f"no request has custom_id {shown}"
    if len(due[custom_id]) > 1:
        return f"custom_id {shown} is that of lines {_listed(due[custom_id])}"
    if custom_id in first:
        return f"custom_id {shown} again; the first, of line {first[custom_id]}, is kept"
    return ""


def _missing(lines: list[int], custom_id: str) -> str:
    fault = f"no result for custom_id {excerpt_of(custom_id)}"
    if not custom_id:
        fault = "without a custom_id no result can be found"
    elif len(lines) > 1:
        fault = f"the same custom_id {excerpt_of(custom_id)}, no result can be told apart"
    return f"request of line {_listed(lines)}: {fault}"


def _listed(lines: list[int]) -> str:
    return ", ".join(map(str, lines[:3])) + (f" and {len(lines) - 3:,} more" if len(lines) > 3 else "")
