"""What the adapter knows of vLLM's objects.  Some get a class derived from theirs; no class changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from peek.adapters import symbols
from peek.adapters.containment import Shield, require
from peek.adapters.engine_adapter import first_text
from peek.adapters.mirror import BlockMirror, GroupMirror, OtherGroup
from peek.errors import EngineMismatch
from peek.trie.keys import HEADS

NEEDED: Final = (
    "waiting",
    "policy",
    "running",
    "requests",
    "max_num_running_reqs",
    "kv_cache_config.kv_cache_groups",
    "kv_cache_manager.enable_caching",
    "kv_cache_manager.coordinator.single_type_managers",
    "kv_cache_manager.block_pool.free_block_queue.popleft_n",
    "kv_cache_manager.block_pool.free_block_queue.fake_free_list_head",
    "kv_cache_manager.block_pool.cached_block_hash_to_block.get_one_block",
    "kv_cache_manager.block_pool.cached_block_hash_to_block.insert",
    "kv_cache_manager.block_pool.cached_block_hash_to_block.pop",
)
"""Members of a scheduler that the adapter needs."""

# -- KV cache groups ----------------------------------------------------------------------------------

KNOWN: Final[dict[str, Callable[[Any], int]]] = {
    "FullAttentionManager": lambda _: 0,
    "MambaManager": lambda _: 1,
    "SlidingWindowManager": lambda it: max(1, -((1 - it.kv_cache_spec.sliding_window) // it.block_size)),
}
"""vLLM's managers whose way of matching is known here.  The value: how many blocks in a row their group needs
before the end of a prefix; 0 if it needs all of them."""


def why_stand_aside(scheduler: Any) -> str | None:
    """Return why vLLM's own order stays; None if nothing speaks against ours.  `EngineMismatch`."""
    require(scheduler, NEEDED, "vLLM")
    return why_not_understood(scheduler)


def why_not_understood(scheduler: Any) -> str | None:
    """Return why no mirror can predict matches of a scheduler's cache; None if one can."""
    if not scheduler.kv_cache_manager.enable_caching:
        return "prefix caching is off"
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    if len(managers) != len(scheduler.kv_cache_config.kv_cache_groups) or not managers:
        return f"the model has {len(managers)} KV cache groups with a prefix to match"
    kinds = [type(manager).__name__ for manager in managers]
    strange = sorted(set(kinds) - KNOWN.keys())
    if strange:
        return f"a KV cache group is matched by {strange[0]}, which the adapter does not know"
    if "FullAttentionManager" not in kinds:
        return f"none of the model's KV cache groups is one of full attention ({', '.join(kinds)})"
    sizes = sorted({manager.block_size for manager in managers})
    hashed = getattr(scheduler.kv_cache_manager.block_pool, "hash_block_size", None)
    if len(sizes) > 1 or hashed not in (None, sizes[0]):
        hashes = "" if hashed is None else f", hashes of {hashed}"
        return f"the KV cache groups have blocks of different sizes: {', '.join(map(str, sizes))}{hashes}"
    if len(managers) > 1 and drops_a_block(scheduler):
        return f"a draft model shares the prefix cache with {len(managers)} KV cache groups"
    if getattr(scheduler, "prefix_replay_tokens", 0):
        return "the model computes the end of a prefix match anew"
    return None


def drops_a_block(scheduler: Any) -> bool:
    """Whether the last block of a match is computed again, for a draft model (EAGLE, MTP)."""
    # Since 0.33 a draft model's groups keep their mark, but drop nothing if block hashes look ahead.
    coordinator = scheduler.kv_cache_manager.coordinator
    marks = ("drop_eagle_group_ids", "eagle_group_ids", "use_eagle")
    return next((bool(getattr(coordinator, mark)) for mark in marks if hasattr(coordinator, mark)), False)


def make_mirror(scheduler: Any) -> BlockMirror:
    """Return a mirror of the block pool of a scheduler that is understood."""
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    pool, unit = scheduler.kv_cache_manager.block_pool, managers[0].block_size
    groups = [(group_suffix(group), KNOWN[type(it).__name__](it)) for group, it in enumerate(managers)]
    full = [suffix for suffix, needed in groups if not needed]
    others = [OtherGroup(needed, group_lookup(pool, [suffix])) for suffix, needed in groups if needed]
    dropped = int(drops_a_block(scheduler))
    if len(groups) > 1 or dropped:
        return GroupMirror(unit, group_lookup(pool, full), full[0], others, dropped)
    return BlockMirror(
        unit, lambda key: pool.cached_block_hash_to_block.get_one_block(key) is not None, full[0]
    )


