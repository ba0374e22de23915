"""Batch files as bytes: lines, the requests and results in them, and order files.  Opens no file.

**Lines** keep their bytes.  A file may begin with a byte order mark, end its lines in `\\n` or `\\r\\n`, and
leave out the last end.  The mark belongs to no line and goes.  The missing end belongs to the file: when the
line without an end moves away from the bottom, it swaps ends with the line that comes to stand there.  Moved
back by the same rule, the file is what it was, byte for byte.

**Requests** are OpenAI-style, `{"custom_id": ..., "method": ..., "url": ..., "body": {...}}`, or Anthropic's,
`{"custom_id": ..., "params": {...}}`.  The body is one of chat completions and messages (`messages`),
responses and embeddings (`input`), completions (`prompt`).  Templates are not applied: whatever two requests
have in common at the start, their texts here have in common.

**An order file** has one line per request, in the order of the output: a JSON list of the line number in the
batch file and the custom_id, "" where it has none.

**Results** are matched with requests by custom_id, in whatever order they come.  A result that could belong
to two requests, or is not the only one of its request, is left out and named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, NamedTuple

from peek.errors import WorkloadError
from peek.trie.keys import pack

BOM: Final = b"\xef\xbb\xbf"

SYMBOL_BYTES: Final = 4

EXCERPT_BYTES: Final = 200
"""Most bytes of user content in one message, as UTF-8: enough to find it, never a whole prompt."""

SYSTEM_ROLES: Final = ("system", "developer")

PROMPT_NAMES: Final = ("messages", "prompt", "input", "prompt_token_ids", "tokens")
"""Fields of a body that hold the prompt; the first one found counts."""

HEAD_NAMES: Final = ("tools", "system", "instructions")
"""Fields of a body that stand before its messages, in this order.  A system prompt is a field of its own in
Anthropic's requests and in responses; servers make a system message of it."""

_SALT_NAMES: Final = ("cache_salt", "extra_key", "lora_path")
"""What keeps requests of one model from sharing cache, as vLLM and SGLang name it."""

NAMESPACE_NAMES: Final = ("model", *_SALT_NAMES)

Loads = Callable[[bytes], Any]
"""Parses JSON."""

Encode = Callable[[str], list[int]]
"""Turns text into token ids."""

# -- excerpts of user content in messages ---------------------------------------------------------------


def excerpt_of(value: object) -> str:
    """`repr(value)`, cut to `EXCERPT_BYTES`."""
    return excerpt(repr(value))


def excerpt(text: str) -> str:
    """`text`, cut to `EXCERPT_BYTES`; also for messages of other libraries, which may quote anything."""
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= EXCERPT_BYTES:
        return raw.decode("utf-8")
    return raw[: EXCERPT_BYTES - 3].decode("utf-8", "ignore") + "..."


# -- lines ----------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A line that is not blank.

    Attributes:
        number: from 1; blank lines count.
        content: without its end.
        end: `\\n`, `\\r\\n`, or nothing.
    """

    number: int
    content: bytes
    end: bytes


def lines_of(stream: Iterable[bytes]) -> Iterator[Line]:
    """Yield the lines of a file that are not blank.  Memory: one line."""
    for number, raw in enumerate(stream, start=1):
        content, end = split_end(raw.removeprefix(BOM) if number == 1 else raw)
        if content.strip():
            yield Line(number, content, end)


def split_end(raw: bytes) -> tuple[bytes, bytes]:
    """Split a line into its content and its end."""
    for end in (b"\r\n", b"\n"):
        if raw.endswith(end):
            return raw[: -len(end)], end
    return raw, b""


@dataclass(frozen=True, slots=True)
class EndSwap:
    """Swaps the ends of two lines.

    Attributes:
        bare: index of the line without an end; -1: there is none.
        last: index of the line that comes last and gives its end away; -1: every line has an end.
        end: what the bare line gets.
    """

    bare: int = -1
    last: int = -1
    end: bytes = b""

    def apply(self, index: int, line: bytes) -> bytes:
        """Line `index` as it is to be written."""
        if index == self.bare:
            return line + self.end
        return split_end(line)[0] if index == self.last else line


def end_swap(bare: int, last: int, last_line: bytes, files: int = 1) -> EndSwap:
    """The swap for line `last` at the bottom.

    Of several files every line gets an end: they may be put one behind the other.
    """
    if files > 1:
        return EndSwap(bare, -1, split_end(last_line)[1] or b"\n")
    return EndSwap() if bare in (-1, last) else EndSwap(bare, last, split_end(last_line)[1])


# -- requests -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The request of one line.

    Attributes:
        custom_id: the line's, "" where it has none.
        namespace: the model, and what else keeps requests apart (`cache_salt`); different ones share nothing.
        prompt: text, or token ids.
        system: of a chat, the text before its first message that is not the system's.
    """

    custom_id: str
    namespace: str
    prompt: str | list[int]
    system: str = ""


