"""Keys of prompts for routers: made of token ids if the host has them, else of the bytes that a gateway sees.

A symbol stands for a block and everything before it.  A block is 16 tokens, or 64 bytes of text, which is
about the same.  Equal prefixes have equal symbols.  Two symbols that are equal by chance (one pair of blocks
in 2^31) can send a request to a worse replica, but never change its answer.  Every process computes the same
symbols, so several routers may share one queue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from peek.errors import InvalidKey, a_kind
from peek.trie.keys import pack

BLOCK_TOKENS: Final = 16  # tokens per symbol: `FleetConfig.unit_tokens` of a fleet whose keys are made here
BLOCK_BYTES: Final = 64  # bytes per symbol: 16 tokens as int32, or of text, at four bytes a token
LONGEST_NAMESPACE: Final = 256  # characters; a longer one, which any client can send, becomes a digest
_PREAMBLE: Final = ("chat_template", "chat_template_kwargs", "documents", "prompt")  # a template, by its id
_NAMESPACE: Final = ("model", "lora", "cache_salt")
_NOT_OF_A_TOOL: Final = ("content", "cache_control")  # a mark that clients move to the last part at each turn


class PromptKey(NamedTuple):
    key: bytes
    num_tokens: int
    namespace: str


_key: Any = PromptKey  # assigned, because a named tuple loses its docstring when compiled
_key.__doc__ = """What a `PendingRequest` is made of.

Attributes:
    key: packed symbols, at least one.
    num_tokens: length of the prompt, estimated where it is text.
    namespace: what keeps it from sharing with others.
"""


def token_key(token_ids: object, namespace: str = "") -> PromptKey:
    """Make the key of token ids, in any form that a key may have.  O(n), about 1 us a block.

    Tokens after the last whole block are left out, unless there is no whole block.  `InvalidKey`.
    """
    data = pack(token_ids)
    return _chained(data, len(data) >> 2, namespace)


def text_key(text: str | bytes, namespace: str = "") -> PromptKey:
    """Make the key of a text, by its UTF-8 bytes.  Cost, and what is left out, as in `token_key`."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return _chained(data, (len(data) + 3) >> 2, namespace)


def openai_key(request: Mapping[str, object]) -> PromptKey:
    """Make the key of an OpenAI or Anthropic request's body, of any kind that has a prompt.  O(bytes).

    Token ids (`prompt_token_ids`, or `prompt` or `input` as a list of ints) are used if there are any.
    Otherwise the text is joined in the order of chat templates: system prompt, tools, other messages.  The
    namespace is made of `model`, `lora` and `cache_salt`.  Each part that is no text counts by its digest.

    Raises `InvalidKey` if there is no prompt, or a part of it is no JSON.
    """
    namespace = "\0".join([str(request.get(name) or "") for name in _NAMESPACE]).rstrip("\0")
    if len(namespace) > LONGEST_NAMESPACE:
        namespace = _digest(namespace)
    for name in ("prompt_token_ids", "prompt", "input"):
        tokens = _token_ids(request.get(name))
        if tokens is not None:
            return token_key(tokens, namespace)
    prompt = request.get("prompt")
    messages = request.get("input") if request.get("messages") is None else request["messages"]
    if prompt is not None and (messages is None or not isinstance(prompt, Mapping)):
        return text_key("".join(_texts(prompt)), namespace)
    if messages is None:
        raise InvalidKey(f"a request with the fields {[*request]} has no prompt, messages or input")
    return text_key(_conversation(request, messages), namespace)


def _chained(data: bytes, num_tokens: int, namespace: str) -> PromptKey:
    blocks = max(1, len(data) // BLOCK_BYTES)
    symbols: list[int] = []
    state = b""
    for index in range(blocks):
        block = data[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]
        state = blake2b(state + block, digest_size=8).digest()
        symbols.append(int.from_bytes(state[:4], "little") >> 1)
    return PromptKey(pack(symbols), max(num_tokens, blocks * BLOCK_TOKENS), namespace)


def _token_ids(prompt: object) -> list[int] | None:
    """The ids of a prompt, or of a batch's prompts joined; None if there are none or it is text."""
    if not isinstance(prompt, (list, tuple)) or not prompt:
        return None
    tokens: list[int] = []
    for each in prompt:
        for token in each if isinstance(each, (list, tuple)) else (each,):
            if type(token) is not int:
                return None
            tokens.append(token)
    return tokens or None


def _conversation(request: Mapping[str, object], messages: object) -> str:
    """All parts of a request that a chat template puts into the prompt, in its order."""
    turns = messages if isinstance(messages, (list, tuple)) else [messages]
    parts: list[str] = [_as_json(request[name]) for name in _PREAMBLE if request.get(name)]
    for name in ("system", "instructions"):  # a field of its own in Anthropic and Responses requests
        if request.get(name):
            parts.extend(_texts(request[name]))
    first = 0
    while first < len(turns) and _role(turns[first]) in ("system", "developer"):
        parts.extend(_turn(turns[first]))
        first += 1
    if request.get("tools"):
        parts.append(_as_json(request["tools"]))
    for turn in turns[first:]:
        parts.extend(_turn(turn))
    return "\n".join(parts)


def _role(turn: object) -> str:
    return str(turn.get("role", "")) if isinstance(turn, Mapping) else ""


def _turn(turn: object) -> list[str]:
    """Role and content of a message, and its other fields."""
    if not isinstance(turn, Mapping):
        return _texts(turn)
    rest = {name: value for name, value in turn.items() if name not in ("role", "content") and value}
    parts = [_role(turn), *_texts(turn.get("content"))]
    if rest:
        parts.append(_as_json(rest))
    return parts


def _texts(content: object) -> list[str]:
    """The texts of a content and its parts, including Anthropic's tool calls and their results."""
    texts: list[str] = []
    for part in _parts(content):
        if isinstance(part, Mapping) and part.get("type") in ("tool_use", "tool_result"):
            rest = {name: value for name, value in part.items() if name not in _NOT_OF_A_TOOL}
            texts.extend([_as_json(rest), *[_text(each) for each in _parts(part.get("content"))]])
        else:
            texts.append(_text(part))
    return texts


def _parts(content: object) -> list[object]:
    if content is None:
        return []
    return list(content) if isinstance(content, (list, tuple)) else [content]


def _text(part: object) -> str:
    """The text of a part, or a digest of another part; `InvalidKey` for a number, as there may be many."""
    if isinstance(part, (int, float)):
        raise InvalidKey(f"a part of the prompt is {a_kind(part)}, not a text")
    text = part.get("text") if isinstance(part, Mapping) else part
    return text if isinstance(text, str) else _digest(_as_json(part))


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _as_json(value: object) -> str:
    """JSON that is the same for equal values, whatever the order of their fields; `InvalidKey` if none."""
    try:
        return json.dumps(value, sort_keys=True, default=repr)
    except (TypeError, ValueError, RecursionError) as error:  # names of several types, a value in itself
        raise InvalidKey(f"a part of the request is no JSON: {error}") from None
