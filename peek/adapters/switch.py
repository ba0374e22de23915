"""The live switch: a file whose content is `on`, `off` or `shadow`, looked at every so many calls.

on      the queue is in the planner's order
shadow  everything is planned and counted, the queue stays in the engine's own order
off     the engine has its own objects back; nothing is planned
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from stat import S_ISREG
from typing import Final

logger = logging.getLogger("peek")

MODES: Final = ("on", "off", "shadow")


class Switch:
    """The mode in force.

    Args:
        start: the mode without a file.
        path: the file; it may come and go, and without it `start` holds.
        every: calls between two looks; each is one `stat`.
        agree: with several ranks: makes one mode of what each has read; called at each look, in all of them.

    Attributes:
        mode: as of the last look.
    """

    def __init__(self, start: str, path: str, every: int, agree: Callable[[str], str] | None = None) -> None:
        self.mode = start
        self._start = start
        self._path = Path(path)
        self._every = every
        self._agree = agree
        self._word = start
        self._left = 0
        self._seen: object = None

    def look(self) -> str:
        """One more call; the mode in force.  What cannot be read, or is no mode, is warned of and ignored."""
        self._left -= 1
        if self._left > 0:
            return self.mode
        self._left = self._every
        self._look_at_file()
        self.mode = self._word if self._agree is None else self._agree(self._word)
        return self.mode

    def _look_at_file(self) -> None:
        try:
            now = self._path.stat()
        except FileNotFoundError:
            self._seen, self._word = None, self._start
            return
        except OSError as error:
            self._refuse(type(error).__name__, "cannot be read (%s)", error)
            return
        mark = (now.st_mtime_ns, now.st_size, now.st_ino)
        if mark == self._seen:
            return
        if S_ISREG(now.st_mode):
            self._read(mark)
        else:  # a pipe would keep the scheduler waiting
            self._refuse(mark, "is no ordinary file")

    def _read(self, mark: object) -> None:
        try:
            with self._path.open("rb") as file:
                word = file.read(64).decode("utf-8", "replace").strip().lower()
        except OSError as error:
            self._refuse(mark, "cannot be read (%s)", error)
            return
        if word in MODES:
            self._seen, self._word = mark, word
        else:
            self._refuse(mark, "says %r; valid: on, off, shadow", word)

    def _refuse(self, mark: object, what: str, *details: object) -> None:
        """Say once what is wrong with the file as it is."""
        if self._seen != mark:
            self._seen = mark
            logger.warning(f"peek: control file %s {what}; still %s", self._path, *details, self._word)
