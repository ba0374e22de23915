"""What SGLang puts into its prefix cache, as the planner's keys: so a walk need not ask about everything.

Where the cache shows no nodes each question costs a match of a whole prompt.  Whatever comes in passes
through one method of the cache, which is replaced on the instance and does what it did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from peek.adapters.sglang.translation import Translator

MOST_TOKENS: Final = 1 << 22
"""Of keys that are remembered until somebody walks."""


class Insertions:
    """Notes the key of every `cache.insert`.

    Args:
        cache: a `UnifiedRadixCache` that gets nothing from the host or from elsewhere.
        door: makes the planner's keys.

    Attributes:
        count: insertions so far.
    """

    def __init__(self, cache: Any, door: Translator) -> None:
        self.count = 0
        self._cache = cache
        self._door = door
        self._first = 0
        self._keys: list[Any] = []
        self._tokens = 0
        self._insert = cache.insert
        cache.insert = self._noted

    def _noted(self, params: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = len(params.key.token_ids)
        if self._tokens + tokens > MOST_TOKENS:
            self._forget(self.count)
        self._tokens += tokens
        self._keys.append(params.key)
        self.count += 1
        return self._insert(params, *args, **kwargs)

    def since(self, count: int) -> list[tuple[str, bytes]] | None:
        """Namespaces and packed symbols of what came in when `count` had; None if not all are known.

        O(tokens).  A key is cut where no waiting prompt goes on with it.  What was before is forgotten.
        """
        if count < self._first:
            return None
        self._forget(count)
        return [self._door.known(key.token_ids, key.extra_key, key.cache_salt) for key in self._keys]

    def _forget(self, count: int) -> None:
        """Keys that came in before the `count`-th."""
        del self._keys[: count - self._first]
        self._first = count
        self._tokens = sum(len(key.token_ids) for key in self._keys)

    def close(self) -> None:
        """The cache's own method again."""
        if self._cache.__dict__.get("insert") == self._noted:
            del self._cache.insert
