"""Group-sticky hashing as a balancer of verl's, to be beaten."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any


class GroupHash:
    """A static choice by a request's group, which it is told in the request's name (`group/sample`).

    Args:
        servers: handles by server id.
        options: what verl's YAML file says; not used.
    """

    def __init__(self, servers: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> None:
        self._servers = dict(servers)

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        group = request_id.partition("/")[0].rpartition(".")[2]
        chosen = max(self._servers, key=lambda name: blake2b(f"{group} {name}".encode()).digest())
        return chosen, self._servers[chosen]

    def release_server(self, server_id: str) -> None:
        pass

    def require_acquire_fields(self) -> list[str]:
        return []

    def require_release_fields(self) -> list[str]:
        return []

    def add_servers(self, servers: Mapping[str, Any]) -> None:
        self._servers.update(servers)

    def remove_servers(self, server_ids: list[str]) -> None:
        for name in server_ids:
            del self._servers[name]

    def clear_sticky_cache(self) -> None:
        pass

    def get_total_inflight(self) -> int:
        return 0
