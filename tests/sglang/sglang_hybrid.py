"""Caches of other shapes for the walk: EAGLE's pairs, sliding windows, recurrent states.

The trees are SGLang's own, and so are their gaps: `evict` takes sliding-window KV and states before full KV.
The pools behind them are left out: what is freed is nobody's.
"""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

from sglang_lab import HAS_CORES, RELEASE, World, make_world, tokens_for

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

    try:
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    except ImportError:
        UnifiedRadixCache = None

WINDOW = 6
SHAPES = ("window", "state", "both") if HAS_CORES else ("window", "state")


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


def insert_pairs(world: World, tokens: list[int]) -> None:
    """Whole pages of pairs; they take one token more."""
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams

    pairs = (len(tokens) - 1) // world.page_size * world.page_size
    if pairs:
        kept = pairs if RELEASE >= (0, 5, 17) else pairs + 1
        key = RadixKey(tokens_for(tokens[: pairs + 1]))
        world.tree.insert(InsertParams(key=key, value=torch.arange(kept, dtype=torch.int64)))


class Nobody:
    """Mixed into an allocator's class: nothing is stored, so nothing is freed."""

    device = torch.device("cpu")
    page_size = 1
    size = 1 << 20

    def __init__(self) -> None:
        pass

    def free(self, *_: Any, **__: Any) -> None:
        pass

    free_swa = free_full = free_segment = free_swa_segment = free_full_segment = free_group_begin = (
        free_group_end
    ) = free

    @property
    def full_attn_allocator(self) -> Nobody:
        return self

    swa_attn_allocator = full_attn_allocator

    def available_size(self) -> int:
        return 0

    full_available_size = swa_available_size = schedulable_available_size = available_size

    def translate_loc_from_full_to_swa(self, indices: Any) -> Any:
        return indices


def hybrid_world(shape: str) -> World:
    """A world whose cache has sliding-window KV, recurrent states, or both beside its full KV."""
    world = make_world(200_000)
    if shape != "window":
        _settle_chunks()
    given: dict[str, Any] = {
        "disable": False,
        "req_to_token_pool": SimpleNamespace(mamba_pool=Nobody(), mamba_allocator=Nobody()),
        "token_to_kv_pool_allocator": _allocator(shape),
        "page_size": 1,
    }
    if shape != "state":
        given["sliding_window_size"] = WINDOW
    world.tree = _unified(shape, given) if HAS_CORES else _of_its_own(shape, given)
    world.policy.tree_cache = world.tree
    return world


def _settle_chunks() -> None:
    """The chunk size of recurrent layers; else it is looked up with the model, and there is none."""
    try:
        from sglang.srt.runtime_context import get_server_args
    except ImportError:
        return  # 0.5.9 does not ask for it
    vars(get_server_args())["_mamba_cache_chunk_size"] = 1


def _allocator(shape: str) -> Any:
    try:
        from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    except ImportError:
        from sglang.srt.mem_cache.swa_memory_pool import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

    base = TokenToKVPoolAllocator if shape == "state" else SWATokenToKVPoolAllocator
    return type("Allocator", (Nobody, base), {})()


def _of_its_own(shape: str, given: dict[str, Any]) -> Any:
    if shape == "window":
        from sglang.srt.mem_cache.swa_radix_cache import SWARadixCache

        return SWARadixCache(CacheInitParams(**given))
    from sglang.srt.mem_cache.mamba_radix_cache import MambaRadixCache

    return MambaRadixCache(CacheInitParams(**given))


def _unified(shape: str, given: dict[str, Any]) -> Any:
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
    from sglang.srt.mem_cache.unified_cache.components import ComponentType

    kinds = [ComponentType.FULL]
    if shape != "state":
        kinds.append(ComponentType.SWA)
    if shape != "window":
        kinds.append(ComponentType.MAMBA)
        pool = type("Pool", (Nobody, HybridReqToTokenPool), {})()
        pool.mamba_pool = pool.mamba_allocator = Nobody()
        given["req_to_token_pool"] = pool
    given.update(tree_components=tuple(kinds), tree_core_backend="python")
    return UnifiedRadixCache(CacheInitParams(**given))


def insert_hybrid(world: World, shape: str, tokens: list[int], without: int) -> None:
    """A prompt that has left the first `without` tokens of its sliding-window KV behind."""
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams

    more: dict[str, Any] = {}
    if shape != "window":
        more["mamba_value"] = torch.tensor([1])
    if shape != "state":
        if HAS_CORES:
            from sglang.srt.mem_cache.unified_cache.components import ComponentType

            more["component_evicted_seqlens"] = {ComponentType.SWA: without}
        else:
            more["swa_evicted_seqlen"] = without
    value = torch.arange(len(tokens), dtype=torch.int64)
    world.tree.insert(InsertParams(key=RadixKey(tokens_for(tokens)), value=value, **more))


def make_gaps(world: World, shape: str, tokens: int, states: int) -> None:
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    if shape != "state":
        world.tree.evict(EvictParams(num_tokens=0, swa_num_tokens=tokens))
    if shape != "window":
        world.tree.evict(EvictParams(num_tokens=0, mamba_num=states))
