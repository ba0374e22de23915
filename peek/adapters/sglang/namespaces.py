"""One namespace string for what keeps equal tokens apart in SGLang's caches, and back again."""

from __future__ import annotations

ALONE = "alone:"
"""Starts the namespace of a request that can neither hit nor share."""


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
