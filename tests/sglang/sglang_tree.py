"""Looking into SGLang's cache without touching it: a full picture, and the length of a match.

The Rust core shows no nodes.  Of it the picture holds what it tells: each slot with its position and the
slot before it, all of them and the unlocked ones, the nodes with their lengths and locks as it prints
them, and the sizes.  Times of use it tells nobody; `eviction_order` brings them to light, and empties the
cache.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

from sglang_lab import World, key_of, leaked

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams
    from sglang.srt.mem_cache.radix_cache import RadixKey, TreeNode

__all__ = ["cached_sequences", "eviction_order", "leaked", "locked", "match_len", "nodes", "snapshot"]

SIZES = ("evictable_size_", "protected_size_", "component_evictable_size_", "component_protected_size_")
LEAVES = ("evictable_leaves", "evictable_device_leaves", "evictable_host_leaves")
FREE = ("free_pages", "release_pages", "staged_pages")


def tree_of(world: World) -> Any:
    """The object that holds the nodes: the cache itself, or its tree core."""
    return getattr(world.tree, "tree_core", world.tree)


def shows_nodes(world: World) -> bool:
    return world.core != "rust"


def nodes(world: World) -> Iterator[Any]:
    """Every node, parents before children; not for the Rust core."""
    stack = [tree_of(world).root_node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(list(node.children.values())))


def locked(world: World) -> int:
    """Tokens in the tree that somebody holds: 0 when nobody runs."""
    return int(world.tree.protected_size())


# -- a match without a trace ------------------------------------------------------------------------------


def namespace(key: Any) -> tuple[Any, ...]:
    return key.extra_key, getattr(key, "cache_salt", None), key.is_bigram


def cached_sequences(world: World) -> list[tuple[tuple[Any, ...], list[int]]]:
    """(namespace, tokens) from the root to every leaf; not for the Rust core."""
    root = tree_of(world).root_node
    found = []
    stack: list[tuple[Any, list[int]]] = [(child, []) for child in root.children.values()]
    while stack:
        node, before = stack.pop()
        tokens = before + list(node.key.token_ids)
        if node.children:
            stack.extend((child, tokens) for child in node.children.values())
        else:
            found.append((namespace(node.key), tokens))
    return found


def match_len(world: World, request: Any) -> int:
    """How many tokens of a waiting request are in the cache, in whole pages; leaves no trace.

    By comparison with every cached sequence, so that nothing is shared with the code under test; the Rust
    core is asked for its own match that changes nothing.
    """
    key = key_of(request)
    if not shows_nodes(world):
        return int(world.tree.tree_core.match_full_device_prefix(key)[0])
    wanted, own = list(key.token_ids), namespace(key)
    best = 0
    for other, tokens in cached_sequences(world):
        if other == own:
            best = max(best, _common(wanted, tokens) // world.page_size * world.page_size)
    return best


def _common(a: list[int], b: list[int]) -> int:
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


# -- a picture of everything ------------------------------------------------------------------------------


def snapshot(world: World) -> dict[str, Any]:
    """All that the cache and the allocator hold, in a form that compares."""
    free = {name: _plain(getattr(world.allocator, name, None)) for name in FREE}
    tree = world.tree  # caches of hybrid models before 0.5.23 have a size for each kind of KV
    sizes = [
        int((getattr(tree, f"full_{name}", None) or getattr(tree, name))())
        for name in ("evictable_size", "protected_size")
    ]
    inside = _python_tree(world) if shows_nodes(world) else _rust_tree(world)
    return {"free": free, "sizes": sizes, "rows": _plain(world.pool.free_slots), **inside}


def _python_tree(world: World) -> dict[str, Any]:
    tree = tree_of(world)
    picture: dict[str, Any] = {"nodes": [_plain_node(node) for node in nodes(world)]}
    picture["counters"] = (TreeNode.counter, getattr(type(tree.root_node), "counter", None))
    for name in SIZES:
        picture[name] = _plain(getattr(tree, name, None))
    for name in LEAVES:
        picture[name] = sorted(node.id for node in getattr(tree, name, ()))
    return picture


def _rust_tree(world: World) -> dict[str, Any]:
    core = world.tree.tree_core
    walks = [core.walk_for_kv_canary(unlocked_only, False) for unlocked_only in (False, True)]
    rows = [_plain([walk.slot_indices, walk.positions, walk.prev_slot_indices]) for walk in walks]
    return {"slots": rows, "printed": _printed(core), "total": tuple(core.total_size())}


def _printed(core: Any) -> str:
    """What Rust writes to the process's standard output."""
    sys.stdout.flush()
    keep = os.dup(1)
    try:
        with tempfile.TemporaryFile() as sink:
            os.dup2(sink.fileno(), 1)
            core.pretty_print()
            os.dup2(keep, 1)
            sink.seek(0)
            return sink.read().decode()
    finally:
        os.dup2(keep, 1)
        os.close(keep)


def _plain_node(node: Any) -> dict[str, Any]:
    picture = {name: _plain(value) for name, value in vars(node).items() if name != "children"}
    picture["children"] = [(_plain(key), child.id) for key, child in node.children.items()]
    return picture


def _plain(value: Any) -> Any:
    """A copy without tensors, keys and nodes; a node becomes its id."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, RadixKey):
        return list(value.token_ids), namespace(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "lru_next") or isinstance(value, TreeNode):
        return value.id
    if hasattr(value, "host_lock_ref"):  # a component's data of a node
        return {name: _plain(getattr(value, name)) for name in _fields(value)}
    return value


def _fields(value: Any) -> list[str]:
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    return slots or sorted(vars(value))


def eviction_order(world: World) -> list[list[int]]:
    """Pages in the order in which the cache gives them up, one eviction at a time.  Empties it."""
    order = []
    before = set(_free_pages(world))
    while int(world.tree.evictable_size()):
        world.tree.evict(EvictParams(num_tokens=1))
        after = set(_free_pages(world))
        assert after > before, "an eviction freed nothing"
        order.append(sorted(after - before))
        before = after
    return order


def _free_pages(world: World) -> list[int]:
    held = [getattr(world.allocator, name, None) for name in FREE]
    flat = [part for one in held if one is not None for part in (one if isinstance(one, list) else [one])]
    return [page for part in flat for page in part.tolist()]
