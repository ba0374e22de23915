"""Loads programs that lie outside the package as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"peek_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