def parse_request(line: bytes, loads: Loads) -> BatchRequest:
    """Read one line.  `WorkloadError` says what is wrong with it."""
    try:
        return request_of(loads(line))
    except ValueError as error:
        if isinstance(error, WorkloadError):
            raise
        raise WorkloadError(f"not valid JSON: {excerpt(str(error))}") from None
    except RecursionError:
        raise WorkloadError("nested too deeply") from None


def request_of(row: Any) -> BatchRequest:
    """As `parse_request`, of a line that is already parsed."""
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
    """The `params` of a line, if they hold its request (others are those of sampling); else the line."""
    params = row.get("params")
    return params if isinstance(params, dict) and not any(name in row for name in PROMPT_NAMES) else row


def namespace_of(body: dict[str, Any]) -> str:
    """Equal for requests that can share cache: of one model, and of one salt, extra key and LoRA adapter."""
    model = body.get("model", "")
    model = model if isinstance(model, str) else repr(model)
    salts = [body.get(name) or "" for name in _SALT_NAMES]
    return repr([model, *salts]) if any(salts) else model


def _prompt_of(body: dict[str, Any]) -> str | list[int]:
    for name in PROMPT_NAMES:
        if name in body:
            value = body[name]
            is_input = name == "input" and isinstance(value, list) and value and isinstance(value[0], dict)
            if name == "messages" or is_input:
                return _head(body) + _chat(value)
            plain = _plain(value, name)
            return _head(body) + plain if isinstance(plain, str) else plain
    raise WorkloadError("body has none of messages, prompt, input")


def _head(body: dict[str, Any]) -> str:
    """What templates put before the messages: tools, then system prompts as messages."""
    tools, *systems = (body.get(name) for name in HEAD_NAMES)
    parts = [tools if isinstance(tools, str) else repr(tools)] if tools else []
    parts += [
        _message({"role": "system", "content": system})
        for system in systems
        if system and isinstance(system, (str, list))  # an object is a log's own field, not a prompt
    ]
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
        parts.append(_message(message))
        if message.get("tool_calls"):
            parts.append(repr(message["tool_calls"]))
    return "\n".join(parts)


def _message(message: dict[str, Any]) -> str:
    return f"<{message.get('role', '')}>\n{_content(message.get('content'))}"


