"""Recorded coding-agent sessions: which requests a session makes, and which blocks sessions share.

The archive is a tar file with one JSON object a session: its tools, its system prompt and its requests, each
with its time, its lengths and the numbers of its blocks.  It is not part of the project.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SESSION_BLOCK = 64
"""Tokens of a block of a session."""
LONGEST_INPUT = 32_768
"""Tokens; sessions that ask for more are left out."""


Session = dict[str, Any]


def sessions(archive: Path) -> Iterator[Session]:
    """All of them, in the archive's order."""
    with tarfile.open(archive) as packed:
        for member in packed:
            stored = packed.extractfile(member) if member.name.endswith(".json") else None
            if stored is not None:
                yield json.load(stored)


def asked(session: Session, first: int) -> list[dict[str, Any]]:
    """Its first requests, subagents' left out; none if one of them is longer than `LONGEST_INPUT`."""
    own = [request for request in session["requests"] if request.get("type") != "subagent"][:first]
    return own if all(request["in"] <= LONGEST_INPUT for request in own) else []


def block_name(session: Session, index: int, own: object) -> tuple[object, ...]:
    """Equal names stand for equal text, up to the end of the block.

    Sessions share the blocks of equally long tools, then those of an equally long system prompt too; the
    others are the session's own, named by `own`.
    """
    tools, system = session["tool_tokens"], session["system_tokens"]
    if index < tools // SESSION_BLOCK:
        return (tools, index)
    if index < (tools + system) // SESSION_BLOCK:
        return (tools, system, index)
    return (session["id"], own)
