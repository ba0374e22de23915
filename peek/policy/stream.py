"""Requests one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from mypy_extensions import i64, mypyc_attr

from peek.request import PendingRequest


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestStream:
    """An order of waiting requests that is worked out as far as somebody asks."""

    def next(self) -> PendingRequest | None:
        """Whoever goes next; None at the end."""
        raise NotImplementedError


@final
class Listed(RequestStream):
    """An order that is there already."""

    __slots__ = ("_at", "_requests")

    def __init__(self, requests: list[PendingRequest]) -> None:
        self._requests = requests
        self._at: i64 = 0

    def next(self) -> PendingRequest | None:
        if self._at == len(self._requests):
            return None
        self._at += 1
        return self._requests[self._at - 1]


@final
class Iterated(RequestStream):
    """An order that somebody's iterator gives, whatever that is of."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterator[object]) -> None:
        self._items = items

    def item(self) -> object:
        """What it gives next, None at the end."""
        return next(self._items, None)


def everybody(stream: RequestStream) -> list[PendingRequest]:
    """All that are left of a stream."""
    requests: list[PendingRequest] = []
    request = stream.next()
    while request is not None:
        requests.append(request)
        request = stream.next()
    return requests
