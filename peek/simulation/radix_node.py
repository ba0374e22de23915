"""What `RadixCache` is made of."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64


@final
class RadixNode:
    """One cached run of symbols."""

    __slots__ = ("depth", "edge", "kids", "last_access", "locks", "parent", "uid")

    def __init__(self, edge: bytes, parent: RadixNode | None, uid: i64, depth: i64) -> None:
        self.edge = edge
        self.parent: RadixNode | None = parent
        self.uid: i64 = uid
        self.depth: i64 = depth
        self.kids: i64 = 0
        self.locks: i64 = 0
        self.last_access: i64 = 0


@final
class RadixPlace:
    """A cursor: `at` bytes into the edge of `node`."""

    __slots__ = ("at", "node")

    def __init__(self, node: RadixNode, at: i64) -> None:
        self.node = node
        self.at: i64 = at
