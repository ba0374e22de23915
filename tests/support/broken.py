"""Deliberate errors, for tests of an engine whose adapter fails."""

from __future__ import annotations

from typing import Any


class Broken:
    """Passes everything on to `target`, except that one method fails from its `after`-th call on."""

    def __init__(self, target: Any, method: str, after: int) -> None:
        self.__dict__.update(_target=target, _method=method, _left=after)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name != self._method:
            return value

        def failing(*args: Any, **kwargs: Any) -> Any:
            self.__dict__["_left"] -= 1
            if self._left < 0:
                raise RuntimeError(f"injected into {name}")
            return value(*args, **kwargs)

        return failing

    def __contains__(self, item: object) -> bool:
        return item in self._target

    def __len__(self) -> int:
        return len(self._target)
