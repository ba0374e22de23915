"""What `peek reorder` is asked to do, once its command line has been found to make sense."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from peek.cli.places import STREAM


@dataclass(frozen=True)
class ReorderJob:
    """Files and options.

    Attributes:
        source: the batch file.
        targets: one file per replica.
        order_path: the order file.
        encode: text to token ids; None: four bytes count as a token.
        cache_tokens, block_tokens: of the engine.
        engine: its name.
        explain: print what was found.
        memory_bytes: of lines that are kept in memory at most; 0: no limit.
    """

    source: Path
    targets: list[Path]
    order_path: Path
    encode: Callable[[str], list[int]] | None
    cache_tokens: int
    block_tokens: int
    engine: str
    explain: bool
    memory_bytes: int = 0

    @property
    def outputs(self) -> list[Path]:
        """What is written, the order file first."""
        return [self.order_path, *self.targets]

    @property
    def talk(self) -> TextIO:
        """Where explanations go: standard output, if no file goes there."""
        return sys.stderr if STREAM in self.outputs else sys.stdout
