"""Requests of OpenAI-style and Anthropic-style batch files: what of a line the cache sees.

A line is `{"custom_id": ..., "method": ..., "url": ..., "body": {...}}`, or Anthropic's `{"custom_id": ...,
"params": {...}}`.  The body belongs to one of chat completions and messages (`messages`), responses and
embeddings (`input`), completions (`prompt`).  Only the head of the prompt's text matters here, not how a
model's template dresses it: whatever two requests have in common at the start, their texts here have in
common.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from peek.errors import WorkloadError
from peek.offline.formats.echo import clipped, echoed
from peek.trie.keys import pack

SYMBOL_BYTES: Final = 4

SYSTEM_ROLES: Final = ("system", "developer")

PROMPT_NAMES: Final = ("messages", "prompt", "input", "prompt_token_ids", "tokens")
"""What holds the prompt of a body, in this order."""

HEAD_NAMES: Final = ("tools", "system", "instructions")
"""What of a body stands before its messages, in this order.  A system prompt is a field of its own in
Anthropic's requests and in responses; servers make a system message of it."""

_SALT_NAMES: Final = ("cache_salt", "extra_key", "lora_path")
"""What keeps requests of one model from sharing cache, as vLLM and SGLang name it."""

NAMESPACE_NAMES: Final = ("model", *_SALT_NAMES)


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One line, understood.

    Attributes:
        custom_id: the line's, "" where it has none.
        namespace: the model, and what else keeps requests apart (`cache_salt`); different ones share nothing.
        prompt: text, or token ids.
        system: what of the text comes before the first message that is not the system's, if it is a chat.
    """

    custom_id: str
    namespace: str
    prompt: str | list[int]
    system: str = ""


def parse_request(line: bytes, loads: Callable[[bytes], Any]) -> BatchRequest:
    """Read one line; `loads` parses JSON.  `WorkloadError` says what is wrong, in a few words."""
    try:
        return request_of(loads(line))
    except ValueError as error:
        if isinstance(error, WorkloadError):
            raise
        raise WorkloadError(f"not valid JSON: {clipped(str(error))}") from None
    except RecursionError:
        raise WorkloadError("nested too deeply") from None


def request_of(row: Any) -> BatchRequest:
    """As `parse_request`, of a line that is parsed."""
    if not isinstance(row, dict):
        raise WorkloadError(f"a JSON {type(row).__name__}, not an object")
    custom_id = row.get("custom_id", "")
    if not isinstance(custom_id, str):
        raise WorkloadError(f"custom_id is {echoed(custom_id)}, not a string")
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
    """What templates put before the messages: tools, then system prompts as the messages that they become."""
    tools, *systems = (body.get(name) for name in HEAD_NAMES)
    parts = [tools if isinstance(tools, str) else repr(tools)] if tools else []
    parts += [
        _message({"role": "system", "content": system})
        for system in systems
        if system and isinstance(system, (str, list))  # an object is nobody's prompt, but a log's own field
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
            raise WorkloadError(f"a message is {echoed(message)}, not an object")
        parts.append(_message(message))
        if message.get("tool_calls"):
            parts.append(repr(message["tool_calls"]))
    return "\n".join(parts)


def _message(message: dict[str, Any]) -> str:
    return f"<{message.get('role', '')}>\n{_content(message.get('content'))}"


def _content(content: Any) -> str:
    """Text of a message; parts that are no text (images) stand as they are written."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return repr(content)
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "".join(text if isinstance(text, str) else repr(p) for text, p in zip(texts, content, strict=True))


def _plain(value: Any, name: str) -> str | list[int]:
    """A string, token ids, or a list of either, one behind the other."""
    if isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int)):
        return value  # what is no token id among them shows when they are packed
    if isinstance(value, list):
        if all(isinstance(part, str) for part in value):
            return "\n".join(value)
        if all(isinstance(part, list) for part in value):
            return [token for part in value for token in part]
    raise WorkloadError(f"{name} is neither text nor token ids")


def kind_of(prompt: str | list[int]) -> str:
    """What keeps token ids from sharing with text, where the same number means something else."""
    return "" if isinstance(prompt, str) else "ids"


def text_symbols(text: str) -> bytes:
    """Text as a key without a tokenizer: its UTF-8 bytes, four to a symbol, about one token of English.

    Two texts share as many symbols as they share bytes, divided by four and rounded down.
    """
    raw = text.encode("utf-8", "surrogatepass")
    return raw + b"\0" * (-len(raw) % SYMBOL_BYTES)


def key_of(prompt: str | list[int], encode: Callable[[str], list[int]] | None) -> bytes:
    """The packed key of a prompt; `encode` turns text into token ids, None: `text_symbols`.

    `InvalidKey` for token ids outside int32.
    """
    if isinstance(prompt, str):
        return text_symbols(prompt) if encode is None else pack(encode(prompt) or [0])
    return pack(prompt)
