"""vLLM's seams: what the adapter needs of a scheduler instance, and what to do where it is missing.

Everything here is set on instances; no class of vLLM is changed.  Checked against 0.19.1, 0.24.0,
0.32.0 and 0.33.0.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any, Final

from peek.adapters.guard import require
from peek.adapters.tenants import first_text
from peek.errors import EngineMismatch
from peek.eviction.demand import victims
from peek.trie.keys import HEADS

_NEEDED = (
    "waiting",
    "policy",
    "running",
    "requests",
    "max_num_running_reqs",
    "kv_cache_config.kv_cache_groups",
    "kv_cache_manager.enable_caching",
    "kv_cache_manager.coordinator.single_type_managers",
    "kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks",
    "kv_cache_manager.block_pool.cached_block_hash_to_block.get_one_block",
    "kv_cache_manager.block_pool.cached_block_hash_to_block.insert",
    "kv_cache_manager.block_pool.cached_block_hash_to_block.pop",
)


def require_seams(scheduler: object) -> None:
    """`EngineMismatch` naming the first attribute that this version of vLLM does not have."""
    require(scheduler, _NEEDED, "vLLM")


def watch_hashes(
    pool: Any, wanted: Container[bytes], cached: Callable[[bytes], None], gone: Callable[[bytes], None]
) -> object:
    """Have `cached(key)` and `gone(key)` called as blocks of `wanted` keys enter and leave the pool's table.

    Returns the table; vLLM puts a new one in its place when the prefix cache is reset.
    """
    from vllm.v1.core.block_pool import BlockHashToBlockMap

    stock_insert, stock_pop = BlockHashToBlockMap.insert, BlockHashToBlockMap.pop

    class WatchedMap(BlockHashToBlockMap):  # type: ignore[misc]
        """vLLM's table, telling what changes.  Called for every block: one look-up if nobody waits."""

        def insert(self, key: Any, block: Any) -> None:
            stock_insert(self, key, block)
            if key in wanted:
                cached(key)

        def pop(self, key: Any, block_id: int) -> Any:
            block = stock_pop(self, key, block_id)
            if key in wanted:
                gone(key)
            return block

    watched = WatchedMap()
    watched.__dict__.update(pool.cached_block_hash_to_block.__dict__)
    pool.cached_block_hash_to_block = watched
    return watched


def unwatch_hashes(pool: Any) -> None:
    """A table of vLLM's own class again, with what it holds now."""
    from vllm.v1.core.block_pool import BlockHashToBlockMap

    table = BlockHashToBlockMap()
    table.__dict__.update(pool.cached_block_hash_to_block.__dict__)
    pool.cached_block_hash_to_block = table


def group_suffix(group: int) -> bytes:
    """What the pool appends to a block hash to make its key in a KV cache group; always of one length."""
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

    suffix = bytes(make_block_hash_with_group_id(b"", group))
    if make_block_hash_with_group_id(b"hash", group) != b"hash" + suffix or len(suffix) != 4:
        raise EngineMismatch("this vLLM's pool does not append the group to a block hash")
    return suffix


def hash_lookup(pool: Any) -> Callable[[bytes], bool]:
    """A function that asks the pool whether it caches the block of a key."""

    def is_cached(key: Any) -> bool:
        return pool.cached_block_hash_to_block.get_one_block(key) is not None

    return is_cached


def group_lookup(pool: Any, suffixes: list[bytes]) -> Callable[[bytes], bool]:
    """The same for the block that a key names, but in each of these groups, whatever group the key is of."""

    def is_cached(key: Any) -> bool:
        block_hash, table = key[: -len(suffixes[0])], pool.cached_block_hash_to_block
        return all(table.get_one_block(block_hash + suffix) is not None for suffix in suffixes)

    return is_cached


TENANT: Final = "peek_tenant"
"""The name of a request's tenant in `vllm_xargs` (the OpenAI server) or `SamplingParams.extra_args`."""


def tenant_of(request: Any, tenants: str) -> str:
    """Whom a request is accounted to, by the option `tenants`: nobody, whom it names, or its namespace."""
    if tenants == "none":
        return ""
    if tenants == "namespace":
        return first_text((getattr(request.lora_request, "lora_name", None), request.cache_salt))
    return first_text(((getattr(request.sampling_params, "extra_args", None) or {}).get(TENANT),))


def heads_of(request: Any, block_tokens: int) -> tuple[bytes, ...]:
    """Hashes that name the beginnings of a request's prompt for good; symbols are used again.  O(1)."""
    hashes = request.block_hashes
    counts = [tokens // block_tokens for tokens in HEADS]
    return tuple([hashes[n - 1] for n in counts if 0 < n <= len(hashes)])


def namespace_of(request: Any) -> str:
    """What keeps a request's blocks from others': its LoRA and cache salt, both part of the block hashes."""
    lora = getattr(request.lora_request, "lora_name", None) or ""
    salt = request.cache_salt or ""
    return f"{lora}/{salt}" if lora or salt else ""


def install_free_queue(pool: Any, choose: Callable[[Iterator[Any], int], list[Any] | None]) -> None:
    """Have `choose(free blocks in eviction order, count)` pick the blocks that are handed out.

    When it returns None, vLLM's own choice stands: the front of the queue.
    """
    from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

    class DemandFreeQueue(FreeKVCacheBlockQueue):  # type: ignore[misc]
        """vLLM's free queue with another idea of who goes first."""

        def popleft(self) -> Any:
            return self.popleft_n(1)[0] if self.num_free_blocks else super().popleft()

        def popleft_n(self, n: int) -> Any:
            chosen = choose(self._in_order(), n) if 0 < n <= self.num_free_blocks else None
            if chosen is None:
                return super().popleft_n(n)
            for block in chosen:
                self.remove(block)
            return chosen

        def _in_order(self) -> Iterator[Any]:
            block = self.fake_free_list_head.next_free_block
            while block is not None and block is not self.fake_free_list_tail:
                yield block
                block = block.next_free_block

    pool.free_block_queue = DemandFreeQueue(pool.free_block_queue.get_all_free_blocks())


def least_needed(
    pool: Any, score: Callable[[bytes], float], scan_limit: int
) -> Callable[[Iterator[Any], int], list[Any]]:
    """A chooser for `install_free_queue`: blocks that nobody waits for first."""

    def block_score(block_id: int) -> float:
        key = pool.blocks[block_id].block_hash
        return 0.0 if key is None else score(key)

    def choose(in_order: Iterator[Any], count: int) -> list[Any]:
        chosen: list[Any] = []
        for block_id in victims((block.block_id for block in in_order), block_score, scan_limit):
            chosen.append(pool.blocks[block_id])
            if len(chosen) == count:
                break
        return chosen

    return choose


def restore_stock(scheduler: Any) -> None:
    """Queue, hash table and free queue of vLLM's own classes again, with what they hold now."""
    from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
    from vllm.v1.core.sched.request_queue import create_request_queue

    waiting = create_request_queue(scheduler.policy)
    for request in scheduler.waiting:
        waiting.add_request(request)
    scheduler.waiting = waiting
    pool = scheduler.kv_cache_manager.block_pool
    unwatch_hashes(pool)
    if type(pool.free_block_queue) is not FreeKVCacheBlockQueue:
        pool.free_block_queue = FreeKVCacheBlockQueue(pool.free_block_queue.get_all_free_blocks())
