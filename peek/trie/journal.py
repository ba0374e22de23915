"""What has changed in a pending tree since somebody last looked.

A reader of the journal (the dual-walk, an order that is kept current) does work for what has changed instead
of for all that waits.  Nothing is written before the first reader asks for it.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from peek.trie.node import Node, Terminator

_AT_LEAST: Final[i64] = 4096
"""Entries from which a journal may be too long to be worth reading."""
AT_MOST: Final[i64] = 1 << 17
"""Entries of a journal that nobody reads."""


@final
class Journal:
    """Nodes that were made, retired or marked anew, or whose own requests have changed, in order.

    An entry may be out of date or come twice: it says where to look, not what is there.

    Attributes:
        volume: a new number whenever what was written is thrown away, so that readers start afresh.
        nodes: the entries of this volume.
        left: requests that have left their places, never more than nodes.
    """

    __slots__ = ("left", "nodes", "volume")

    def __init__(self) -> None:
        self.volume: i64 = 0
        self.nodes: list[Node] = []
        self.left: list[Terminator] = []

    def note(self, node: Node) -> None:
        """Something about this node is new.  O(1)."""
        if len(self.nodes) == AT_MOST:
            self._begin()
        self.nodes.append(node)

    def shorten(self, waiting: i64) -> None:
        """Begin a new volume if reading this one costs more than looking at all who wait.  O(1)."""
        if len(self.nodes) > _AT_LEAST + 4 * waiting:
            self._begin()

    def _begin(self) -> None:
        self.volume += 1
        self.nodes = []
        self.left = []


@final
class Bookmark:
    """How far one reader has read: entries of `nodes`, and of `left`."""

    __slots__ = ("at", "left_at", "volume")

    def __init__(self) -> None:
        self.volume: i64 = -1
        self.at: i64 = 0
        self.left_at: i64 = 0

    def catch_up(self, journal: Journal) -> bool:
        """Jump to the end; False if what was there cannot be had any more."""
        known = self.volume == journal.volume
        self.volume = journal.volume
        self.at = len(journal.nodes)
        self.left_at = len(journal.left)
        return known
