"""Trees of other shapes for the walk: EAGLE's pairs, sliding windows, recurrent states.

A hybrid tree is built by SGLang's own code over its real allocators and pools, and gets its gaps by SGLang's
own eviction: sliding-window KV and states go first, full KV stays.
"""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace
from typing import Any

from sglang_lab import HAS_CORES, CacheInitParams, RadixCache, UnifiedRadixCache, World, make_world, torch

FIELDS = {field.name for field in dataclasses.fields(CacheInitParams)}


class Slots:
    """An allocator that only counts: full KV, sliding-window KV."""

    def __init__(self) -> None:
        self.device = "cpu"
        self.page_size = 1
        self.freed = 0

    def free(self, indices: Any) -> None:
        self.freed += len(indices)

    free_swa = free_full = free_group_begin = free_group_end = free

    def available_size(self) -> int:
        return 0

    full_available_size = swa_available_size = available_size


def eagle_world(page_size: int, core: str | None) -> World:
    """A world whose cache has keys of pairs."""
    world = make_world(200_000, page_size=page_size, core=core)
    given: dict[str, Any] = {
        "disable": False,
        "req_to_token_pool": world.pool,
        "token_to_kv_pool_allocator": world.allocator,
        "page_size": page_size,
        "is_eagle": True,
    }
    if core is None:
        world.tree = RadixCache(CacheInitParams(**given))
    else:
        from sglang.srt.mem_cache.unified_cache.components import ComponentType

        given.update(tree_components=(ComponentType.FULL,), tree_core_backend=core)
        world.tree = UnifiedRadixCache(CacheInitParams(**given))
    world.policy.tree_cache = world.tree
    return world
