"""What of a user's content goes into a message: enough to find it, never a whole prompt."""

from __future__ import annotations

from typing import Final

ECHO_BYTES: Final = 200
"""Of user content in one message, as UTF-8."""


def echoed(value: object) -> str:
    """`repr(value)`, cut to `ECHO_BYTES`."""
    return clipped(repr(value))


def clipped(text: str) -> str:
    """`text`, cut to `ECHO_BYTES`; for messages of other libraries, which may quote anything."""
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= ECHO_BYTES:
        return raw.decode("utf-8")
    return raw[: ECHO_BYTES - 3].decode("utf-8", "ignore") + "..."
