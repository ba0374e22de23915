"""One namespace string for what keeps equal tokens apart in SGLang's caches, and back again.

Where keys are made of pairs of neighbours (EAGLE), a prompt's symbols are its tokens from the second on, each
standing for the pair that it ends; the first token goes into the namespace.  Then prompts share as many
symbols as they share pairs.
"""

from __future__ import annotations

ALONE = "alone:"
"""Starts the namespace of a request that shares with nobody and hits only what its session lends it."""

OF_A_SESSION = -1
"""In place of a cache node: KV of streaming sessions, which nobody evicts."""


def namespace_of(extra_key: str | None, cache_salt: str | None) -> str:
    """The namespace of a request; empty for one with neither LoRA, extra key nor salt.

    An empty salt is none, as it is in SGLang's `RadixKey`.
    """
    if cache_salt:
        extra = "-" if extra_key is None else f"{len(extra_key)}:{extra_key}"
        return f"salt:{extra}{cache_salt}"
    return "" if extra_key is None else f"key:{extra_key}"


def owner_of(namespace: str) -> tuple[str | None, str | None]:
    """`(extra_key, cache_salt)` of a namespace made by `namespace_of`."""
    if namespace.startswith("key:"):
        return namespace[4:], None
    if not namespace.startswith("salt:"):
        return None, None
    rest = namespace[5:]
    if rest.startswith("-"):
        return None, rest[1:]
    length, _, rest = rest.partition(":")
    return rest[: int(length)], rest[int(length) :]


def behind(first: int, namespace: str) -> str:
    """The namespace of prompts of pairs that start with the token `first`."""
    return f"behind:{first}:{namespace}"


def first_of(namespace: str) -> tuple[int | None, str]:
    """The first token of a namespace made by `behind`, None in any other, and the namespace without it."""
    if not namespace.startswith("behind:"):
        return None, namespace
    first, _, rest = namespace[len("behind:") :].partition(":")
    return int(first), rest
