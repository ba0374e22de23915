"""What SGLang's scheduler calls on its requests and batches, under the names of the installed version."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Sequence
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.schedule_policy import SchedulePolicy
    from sglang.srt.mem_cache import common

FIELDS = {field.name for field in dataclasses.fields(ScheduleBatch)}
CHECKPOINTS = hasattr(common, "checkpoint_kv_cache")
"""0.5.23: the cache keeps what a request has computed by `checkpoint`, and a row is freed apart from it."""
COUNTS_TOKENS = "processed_tokens" in inspect.signature(SchedulePolicy.calc_priority).parameters
FILTERS_RUNNING = CHECKPOINTS
"""Finished requests leave the running batch before prefill, and an empty batch is never full."""
STOPS_WHEN_SPENT = CHECKPOINTS
SKIPS_ENDING = CHECKPOINTS
"""In overlap mode, whoever is about to end by length is not decoded once more."""
EXCLUDE = (
    "reqs_to_exclude"
    if "reqs_to_exclude" in inspect.signature(ScheduleBatch.filter_batch).parameters
    else "chunked_req_to_exclude"
)
_COUNTER = "inflight_middle_chunks"
CHUNKS = _COUNTER if _COUNTER in inspect.getsource(Req.__init__) else "is_chunked"
"""How many chunks, not the last one, of a request have been launched and not been answered."""
ABORTS_CHUNKS = CHUNKS == _COUNTER
"""A request aborted between two chunks ends there; before, it runs to the end of its prefill."""

ASKS_FOR_SEATS = ABORTS_CHUNKS
"""Without a free seat the policy is not asked; before, it is, and then nobody enters."""


def free_rows(pool: Any, entered: Sequence[Any], otherwise: int) -> int:
    """Rows of the request pool for a batch that `entered` are in; `otherwise` where no one looks at them."""
    if not ABORTS_CHUNKS:
        return otherwise
    held = sum(request.kv.holds_kv for request in entered) if CHECKPOINTS else 0
    return int(pool.available_size()) + held


def prefix_len(request: Any) -> int:
    found = getattr(request, "prefix_len", None)
    return len(request.prefix_indices) if found is None else int(found)


def chunks_in_flight(request: Any) -> int:
    return int(getattr(request, CHUNKS))


def count_chunk(request: Any, change: int) -> None:
    setattr(request, CHUNKS, getattr(request, CHUNKS) + change)


def limit_chunk(adder: Any, policy: Any, chunked: Any, queue: Sequence[Any], page_size: int) -> None:
    """0.5.23, shortest prefill first: the next chunk leaves room for shorter prompts that wait."""
    limit = getattr(policy, "shortest_prefill_chunk_limit", None)
    if limit is not None:
        adder.chunked_req_limit = limit(chunked, queue, adder.rem_chunk_tokens or 0, page_size)


def stash_chunk(request: Any, tree: Any) -> None:
    """Put a finished chunk into the tree, before the next one is prepared."""
    if CHECKPOINTS:
        if request.extend_end > request.prefix_len:
            common.checkpoint_kv_cache(request, tree)
    else:
        tree.cache_unfinished_req(request, chunked=True)


def cache_unfinished(request: Any, tree: Any) -> None:
    if CHECKPOINTS:
        common.checkpoint_kv_cache(request, tree)
    else:
        tree.cache_unfinished_req(request)


def release(request: Any, tree: Any, *, insert: bool) -> None:
    if CHECKPOINTS:
        common.release_kv_cache(request, tree, checkpoint=insert)
    else:
        common.release_kv_cache(request, tree, is_insert=insert)


def check_finished(request: Any) -> None:
    update = getattr(request, "update_finish_state", None) or request.check_finished
    update()


def retract(batch: Any, settings: Any) -> tuple[list[Any], float, list[Any]]:
    """(retracted, the new share of reserved tokens, given up)"""
    takes_settings = "server_args" in inspect.signature(batch.retract_decode).parameters
    found: tuple[list[Any], float, list[Any]] = batch.retract_decode(*([settings] if takes_settings else []))
    return found


def ending(running: Any, launched: Any) -> list[Any]:
    """Those of a running batch whose last token is in the result of `launched`, and who are left out."""
    if not SKIPS_ENDING:
        return []
    due = set(launched.reqs)
    return [
        request
        for request in running.reqs
        if request in due and len(request.output_ids) + 1 >= request.sampling_params.max_new_tokens
    ]


def set_next_input(batch: Any, tokens: Any) -> None:
    if "output_ids" in FIELDS:
        batch.output_ids = tokens
    else:
        batch.input_ids = tokens
