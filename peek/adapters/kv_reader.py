"""What vLLM and SGLang say in their KV events, put into an `EventView`.  No I/O.

Only what is in the engine's own memory counts (medium `GPU`, which vLLM says on a CPU, too), and of a model
with several kinds of caches the first kind with full attention, so a hit may be shorter than the view says.
What follows images or embeddings in a prompt is left out: their content is not in the tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from peek.adapters.sglang.symbols import namespace_of
from peek.fleet import EventView
from peek.trie.keys import pack

logger = logging.getLogger(__name__)

FIELDS: Final = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
    ),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}
"""What stands where in events that are published as arrays (vLLM before 0.24, SGLang before 0.5.23)."""

WHOLE_PROMPT: Final = (None, "full_attention", "mla_attention")
"""Kinds of caches in which a block is of use with all blocks before it."""


class EventReader:
    """Events of one engine, applied to a view; no I/O.

    Args:
        view: what to keep current.
        symbols: packed symbols of the tokens of some whole blocks; None: each token is one, `unit_tokens` of
            the fleet is 1.  Must not depend on what comes before.
        namespace: `PendingRequest.namespace` of requests with this LoRA name and cache salt, None for none.

    Attributes:
        faults: events that could not be read, and were left out; the first is logged.
    """

    def __init__(
        self,
        view: EventView,
        symbols: Callable[[list[int]], bytes] | None = None,
        namespace: Callable[[str | None, str | None], str] = namespace_of,
    ) -> None:
        self.view = view
        self.faults = 0
        self._symbols: Callable[[list[int]], bytes] = pack if symbols is None else symbols
        self._namespace = namespace
        self._group: int | None = None
        """Of several kinds of caches the one that counts."""

    def apply(self, events: Sequence[Any]) -> None:
        """Events in their order, as decoded from msgpack.  One that cannot be read is left out."""
        for event in events:
            try:
                self._apply(_as_mapping(event))
            except Exception:
                self.leave_out()

    def leave_out(self) -> None:
        """Count what could not be read; for `except` blocks."""
        self.faults += 1
        if self.faults == 1:
            logger.exception("a KV event could not be read; it and others like it are left out")

    def _apply(self, event: Mapping[str, Any]) -> None:
        kind = event["type"]
        if kind == "AllBlocksCleared":
            self.view.clear()
        elif event.get("medium") not in (None, "GPU") or event.get("locality") not in (None, "LOCAL"):
            return
        elif kind == "BlockStored":
            if self._counts(event):
                self._stored(event)
        elif kind == "BlockRemoved":
            if event.get("group_idx") in (None, self._group):
                self.view.removed(_hashes(event["block_hashes"]))
        else:
            raise ValueError(f"event of type {kind!r}")

    def _counts(self, event: Mapping[str, Any]) -> bool:
        group = event.get("group_idx")
        if group is None:
            return True
        if self._group is None and event.get("kv_cache_spec_kind") in WHOLE_PROMPT:
            self._group = group
        return bool(group == self._group)

    def _stored(self, event: Mapping[str, Any]) -> None:
        hashes = _hashes(event["block_hashes"])
        parent = event["parent_block_hash"]
        _hashes([] if parent is None else [parent])
        size, tokens, lora = event["block_size"], event["token_ids"], event.get("lora_name")
        salt = event.get("cache_salt")
        if len(tokens) != len(hashes) * size:
            raise ValueError(f"{len(tokens)} tokens in {len(hashes)} blocks of {size}")
        for number, keys in enumerate(event.get("extra_keys") or ()):
            other = list(keys or ())
            if lora is not None and other[:1] == [lora]:
                del other[0]
            if number == 0 and parent is None and len(other) == 1 and isinstance(other[0], str):
                salt = other[0]
            elif other:
                hashes, tokens = hashes[:number], tokens[: number * size]
                break
        if hashes:
            self.view.stored(hashes, parent, self._symbols(tokens), self._namespace(lora, salt))


def _as_mapping(event: Any) -> Mapping[str, Any]:
    """An event by the names of its fields."""
    if isinstance(event, dict):
        return event
    return {"type": event[0], **dict(zip(FIELDS[event[0]], event[1:], strict=False))}


def _hashes(hashes: Any) -> list[object]:
    """`TypeError` for what is no list of hashes."""
    for each in hashes:
        if type(each) not in (int, bytes):
            raise TypeError(f"block hash {each!r}")
    return list(hashes)
