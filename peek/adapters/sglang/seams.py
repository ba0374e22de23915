"""SGLang's seams: which cache it is, how to read it, and what a request tells.

Checked against 0.5.9, 0.5.17 and 0.5.23.  Nothing here changes a class of SGLang.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from peek.adapters.guard import require
from peek.adapters.sglang.core_view import CoreView
from peek.adapters.sglang.namespaces import ALONE, namespace_of
from peek.adapters.sglang.node_view import NodeView

if TYPE_CHECKING:
    from peek.adapters.sglang.translation import Translator

_NODE_CACHES = ("RadixCache", "HiRadixCache", "UnifiedRadixCache")
"""Caches that are understood; a subclass of one that is not named here may match otherwise."""


_NEEDED = ("tree_cache.page_size", "enable_priority_scheduling", "priority_sign")


def require_seams(policy: Any, evicts: bool) -> None:
    """`EngineMismatch` naming the first attribute that this version of SGLang does not have."""
    require(policy, _NEEDED, "SGLang")
    cache = policy.tree_cache
    wanted = ["root_node"] if shows_nodes(cache) else ["match_full_device_prefix"]
    if evicts:
        wanted.append("eviction_strategy" if shows_nodes(cache) else "match_prefix")
    require(tree_core(cache), wanted, "SGLang")


def why_stand_aside(policy: Any) -> str | None:
    """Why SGLang's own order stays, None if there is no reason."""
    cache = policy.tree_cache
    kind = type(cache).__name__
    names = {base.__name__ for base in type(cache).__mro__}
    if getattr(cache, "disable", True):
        return "prefix caching is off"
    unified = "UnifiedRadixCache" in names
    if (kind not in _NODE_CACHES and not unified) or (unified and not hasattr(cache, "tree_core")):
        return f"the prefix cache is a {kind}, which is not understood"
    if getattr(cache, "is_eagle", False) or getattr(tree_core(cache), "is_eagle", False):
        return "speculative decoding with bigram keys (EAGLE)"
    components = getattr(cache, "tree_components", None)
    if components is not None and len(tuple(components)) > 1:
        return f"the model has {len(tuple(components))} kinds of KV cache"
    return None


def tree_core(cache: Any) -> Any:
    """What holds root and strategy: the cache itself, or the core of a `UnifiedRadixCache`."""
    return getattr(cache, "tree_core", cache)


def shows_nodes(cache: Any) -> bool:
    """False for the Rust core, which keeps its nodes to itself."""
    return "Rust" not in type(tree_core(cache)).__name__


def make_view(cache: Any, door: Translator) -> NodeView | CoreView:
    """A read-only `CacheView` of SGLang's prefix cache, for keys that `door` has made."""
    core = tree_core(cache)
    if not shows_nodes(cache):
        return CoreView(_core_match(core), cache.page_size, door.pages, door.alphabet)
    return NodeView(lambda: core.root_node, cache.page_size, door.pages, door.alphabet, _on_host)


def _on_host(node: Any) -> bool | None:
    if not node.evicted:
        return False
    return True if node.backuped else None


def _core_match(core: Any) -> Any:
    from sglang.srt.mem_cache.radix_cache import RadixKey

    def match(tokens: array[int], extra_key: str | None, salt: str | None) -> tuple[int, int]:
        key = RadixKey(tokens, extra_key, cache_salt=salt)
        matched, node, _ = core.match_full_device_prefix(key)
        return int(matched), int(node)

    return match


def set_strategy(cache: Any, strategy: Any) -> Any:
    """Have the cache evict by `strategy`; returns the one it had."""
    core = tree_core(cache)
    inner, core.eviction_strategy = core.eviction_strategy, strategy
    for component in getattr(core, "components", ()):  # 0.5.23 keeps a bound method of the old one
        bound = getattr(component, "session_ref_eviction_strategy", None)
        if getattr(bound, "__self__", None) is inner:
            component.session_ref_eviction_strategy = None
    return inner


def touch(cache: Any, request: Any, cached: int) -> None:
    """Make what a waiting request would hit the most recently used, as SGLang's own policies do."""
    from sglang.srt.mem_cache.radix_cache import RadixKey

    tokens = request.origin_input_ids + request.output_ids
    cache.touch_prefix(RadixKey(tokens, request.extra_key, limit=cached, cache_salt=request.cache_salt))


# -- requests -----------------------------------------------------------------------------------------


def prompt_of(request: Any) -> tuple[Any, int]:
    """A request's tokens (with what it generated before a retraction), and how many may be matched."""
    tokens = request.origin_input_ids + request.output_ids
    limit = len(tokens) - 1  # the last one is always computed
    compute = getattr(request, "_compute_max_prefix_len", None)
    if compute is not None:
        limit = compute(len(tokens))
    elif request.return_logprob and request.logprob_start_len >= 0:
        limit = min(limit, request.logprob_start_len)
    return tokens, max(limit, 0)


def request_namespace(request: Any) -> str:
    """What keeps a request's tokens apart from the same tokens of others."""
    if getattr(request, "positional_embed_overrides", None) is not None:
        return ALONE + str(request.rid)
    return namespace_of(request.extra_key, getattr(request, "cache_salt", None))


def was_admitted(request: Any, outputs_before: int) -> bool:
    """Whether a request that left the waiting queue went into a batch; False if it was aborted."""
    row = getattr(request, "req_pool_idx", None)
    if row is None:
        row = getattr(getattr(request, "kv", None), "req_pool_idx", None)
    return row is not None or len(request.output_ids) > outputs_before


def prefill_ended(request: Any, outputs_before: int) -> bool:
    """Whether an admitted request's prefix is in the cache now, or the request is gone."""
    return len(request.output_ids) > outputs_before or request.finished() or request.is_retracted
