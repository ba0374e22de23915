"""Lines of a file as they are, bytes and ends, and how they keep both in another order.

A file may begin with a byte order mark, end its lines in `\\n` or `\\r\\n`, and leave out the last end.  The
mark belongs to no line and goes.  The ends belong to their lines, but the missing one belongs to the file:
when the line without an end moves away from the bottom, it swaps ends with the line that comes to stand
there.  Moved back by the same rule, the file is what it was, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

BOM: Final = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """A line that is not blank.

    Attributes:
        number: from 1; blank lines count.
        content: without its end.
        end: `\\n`, `\\r\\n`, or nothing.
    """

    number: int
    content: bytes
    end: bytes


def lines_of(stream: Iterable[bytes]) -> Iterator[Line]:
    """The lines of a file, blank ones left out.  Memory: one line."""
    for number, raw in enumerate(stream, start=1):
        content, end = split_end(raw.removeprefix(BOM) if number == 1 else raw)
        if content.strip():
            yield Line(number, content, end)


def split_end(raw: bytes) -> tuple[bytes, bytes]:
    """A line's content and its end."""
    for end in (b"\r\n", b"\n"):
        if raw.endswith(end):
            return raw[: -len(end)], end
    return raw, b""


@dataclass(frozen=True, slots=True)
class EndSwap:
    """Gives the line without an end another one's; see above.

    Attributes:
        bare: index of the line without an end; -1: there is none.
        last: index of the line that comes last and gives its end away; -1: every line has an end.
        end: what the bare line gets.
    """

    bare: int = -1
    last: int = -1
    end: bytes = b""

    def apply(self, index: int, line: bytes) -> bytes:
        """Line `index` as it is to be written."""
        if index == self.bare:
            return line + self.end
        return split_end(line)[0] if index == self.last else line


def end_swap(bare: int, last: int, last_line: bytes, files: int = 1) -> EndSwap:
    """What to swap when line `last` comes to stand at the bottom.

    Of several files every line gets an end: they may be put one behind the other.
    """
    if files > 1:
        return EndSwap(bare, -1, split_end(last_line)[1] or b"\n")
    return EndSwap() if bare in (-1, last) else EndSwap(bare, last, split_end(last_line)[1])
