"""Other distributions that install a package of the same import name, `peek`.

Imports nothing of this library: it must run where files of it have been overwritten or taken away.
"""

from __future__ import annotations

import sys
from importlib.metadata import packages_distributions
from typing import Final

OURS: Final = "peek-kv"


def others() -> list[str]:
    """Names of the installed distributions, besides this one, that have a package `peek`; sorted."""
    return sorted(set(packages_distributions().get("peek", ())) - {OURS})


def advice(names: list[str]) -> str:
    """What to do about them."""
    both = " ".join([OURS, *names])
    return (
        f"installs a package `peek`, too, and overwrites files of {OURS}: give it an environment of its own, "
        f"or `pip uninstall {both}`, then `pip install {OURS}`"
    )


def why_broken() -> str:
    """Why names of this package cannot be imported, if a conflict explains it; else ""."""
    names = others()
    if names:
        return f"{', '.join(names)} {advice(names)}"
    if getattr(sys.modules["peek"], "__file__", None) is None:  # a folder without `__init__.py`
        return f"files of {OURS} are missing: `pip install --force-reinstall {OURS}`"
    return ""
