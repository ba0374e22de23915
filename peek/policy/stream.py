"""Requests one after another."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from peek.request import PendingRequest


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


def everybody(stream: RequestStream) -> list[PendingRequest]:
    """All that are left of a stream."""
    requests: list[PendingRequest] = []
    request = stream.next()
    while request is not None:
        requests.append(request)
        request = stream.next()
    return requests