def _content(content: Any) -> str:
    """Text of a message; parts that are not text (images) stand as they are written."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return repr(content)
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "".join(text if isinstance(text, str) else repr(p) for text, p in zip(texts, content, strict=True))


def _plain(value: Any, name: str) -> str | list[int]:
    """A string, token ids, or a list of either, joined."""
    if isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int)):
        return value  # packing finds what is no token id among them
    if isinstance(value, list):
        if all(isinstance(part, str) for part in value):
            return "\n".join(value)
        if all(isinstance(part, list) for part in value):
            return [token for part in value for token in part]
    raise WorkloadError(f"{name} is neither text nor token ids")


def kind_of(prompt: str | list[int]) -> str:
    """Keeps token ids from sharing with text, where the same number means something else."""
    return "" if isinstance(prompt, str) else "ids"


def text_symbols(text: str) -> bytes:
    """Text as a key without a tokenizer: its UTF-8 bytes, four to a symbol, about one token of English.

    Two texts share as many symbols as they share bytes, divided by four and rounded down.
    """
    raw = text.encode("utf-8", "surrogatepass")
    return raw + b"\0" * (-len(raw) % SYMBOL_BYTES)


def key_of(prompt: str | list[int], encode: Encode | None) -> bytes:
    """The packed key of a prompt; without `encode`, text becomes `text_symbols`.

    `InvalidKey` for token ids outside int32.
    """
    if isinstance(prompt, str):
        return text_symbols(prompt) if encode is None else pack(encode(prompt) or [0])
    return pack(prompt)


# -- order files ----------------------------------------------------------------------------------------


def order_line(number: int, id_text: str) -> bytes:
    """A line of the file; `id_text` is `as_text(custom_id)`."""
    return f"[{number}, {id_text}]\n".encode("ascii")


def as_text(custom_id: str) -> str:
    """A custom_id as JSON, in ASCII."""
    return json.dumps(custom_id)


def read_order(lines: Iterable[Line], loads: Loads) -> tuple[list[int], list[str]]:
    """Numbers and custom_ids of the requests; `WorkloadError` names a line that does not belong there."""
    numbers: list[int] = []
    ids: list[str] = []
    for at, content, _ in lines:
        try:
            number, custom_id = loads(content)
        except (ValueError, TypeError, RecursionError):
            raise WorkloadError(f"line {at}: not a line of an order file") from None
        if type(number) is not int or number < 1 or not isinstance(custom_id, str):
            raise WorkloadError(f"line {at}: not a line of an order file")
        numbers.append(number)
        ids.append(custom_id)
    if len(set(numbers)) < len(numbers):
        raise WorkloadError("not an order file: a line number occurs twice")
    return numbers, ids


def repeated_id_error(first: int, second: int, custom_id: str) -> WorkloadError:
    """The error for two requests with one custom_id, whose results could not be told apart."""
    return WorkloadError(
        f"line {second}: custom_id {excerpt_of(custom_id)} is that of line {first}, too: "
        "their results could not be told apart"
    )


def find_repeated(numbers: Iterable[int], ids: Iterable[str]) -> tuple[int, int, str] | None:
    """The first two requests with one custom_id: their line numbers and the id; None if there are none."""
    seen: dict[str, int] = {}
    for number, custom_id in zip(numbers, ids, strict=True):
        if custom_id and seen.setdefault(custom_id, number) != number:
            return seen[custom_id], number, custom_id
    return None


# -- results --------------------------------------------------------------------------------------------


def result_ids(lines: Iterable[Line], loads: Loads) -> list[object]:
    """The custom_id of each result, None where it has none; `WorkloadError` names a line that is not JSON."""
    found: list[object] = []
    for index, line in enumerate(lines, start=1):
        try:
            row = loads(line.content)
        except (ValueError, RecursionError) as error:
            raise WorkloadError(f"result {index}: not valid JSON: {excerpt(str(error))}") from None
        found.append((row.get("custom_id") or None) if isinstance(row, dict) else None)
    return found


def match_results(
    found: Sequence[object], numbers: Sequence[int], ids: Sequence[str], by_position: bool = False
) -> tuple[dict[int, int], list[str]]:
    """Match results with requests; by position where neither results nor requests have a custom_id.

    Args:
        found: of each result, as `result_ids` gives them.
        numbers, ids: of each request in the order it ran, as `read_order` gives them.
        by_position: also where the requests have ids and no result has: runners seldom keep the order.

    Returns:
        The line number in the batch file by index of the result; and what has no match, in words, results
        first, then requests.

    Raises:
        WorkloadError: no result has a custom_id, and requests have; or there are not as many as requests.
    """
    if any(custom_id is not None for custom_id in found):
        return _by_id(found, numbers, ids)
    if found and any(ids) and not by_position:
        raise WorkloadError(
            "no result has a custom_id, though the requests have: --by-position takes the results in the"
            " order of the reordered batch"
        )
    if len(found) == len(numbers):
        return dict(enumerate(numbers)), []
    raise WorkloadError(
        f"{len(found)} results without custom_id cannot be matched to {len(numbers)} requests"
    )


def _by_id(
    found: Sequence[object], numbers: Sequence[int], ids: Sequence[str]
) -> tuple[dict[int, int], list[str]]:
    due: dict[str, list[int]] = {}
    for number, custom_id in zip(numbers, ids, strict=True):
        due.setdefault(custom_id, []).append(number)
    placed: dict[int, int] = {}
    faults: list[str] = []
    first: dict[str, int] = {}
    for index, answered in enumerate(found):
        fault = _fault_of(answered, due, first)
        if fault or not isinstance(answered, str):
            faults.append(f"result {index + 1}: {fault}")
        else:
            first[answered] = index
            (placed[index],) = due[answered]
    unanswered = sorted((lines, custom_id) for custom_id, lines in due.items() if custom_id not in first)
    return placed, faults + [_missing(*each) for each in unanswered]


def _fault_of(custom_id: object, due: dict[str, list[int]], first: dict[str, int]) -> str:
    """Why a result cannot be placed; "" if it can."""
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
        return f"custom_id {shown} again; the first is result {first[custom_id] + 1}, which is kept"
    return ""


def _missing(lines: list[int], custom_id: str) -> str:
    if custom_id == "":
        return f"line {_listed(lines)}: without a custom_id no result can be found"
    if len(lines) > 1:
        return (
            f"line {_listed(lines)}: the same custom_id {excerpt_of(custom_id)}, no result can be told apart"
        )
    return f"line {lines[0]}: no result for custom_id {excerpt_of(custom_id)}"


def _listed(lines: list[int]) -> str:
    """A few of the line numbers."""
    return ", ".join(map(str, lines[:3])) + (f" and {len(lines) - 3:,} more" if len(lines) > 3 else "")
