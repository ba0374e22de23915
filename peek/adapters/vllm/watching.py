"""Whether the mirror hears of vLLM's block pool: only while its blocks can matter."""

from __future__ import annotations

from typing import Any, Final

from peek.adapters.shield import Shield
from peek.adapters.vllm.mirror import BlockMirror
from peek.adapters.vllm.seams import unwatch_hashes, watch_hashes

_QUIET_STEPS: Final = 16
"""Steps in a row in which no block can matter until the pool is no longer watched."""


class PoolWatch:
    """Watches the hash table of a pool for a mirror.

    Asleep, each arrival still asks for its first block.  A first block that is cached later, by a request
    that was running already or shares with nobody, goes unnoticed by those who wait.

    Args:
        shield: stands before what the pool calls.
    """

    def __init__(self, pool: Any, mirror: BlockMirror, shield: Shield) -> None:
        self._pool = pool
        self._mirror = mirror
        self._shield = shield
        self._table: object = None
        """The pool's table if it is watched, else None."""
        self._quiet_steps = 0

    @property
    def watches(self) -> bool:
        """Whether the mirror hears of every block."""
        return self._table is not None and self._pool.cached_block_hash_to_block is self._table

    def update(self, matters: bool) -> None:
        """Watch or sleep; once a step.  O(1), O(symbols) when it wakes or the prefix cache was reset."""
        replaced = self._table is not None and self._pool.cached_block_hash_to_block is not self._table
        if not matters:
            self._quiet_steps += 1
            if replaced:  # the prefix cache was reset, and the new table is vLLM's own
                self._table = None
            elif self._quiet_steps == _QUIET_STEPS and self._table is not None:
                self._table = None
                unwatch_hashes(self._pool)
            return
        self._quiet_steps = 0
        if self._table is None or replaced:
            call, mirror = self._shield.call, self._mirror
            self._table = watch_hashes(
                self._pool,
                mirror.wanted(),
                lambda key: call(mirror.block_cached, key),
                lambda key: call(mirror.block_gone, key),
            )
            mirror.reset()
