"""Warm, pioneer, sibling: which requests pay for a prefix and which inherit it.

Lines 3-13 of Algorithm 2, which is also SGLang's in-batch rule (`schedule_policy.py`,
IN_BATCH_PREFIX_CACHING_*): of the requests with no cached prefix worth the name, the first with a
given head is the pioneer, the others are siblings that do better to wait for it.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from peek.request import PendingRequest

WARM: Final = 0
PIONEER: Final = 1
SIBLING: Final = 2

THETA: Final = 32
"""Tokens of the head by which pioneers are told apart (the paper's theta)."""

TAU: Final = 32
"""Cached tokens above which a request is warm (the paper's tau, SGLang's check threshold)."""


def assign_sections(queue: list[PendingRequest], tau: i64) -> None:
    """Write `section` of every request.  O(n).

    Args:
        queue: in arrival order; the first with a head is its pioneer.
        tau: a request with more cached tokens is WARM, unless a prefill under way is about to cache
            over tau tokens more: then its pioneer is running and it is a SIBLING.
    """
    seen: set[int] = set()
    for request in queue:
        head = request.head
        if request.coming_len > request.cached_len + tau:
            request.section = SIBLING
        elif request.cached_len > tau:
            request.section = WARM
        elif head == 0:
            request.section = PIONEER  # shorter than theta: there is nothing to inherit
        elif head in seen:
            request.section = SIBLING
        else:
            request.section = PIONEER
            seen.add(head)
