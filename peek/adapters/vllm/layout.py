"""How a model's KV cache is laid out, as far as a prefix match depends on it.

`layout_of` reads it off a scheduler, or says why the adapter cannot foretell what vLLM would find.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from peek.adapters.vllm.groups import GroupMirror, OtherGroup
from peek.adapters.vllm.mirror import BlockMirror
from peek.adapters.vllm.seams import group_lookup, group_suffix, hash_lookup

KNOWN = ("FullAttentionManager", "SlidingWindowManager", "MambaManager")
"""The managers of vLLM whose way to match a prefix is known here."""


@dataclass
class Layout:
    """What of each KV cache group a prefix needs.

    Attributes:
        unit_tokens: tokens of a block, and of a block hash.
        full: the groups that need all blocks before a point.
        others: groups that need so many blocks in a row in front of it.
        dropped: blocks at the end of a match that vLLM computes anew.
    """

    unit_tokens: int
    full: list[int] = field(default_factory=list)
    others: list[tuple[int, int]] = field(default_factory=list)
    dropped: int = 0

    def mirror(self, pool: Any) -> BlockMirror:
        """The mirror that suits it."""
        suffixes = [group_suffix(group) for group in self.full]
        if len(self.full) == 1 and not self.others and not self.dropped:
            return BlockMirror(self.unit_tokens, hash_lookup(pool), suffixes[0])
        is_cached = group_lookup(pool, suffixes)
        others = [
            OtherGroup(needed, group_lookup(pool, [group_suffix(group)])) for group, needed in self.others
        ]
        return GroupMirror(self.unit_tokens, is_cached, suffixes[0], others, self.dropped)


def why_stand_aside(scheduler: Any) -> str | None:
    """Why the engine's own order stays, None if there is no reason."""
    if not scheduler.kv_cache_manager.enable_caching:
        return "prefix caching is off"
    layout = layout_of(scheduler)
    return layout if isinstance(layout, str) else None


def layout_of(scheduler: Any) -> Layout | str:
    """The layout, or why there is none that the adapter knows."""
    coordinator = scheduler.kv_cache_manager.coordinator
    managers = coordinator.single_type_managers
    if len(managers) != len(scheduler.kv_cache_config.kv_cache_groups) or not managers:
        return f"the model has {len(managers)} KV cache groups with a prefix to match"
    reason = _unknown(scheduler, coordinator, managers)
    if reason is not None:
        return reason
    layout = Layout(managers[0].block_size, dropped=int(_drops_a_block(coordinator)))
    for group, manager in enumerate(managers):
        kind = type(manager).__name__
        if kind == "FullAttentionManager":
            layout.full.append(group)
        elif kind == "MambaManager":
            layout.others.append((group, 1))
        else:
            before = manager.kv_cache_spec.sliding_window - 1
            layout.others.append((group, max(1, -(-before // manager.block_size))))
    return layout


def _unknown(scheduler: Any, coordinator: Any, managers: Any) -> str | None:
    kinds = [type(manager).__name__ for manager in managers]
    strange = sorted(set(kinds) - set(KNOWN))
    if strange:
        return f"a KV cache group is matched by {strange[0]}, which the adapter does not know"
    if "FullAttentionManager" not in kinds:
        return f"none of the model's KV cache groups is one of full attention ({', '.join(kinds)})"
    sizes = sorted({manager.block_size for manager in managers})
    hashed = getattr(scheduler.kv_cache_manager.block_pool, "hash_block_size", None)
    if len(sizes) > 1 or hashed not in (None, sizes[0]):
        hashes = "" if hashed is None else f", hashes of {hashed}"
        return f"the KV cache groups have blocks of different sizes: {', '.join(map(str, sizes))}{hashes}"
    if len(managers) > 1 and _drops_a_block(coordinator):
        return f"a draft model shares the prefix cache with {len(managers)} KV cache groups"
    if getattr(scheduler, "prefix_replay_tokens", 0):
        return "the model computes the end of a prefix match anew"
    return None


def _drops_a_block(coordinator: Any) -> bool:
    """Whether the last block of a match is dropped for a draft model (EAGLE, MTP).

    Since 0.33 a draft model's groups keep their mark and drop nothing where block hashes look ahead.
    """
    for name in ("drop_eagle_group_ids", "eagle_group_ids", "use_eagle"):
        if hasattr(coordinator, name):
            return bool(getattr(coordinator, name))
    return False
