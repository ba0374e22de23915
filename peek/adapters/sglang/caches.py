"""SGLang's prefix cache: whether its matching is understood, how to read it, how it evicts."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from peek.adapters.sglang.requests import Translator
from peek.adapters.sglang.views import CoreView, NodeView
from peek.errors import a_kind

logger = logging.getLogger("peek")

PYTHON_CORE: Final = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python"

_UNDERSTOOD: Final = (
    "hiradix_cache.HiRadixCache",
    "mamba_radix_cache.MambaRadixCache",
    "pure_swa_radix_cache.PureSWARadixCache",
    "radix_cache.RadixCache",
    "swa_radix_cache.SWARadixCache",
    "unified_radix_cache.UnifiedRadixCache",
)
"""Classes under `sglang.srt.mem_cache`."""

_MATCHING: Final = (
    "match_prefix",
    "_match_prefix_helper",
    "_match_pre_processor",
    "_match_post_processor",
    "_match_tree",
    "_finalize_match_result",
    "maybe_bigram_convert",
)
"""Methods that a subclass must not override, in order to match as its base class does."""


def why_not_understood(cache: Any) -> str | None:
    """Return why matches of `cache` cannot be predicted; None if `make_view` can."""
    kind = type(cache)
    if getattr(cache, "disable", True):
        return "prefix caching is off"
    base = _base_of(kind)
    if base is None:
        return f"the prefix cache is a {kind.__name__}, which is not understood"
    for name in _MATCHING:
        if getattr(kind, name, None) is not getattr(base, name, None):
            return f"the prefix cache is a {kind.__name__}, whose {name} is its own"
    parts = _parts(cache)
    unknown = sorted(parts.keys() - {"FULL", "SWA", "MAMBA"})
    if unknown:
        return f"the model has a kind of KV cache that is not understood: {unknown}"
    for part in parts.values():
        if not type(part).__module__.startswith("sglang.srt.mem_cache.unified_cache.components"):
            return f"a kind of KV cache is {a_kind(part)}, which is not understood"
    if hybrid_of(cache) is None:
        return None
    if not shows_nodes(cache):
        return f"SGLang's Rust core does not tell what this hybrid model can reuse ({PYTHON_CORE} does)"
    if getattr(cache, "cache_controller", None) is not None:
        return "a hybrid model with KV on the host"
    tail = getattr(cache, "swa_reprefill_tail_tokens", None)
    bounded = not all(getattr(part, "gates_prefix_match", True) for part in parts.values())
    if bounded or (tail is not None and tail()):
        return "the sliding window is computed anew behind a cached prefix"
    return None


def _base_of(kind: type) -> type | None:
    """Return SGLang's own class that a cache is of or derives from; None if there is none."""
    for base in kind.__mro__:
        if f"{base.__module__.removeprefix('sglang.srt.mem_cache.')}.{base.__name__}" in _UNDERSTOOD:
            return base
    return None


class Hybrid(NamedTuple):
    """What a prompt needs at the point where it goes on, in a model with more than full attention.

    Attributes:
        window: tokens of sliding-window KV before that point; 0 if the model has no such window.
        has_window, has_state: tests whether a node has that KV, or a recurrent state; None: not needed.
    """

    window: int
    has_window: Callable[[Any], bool] | None
    has_state: Callable[[Any], bool] | None


def hybrid_of(cache: Any) -> Hybrid | None:
    """Return what the model of a cache needs; None if it has only full attention."""
    window, state = map(_parts(cache).get, ("SWA", "MAMBA"))
    if window is not None or state is not None:
        size = 0 if window is None else int(window.sliding_window_size)
        return Hybrid(size, _held_as(window), _held_as(state))
    if hasattr(cache, "mamba_lru_list"):
        return Hybrid(0, None, lambda node: node.mamba_value is not None)
    if hasattr(cache, "swa_lru_list"):
        return Hybrid(int(cache.sliding_window_size), lambda node: not node.swa_tombstone, None)
    return None


def _held_as(part: Any) -> Callable[[Any], bool] | None:
    return None if part is None else lambda node: node.component_data[part.component_type].value is not None


def _parts(cache: Any) -> dict[str, Any]:
    """Return the components of a `UnifiedRadixCache` by the names of their kinds; empty for other caches."""
    return {kind.name: part for kind, part in getattr(cache, "components", {}).items()}


def is_bigram(cache: Any) -> bool:
    """Whether keys are made of pairs of neighbours (EAGLE)."""
    return bool(getattr(cache, "is_eagle", False) or getattr(tree_core(cache), "is_eagle", False))


def tree_core(cache: Any) -> Any:
    """Return the object with root and strategy: the cache itself, or the core of a `UnifiedRadixCache`."""
    return getattr(cache, "tree_core", cache)


def shows_nodes(cache: Any) -> bool:
    """Whether the tree is made of Python nodes; asked for one, the Rust core raises `NotImplementedError`."""
    try:
        return hasattr(tree_core(cache), "root_node")
    except NotImplementedError:
        return False


MOST_TOKENS: Final = 1 << 22
"""Most tokens of the keys that are remembered until a walk: about 32 MiB."""
_OF_A_KEY: Final = 64
"""What a key counts besides its tokens, in tokens: while only one request waits, no walk clears the keys."""


