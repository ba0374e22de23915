"""Finds other distributions that install a package of the same import name, `peek`.

The module imports nothing of this library, because it must run even if its files were overwritten or removed.
"""

from __future__ import annotations

import sys
from importlib.metadata import packages_distributions
from typing import Final

OURS: Final = "peek-kv"


def others() -> list[str]:
    """Return the sorted names of the other installed distributions that have a package `peek`."""
    return sorted(set(packages_distributions().get("peek", ())) - {OURS})


def advice(names: list[str]) -> str:
    """Return a message on what to do about these distributions."""
    both = " ".join([OURS, *names])
    return (
        f"installs a package `peek`, too, and overwrites files of {OURS}: give it an environment of its own, "
        f"or `pip uninstall {both}`, then `pip install {OURS}`"
    )


def why_broken() -> str:
    """Return why names of this package cannot be imported, if a conflict explains it; else ""."""
    names = others()
    if names:
        return f"{', '.join(names)} {advice(names)}"
    if getattr(sys.modules["peek"], "__file__", None) is None:  # a folder without `__init__.py`
        return f"files of {OURS} are missing: `pip install --force-reinstall {OURS}`"
    return ""
