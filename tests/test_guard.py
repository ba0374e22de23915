"""The version guard of the adapters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from peek import EngineMismatch
from peek.adapters.containment import require

ENGINE = SimpleNamespace(pool=SimpleNamespace(table=SimpleNamespace(insert=1)), queue=None)


@pytest.mark.parametrize("path", ["waiting", "pool.queue", "pool.table.pop", "queue.append"])
def test_what_is_missing_is_named(path: str) -> None:
    with pytest.raises(EngineMismatch, match=f"this engine's SimpleNamespace has no {path};"):
        require(ENGINE, ["queue", "pool.table.insert", path], "engine")
