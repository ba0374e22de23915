"""Finds the prompt of a call, for routers and gateways in front of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
"""Attributes that are read of a request object: an OpenAI request of vLLM or of `ray.serve.llm`."""

PARAMETERS: Final = ("vllm_xargs", "custom_params")
"""Fields of a body that may hold `peek`'s own parameters: in vLLM, in SGLang."""

TOKEN_KWARGS: Final = ("prompt_token_ids", "request_token_ids")
MOST_TOKENS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class Prompt(NamedTuple):
    """The prompt of a call, and what else a router needs of it.

    Attributes:
        most_tokens: most tokens that the answer may have, 0 if the call does not say.
        parameters: the body's own parameters, which may name a session.
    """

    key: PromptKey
    most_tokens: int
    parameters: object = None


def prompt_of(args: Sequence[Any], kwargs: Mapping[str, Any], namespace: str = "") -> Prompt | None:
    """Find the prompt of a call; None if the call shows none.

    The keywords `prompt_token_ids` and `request_token_ids` come first, then each argument.  An argument may
    be the body of an OpenAI request, as a mapping or an object, a text, or token ids.  `namespace` is added
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
