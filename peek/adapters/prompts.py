"""Finds the prompt of a call, for routers and gateways in front of an engine.

Of a long prompt `beginning_of` takes only the beginning, because a key of the whole prompt would block a
router and all other calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from operator import is_
from typing import Any, Final, NamedTuple

from peek.errors import InvalidKey
from peek.fleet.prompt_keys import PromptKey, openai_key, text_key, token_key

FIELDS: Final = (
    "prompt_token_ids",
    "prompt",
    "messages",
    "input",
    "system",
    "instructions",
    "tools",
    "model",
    "lora",
    "cache_salt",
    "documents",
    "chat_template",
    "chat_template_kwargs",
)
"""Attributes that are read from a request object: an OpenAI request of vLLM or of `ray.serve.llm`."""

PARAMETERS: Final = ("vllm_xargs", "custom_params")
"""Fields of a body that may have `peek`'s own parameters: in vLLM, in SGLang."""

TOKEN_KWARGS: Final = ("prompt_token_ids", "request_token_ids")
MOST_TOKENS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")

ROOM: Final = 2**19
"""Bytes of a prompt that its key is made of; a token id counts as four.  They take some 10 ms."""

MOST_PARTS: Final = 2**13
"""Most parts of a call that are looked at, as any client can send millions of empty ones: some 100 ms."""

TEXTS: Final = (
    "documents",
    "system",
    "instructions",
    "tools",
    "prompt_token_ids",
    "prompt",
    "messages",
    "input",
    "content",
    "text",
    "reasoning_content",
    "tool_calls",
    "function",
    "arguments",
    "description",
    "output",
)
"""Fields of a body, a message or its parts that may be long and count as text, in the order of the prompt."""


class Prompt(NamedTuple):
    """The prompt of a call, and what else a router needs of it.

    Attributes:
        most_tokens: most tokens that the answer may have; 0 if the call does not say.
        parameters: the body's own parameters, which may name a session.
    """

    key: PromptKey
    most_tokens: int
    parameters: object = None


def prompt_of(args: Sequence[Any], kwargs: Mapping[str, Any], namespace: str = "") -> Prompt | None:
    """Find the prompt of a call; None if the call shows none.

    The keywords `prompt_token_ids` and `request_token_ids` are tried first, then each argument.  An argument
    may be the body of an OpenAI request (a mapping or an object), a text, or token ids.  `namespace` is added
    to the prompt's own namespace.
    """
    for name in TOKEN_KWARGS:
        if name in kwargs:
            return _prompt(kwargs[name], namespace)
    for argument in (*args, *kwargs.values()):
        found = _prompt(argument, namespace)
        if found is not None:
            return found
    return None


def _prompt(argument: Any, namespace: str) -> Prompt | None:
    try:
        if isinstance(argument, (str, bytes)):
            return Prompt(text_key(argument, namespace), 0)
        if isinstance(argument, (list, tuple)) and argument and type(argument[0]) is int:
            return Prompt(token_key(argument, namespace), 0)
        body = argument if isinstance(argument, Mapping) else _fields(argument)
        key = openai_key(body)
    except InvalidKey:
        return None
    if namespace:
        key = key._replace(namespace=f"{key.namespace}\0{namespace}")
    get = argument.get if isinstance(argument, Mapping) else lambda name: getattr(argument, name, None)
    most = [number for number in map(get, MOST_TOKENS) if type(number) is int and number > 0]
    stated = [found for found in map(get, PARAMETERS) if found]
    return Prompt(key, most[0] if most else 0, stated[0] if stated else None)


def _fields(request: Any) -> dict[str, Any]:
    found = {name: getattr(request, name, None) for name in FIELDS}
    if isinstance(found["messages"], (list, tuple)):
        found["messages"] = [
            message.model_dump(exclude_none=True) if hasattr(message, "model_dump") else message
            for message in found["messages"]
        ]
    return {name: value for name, value in found.items() if value is not None and not callable(value)}


# -- the beginning of a long prompt ----------------------------------------------------------------------


def beginning_of(args: Sequence[Any], kwargs: Mapping[str, Any], namespace: str = "") -> Prompt | None:
    """`prompt_of` with a key of only the first `ROOM` bytes; of the rest only the length counts."""
    looks = iter(range(MOST_PARTS))
    cut = {name: beginning(each, ROOM, looks) for name, each in (*enumerate(args), *kwargs.items())}
    named = {name: cut[name][0] for name in kwargs}
    found = prompt_of([cut[place][0] for place in range(len(args))], named, namespace)
    left_out = max((size - ROOM for _, size in cut.values()), default=0)
    if found is None or left_out <= 0:
        return found
    return found._replace(key=found.key._replace(num_tokens=found.key.num_tokens + left_out // 4))


def beginning(value: Any, room: int = ROOM, looks: Iterator[object] | None = None) -> tuple[Any, int]:
    """Return the first `room` bytes of a prompt, or `value` itself if it is short, and the whole size.

    Each part that is looked at uses up one of `looks`, by default `MOST_PARTS`.  Once there are none left,
    further parts and their sizes are left out.
    """
    looks = iter(range(MOST_PARTS)) if looks is None else looks
    if isinstance(value, (str, bytes)):
        return value[:room], len(value)
    if isinstance(value, (list, tuple)):
        if value and type(value[0]) is int:
            size = 4 * len(value)
            return (value[: room // 4] if size > room else value), size
        parts, size = [], 0
        for each, _ in zip(value, looks, strict=False):
            part, length = beginning(each, max(0, room - size), looks)
            if size <= room:
                parts.append(part)
            size += length
        is_whole = len(parts) == len(value) and all(map(is_, parts, value))
        return (value if is_whole else parts), size
    held = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    fields: dict[str, Any] = {name: None for name in TEXTS if name in held}
    size = 0
    for name, _ in zip(fields, looks, strict=False):
        fields[name], length = beginning(held[name], max(0, room - size), looks)
        size += length
    if all(text is held[name] for name, text in fields.items()):
        return value, size
    if isinstance(value, Mapping):
        return {**value, **fields}, size
    cut = copy(value)
    vars(cut).update(fields)
    return cut, size
