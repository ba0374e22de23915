"""SGLang's real radix cache, allocator and policy without a model: what the tests and the bench share.

A `World` is what SGLang's scheduler holds of them; `sglang_stepper.Stepper` plays the scheduler over it.
Works on 0.5.9, 0.5.17 and 0.5.23, whose constructors, modules and token containers differ.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
import warnings
from array import array
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sglang.version
    import torch
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.schedule_policy import SchedulePolicy
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang_paged import PagedAllocator, TokenAllocator

    try:
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    except ImportError:
        UnifiedRadixCache = None

sys.path.append(str(Path(__file__).parents[1]))  # behind everything, for a bench that has this folder only

VERSION = sglang.version.__version__
RELEASE = tuple(int(part) for part in VERSION.split(".")[:3])
HAS_CORES = "tree_core_backend" in {field.name for field in dataclasses.fields(CacheInitParams)}
"""Whether the cache is a `UnifiedRadixCache` over a tree core (0.5.23)."""
CORES: tuple[str | None, ...] = ("python", "rust") if HAS_CORES else (None,)
POLICIES = ("fcfs", "lpm", "dfs-weight") + (("hrrn",) if HAS_CORES else ())
SALTED = "cache_salt" in inspect.signature(Req.__init__).parameters

VOCABULARY = 32000


_published: list[Any] = []
"""The settings in force, where a version keeps them in a context; they are put back before new ones."""


def publish_settings(page_size: int, policy: str = "fcfs", priority: bool = False) -> Any:
    """Server arguments for this process, without a model behind them; later ones replace earlier ones."""
    fields = {
        "device": "cpu",
        "attention_backend": "torch_native",  # the others write through Triton
        "page_size": page_size,
        "schedule_policy": policy,
        "enable_priority_scheduling": priority,
    }
    try:
        from sglang.srt.runtime_context import get_context
    except ImportError:
        return _publish_globally(fields)
    while _published:
        _published.pop().restore()
    settings = get_context().override_server_args(**fields)
    _published.append(settings)
    return settings.install()


def _publish_globally(fields: dict[str, Any]) -> Any:
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    arguments = ServerArgs.__new__(ServerArgs)  # its __post_init__ wants a model
    for field in dataclasses.fields(ServerArgs):
        if field.default is not dataclasses.MISSING:
            setattr(arguments, field.name, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            setattr(arguments, field.name, field.default_factory())
    for name, value in fields.items():
        setattr(arguments, name, value)
    set_global_server_args_for_scheduler(arguments)
    return arguments


@dataclass
class World:
    """What SGLang's scheduler holds of the cache, and the policy, a plain `SchedulePolicy`."""

    slots: int
    page_size: int
    pool: Any
    allocator: Any
    tree: Any
    policy: Any
    settings: Any
    core: str | None
    priority: bool


def make_world(
    slots: int = 4096,
    *,
    policy: str = "fcfs",
    page_size: int = 1,
    core: str | None = None,
    max_running: int = 64,
    context: int = 16384,
    eviction: str = "lru",
    priority: bool = False,
    events: bool = False,
) -> World:
    """A cache of `slots` tokens, which tells its `events` or not.

    `core` names the tree core where there are several (default: python).
    """
    settings = publish_settings(page_size, policy, priority)
    pool = ReqToTokenPool(size=max_running, max_context_len=context, device="cpu", enable_memory_saver=False)
    keep = SimpleNamespace(full_to_swa_index_mapping=None)  # the allocator asks nothing else of its store
    allocator = make_allocator(slots // page_size * page_size, page_size, keep)
    core = (core or "python") if HAS_CORES else None
    tree = make_tree(pool, allocator, page_size, core, eviction, events)
    return World(
        slots=slots // page_size * page_size,
        page_size=page_size,
        pool=pool,
        allocator=allocator,
        tree=tree,
        policy=SchedulePolicy(policy, tree, False, priority, False),
        settings=settings,
        core=core,
        priority=priority,
    )


def make_allocator(slots: int, page_size: int, store: Any) -> Any:
    given = {"dtype": torch.float32, "device": "cpu", "kvcache": store, "need_sort": False}
    if page_size == 1:
        return TokenAllocator(size=slots, **given)
    return PagedAllocator(size=slots, page_size=page_size, **given)


def make_tree(
    pool: Any, allocator: Any, page_size: int, core: str | None, eviction: str, events: bool = False
) -> Any:
    given: dict[str, Any] = {
        "disable": False,
        "req_to_token_pool": pool,
        "token_to_kv_pool_allocator": allocator,
        "page_size": page_size,
        "eviction_policy": eviction,
        "enable_kv_cache_events": events,
    }
    if core is None:
        return RadixCache(CacheInitParams(**given))
    from sglang.srt.mem_cache.unified_cache.components import ComponentType

    given.update(tree_components=(ComponentType.FULL,), tree_core_backend=core)
    return UnifiedRadixCache(CacheInitParams(**given))


@lru_cache
def uses_arrays() -> bool:
    """Whether a request's tokens are `array("q")` and not lists."""
    return isinstance(make_request("probe", [1], packed=False).output_ids, array)


def tokens_for(token_ids: list[int]) -> Any:
    return array("q", token_ids) if uses_arrays() else list(token_ids)


def make_request(
    rid: str,
    token_ids: list[int],
    max_new_tokens: int = 4,
    *,
    extra_key: str | None = None,
    cache_salt: str | None = None,
    priority: int | None = None,
    arrival: float = 0.0,
    packed: bool = True,
) -> Any:
    """A request; `cache_salt` goes into `extra_key` where the version has no field of its own for it."""
    sampling = SamplingParams(max_new_tokens=max_new_tokens, temperature=0)
    sampling.normalize(None)
    more: dict[str, Any] = {}
    if cache_salt is not None:
        if SALTED:
            more["cache_salt"] = cache_salt
        else:
            extra_key = f"{extra_key or ''}{cache_salt}"
    request = Req(
        rid=rid,
        origin_input_text="",
        origin_input_ids=tokens_for(token_ids) if packed else array("q", token_ids),
        sampling_params=sampling,
        vocab_size=VOCABULARY,
        extra_key=extra_key,
        priority=priority,
        **more,
    )
    request.time_stats.wait_queue_entry_time = arrival
    return request


def key_of(request: Any) -> Any:
    """The key under which a policy looks a waiting request up."""
    more = {"cache_salt": request.cache_salt} if SALTED else {}
    return RadixKey(request.origin_input_ids + request.output_ids, request.extra_key, **more)


def stock_match(world: World, request: Any) -> int:
    """SGLang's own answer for a waiting request.  Splits nodes and refreshes their times, as it does."""
    result = world.tree.match_prefix(MatchPrefixParams(key=key_of(request)))
    length = getattr(result, "device_prefix_len", None)
    return len(result.device_indices) if length is None else int(length)


def leaked(world: World) -> int:
    """Slots that are neither free nor in the tree without a lock: 0 when nobody runs."""
    return world.slots - int(world.allocator.available_size()) - int(world.tree.evictable_size())