class Insertions:
    """The keys inserted into a cache, so that a walk need not look everything up again.

    The hook around `insert` of SGLang's classes reports to `cache.peek`, which is this object.  Before its
    first report, and after an internal error, each walk looks everything up.  `size` returns the number of
    tokens in the cache, evictable and locked; `count` is the number of insertions so far.
    """

    def __init__(self, cache: Any, door: Translator, size: Callable[[], int]) -> None:
        self.count = 0
        self._cache = cache
        self._size = size
        self._door = door
        self._came = 0
        """Number of tokens that insertions have added."""
        self._keys: list[Any] = []
        """The remembered keys, those of the latest insertions."""
        self._tokens = 0
        cache.peek = self

    def begin(self, params: Any) -> tuple[Any, int] | None:
        """Return the arguments of `note`, which follows the insertion.  O(1)."""
        try:
            return params.key, self._size()
        except Exception:
            self._fail()
            return None

    def note(self, key: Any, before: int) -> None:
        """Note that a key was inserted into a cache of `before` tokens.  O(1)."""
        try:
            tokens = len(key.token_ids) + _OF_A_KEY
            if self._tokens + tokens > MOST_TOKENS:
                self._forget(0)
            self._tokens += tokens
            self._keys.append(key)
            self.count += 1
            self._came += self._size() - before
        except Exception:
            self._fail()

    def _fail(self) -> None:
        logger.exception("peek is not told of insertions any more; each plan asks SGLang's cache anew")
        self.count = 0
        self._cache.peek = None

    @property
    def version(self) -> tuple[int, int] | None:
        """Insertions so far, and tokens that have left plus a constant; None before the first.  O(1)."""
        return (self.count, self._came - self._size()) if self.count else None

    def since(self, count: int) -> list[tuple[str, bytes]] | None:
        """Return namespaces and packed symbols inserted since the `count`-th; None if not all are known.

        Earlier keys are forgotten.  O(tokens).
        """
        if count < self.count - len(self._keys):
            return None
        self._forget(self.count - count)
        known = self._door.known
        return [known(it.token_ids, it.extra_key, getattr(it, "cache_salt", None)) for it in self._keys]

    def _forget(self, kept: int) -> None:
        """Forget all keys but the `kept` latest."""
        del self._keys[: len(self._keys) - kept]
        self._tokens = sum(len(key.token_ids) + _OF_A_KEY for key in self._keys)


def make_view(cache: Any, door: Translator) -> NodeView | CoreView:
    """Return a read-only `CacheView` of SGLang's prefix cache, for keys that `door` makes."""
    core, hybrid, insertions = tree_core(cache), hybrid_of(cache), None
    told = type(cache).insert is getattr(_base_of(type(cache)), "insert", None)
    if told and hybrid is None and not is_fed_from_elsewhere(cache):  # else KV may come in unnoticed
        insertions = Insertions(cache, door, lambda: int(core.evictable_size() + core.protected_size()))
    if shows_nodes(cache):
        return NodeView(door, insertions, lambda: core.root_node, hybrid)
    from sglang.srt.mem_cache.radix_cache import RadixKey

    def match(tokens: array[int], extra_key: str | None, salt: str | None) -> tuple[int, int]:
        matched, node, _ = core.match_full_device_prefix(RadixKey(tokens, extra_key, cache_salt=salt))
        return int(matched), int(node)

    return CoreView(door, insertions, match)


def is_fed_from_elsewhere(cache: Any) -> bool:
    """Whether KV may come in from the host or another engine."""
    return bool(getattr(cache, "cache_controller", None) or getattr(cache, "linker", None))


def lender_of(cache: Any) -> Callable[[Any, int], int]:
    """Return `lent(request, limit)`: tokens, at most `limit`, that a request's streaming session lends it.

    It returns -1 if the session holds nothing, or the cache has no such sessions; then the tree is asked.
    """
    sessions: Any = getattr(cache, "session", None)
    if not hasattr(sessions, "will_lend_record"):
        return lambda *_: -1
    page = int(cache.page_size)

    def lent(request: Any, limit: int) -> int:
        if not sessions.will_lend_record(request):
            return -1
        kv = sessions.slots[request.session.session_id].kv
        length = min(int(kv.kv_committed_len), limit)
        # If a sliding window has dropped more than `length`, SGLang goes back to a whole page.
        return length - length % page if page > 1 and kv.max_evicted_seqlen > length else length

    return lent


class DemandStrategy:
    """An `EvictionStrategy` by `demand` for a node's id, then by SGLang's own, `inner`.  O(levels)."""

    def __init__(self, inner: Any, demand: Callable[[int], float]) -> None:
        self.inner = inner
        self._demand = demand

    def get_priority(self, node: Any) -> tuple[float, Any]:
        """Return the rank of a leaf; SGLang calls this for every leaf, and evicts the lowest first."""
        return self._demand(node.id), self.inner.get_priority(node)


def set_strategy(cache: Any, strategy: Any) -> None:
    core = tree_core(cache)
    former, core.eviction_strategy = core.eviction_strategy, strategy
    for component in getattr(core, "components", ()):  # 0.5.23 keeps a bound method of the old one
        bound = getattr(component, "session_ref_eviction_strategy", None)
        if getattr(bound, "__self__", None) is former:
            component.session_ref_eviction_strategy = None
