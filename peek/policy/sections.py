"""Sections WARM, PIONEER and SIBLING: which requests pay for a prefix and which inherit it.

These are lines 3-13 of Algorithm 2, and also SGLang's in-batch rule (`schedule_policy.py`,
IN_BATCH_PREFIX_CACHING_*).  Among requests with at most tau cached tokens, the first with a given head is the
pioneer.  The others with that head are siblings, which had better wait for it.
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
        queue: requests in arrival order; the first request with a head is its pioneer.
        tau: cached tokens above which a request is WARM.  If a prefill under way will cache over tau tokens
            more than are cached, the request's pioneer is running and the request is a SIBLING.
    """
    seen: set[int] = set()
    for request in queue:
        head = request.head
        if request.coming_len > request.cached_len + tau:
            request.section = SIBLING
        elif request.cached_len > tau:
            request.section = WARM
        elif head == 0:
            request.section = PIONEER  # the key is shorter than theta: nothing to inherit
        elif head in seen:
            request.section = SIBLING
        else:
            request.section = PIONEER
            seen.add(head)