# -- the block pool -----------------------------------------------------------------------------------


def give_back(thing: Any) -> None:
    """Give an object of the pool its vLLM class back, if it has a derived one.  O(1)."""
    if type(thing).__module__ == __name__:
        thing.__class__ = type(thing).__base__


def watch(table: Any, mirror: BlockMirror, shield: Shield) -> None:
    """Report to a mirror, from now on, all changes of a pool's hash table.  O(symbols)."""
    give_back(table)
    stock: Any = type(table)
    call, wanted, stock_insert, stock_pop = shield.call, mirror.wanted(), stock.insert, stock.pop

    class WatchedMap(stock):  # type: ignore[misc]
        """Called for every block: one look-up if no request waits for it."""

        def insert(self, key: Any, block: Any) -> None:
            stock_insert(self, key, block)
            if key in wanted:
                call(mirror.block_cached, key)

        def pop(self, key: Any, block_id: int) -> Any:
            block = stock_pop(self, key, block_id)
            if key in wanted:
                call(mirror.block_gone, key)
            return block

    table.__class__ = WatchedMap
    mirror.reset()


def group_suffix(group: int) -> bytes:
    """Return the 4 bytes that the pool appends to a block hash for its key in a KV cache group."""
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

    suffix = bytes(make_block_hash_with_group_id(b"", group))
    if make_block_hash_with_group_id(b"hash", group) != b"hash" + suffix or len(suffix) != 4:
        raise EngineMismatch("this vLLM's pool does not append the group to a block hash")
    return suffix


def group_lookup(pool: Any, suffixes: list[bytes]) -> Callable[[bytes], bool]:
    """Return a test whether the pool has a key's block in each of these groups, whichever the key's own."""

    def is_cached(key: Any) -> bool:
        block_hash, table = key[: -len(suffixes[0])], pool.cached_block_hash_to_block
        return all(table.get_one_block(block_hash + suffix) is not None for suffix in suffixes)

    return is_cached


def install_free_queue(pool: Any, choose: Callable[[Iterator[Any], int], list[Any] | None]) -> None:
    """Let `choose(free blocks in eviction order, count)` pick the blocks to hand out; None: vLLM does."""
    stock: Any = type(pool.free_block_queue)

    class DemandFreeQueue(stock):  # type: ignore[misc]
        """vLLM's free queue with another order of eviction."""

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

    pool.free_block_queue.__class__ = DemandFreeQueue


def restore_stock(scheduler: Any) -> None:
    """Give queue, hash table and free queue vLLM's own classes back, with their present contents."""
    from vllm.v1.core.sched.request_queue import create_request_queue

    waiting, apart = create_request_queue(scheduler.policy), set(getattr(scheduler, "skipped_waiting", ()))
    for request in scheduler.waiting.in_stock_order():
        if request not in apart:  # it is in both if an error came while it was taken back from there
            waiting.add_request(request)
    scheduler.waiting = waiting
    pool = scheduler.kv_cache_manager.block_pool
    give_back(pool.cached_block_hash_to_block)
    give_back(pool.free_block_queue)


# -- requests -----------------------------------------------------------------------------------------

TENANT: Final = "peek_tenant"
"""The name of a request's tenant in `vllm_xargs` (the OpenAI server) or `SamplingParams.extra_args`."""


def tenant_of(request: Any, tenants: str) -> str:
    """Return the tenant of a request by the option `tenants`: none, the one it names, or its namespace."""
    if tenants == "namespace":
        return first_text((getattr(request.lora_request, "lora_name", None), request.cache_salt))
    return first_text(((parameters_of(request) or {}).get(TENANT),)) if tenants == "named" else ""


def parameters_of(request: Any) -> Any:
    """Return a body's `vllm_xargs`, which are `extra_args` of `SamplingParams`; None for pooling requests."""
    return getattr(request.sampling_params, "extra_args", None)


def heads_of(request: Any, block_tokens: int) -> tuple[bytes, ...]:
    """Return hashes that name the beginnings of a prompt for good, as symbols are reused.  O(1)."""
    hashes = request.block_hashes
    counts = [tokens // block_tokens for tokens in HEADS]
    return tuple([hashes[n - 1] for n in counts if 0 < n <= len(hashes)])


def namespace_of(request: Any) -> str:
    """Return what keeps a request's blocks apart: LoRA and cache salt, both part of the block hashes."""
    return symbols.namespace_of(getattr(request.lora_request, "lora_name", None), request.cache_salt)
