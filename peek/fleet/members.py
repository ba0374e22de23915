"""The replicas of a fleet, by name and in the order in which they joined."""

from __future__ import annotations

from typing import final

from peek.errors import InvalidConfig, UnknownReplica
from peek.fleet.replica import Replica


@final
class Members:
    """Which replicas there are."""

    __slots__ = ("_by_name", "all")

    def __init__(self) -> None:
        self._by_name: dict[str, Replica] = {}
        self.all: list[Replica] = []

    def __len__(self) -> int:
        return len(self.all)

    def find(self, name: str) -> Replica:
        """The replica of that name.  O(1); `UnknownReplica`."""
        replica = self._by_name.get(name)
        if replica is None:
            known = ", ".join(self._by_name) or "none"
            raise UnknownReplica(f"replica {name!r} is not in the fleet; there are: {known}")
        return replica

    def add(self, replica: Replica) -> None:
        """One more; `InvalidConfig` if its name is taken."""
        if replica.name in self._by_name:
            raise InvalidConfig(f"replica {replica.name!r} is in the fleet already")
        self._by_name[replica.name] = replica
        self.all.append(replica)

    def drop(self, replica: Replica) -> None:
        """It is out of the fleet.  O(R)."""
        del self._by_name[replica.name]
        self.all.remove(replica)
