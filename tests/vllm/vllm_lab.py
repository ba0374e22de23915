"""vLLM's real Scheduler and KVCacheManager without a model: what the tests and the bench share.

The fake model of `support.stepping` stands in for the worker.  Works on 0.19.1, 0.24.0 and 0.32.0, whose
constructors and modules differ.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    import vllm
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.config.cache import MambaCacheMode
    from vllm.lora.request import LoRARequest
    from vllm.pooling_params import PoolingParams
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus
    from vllm.v1.structured_output import StructuredOutputManager
    from vllm.v1.structured_output.backend_types import StructuredOutputGrammar


sys.path.append(str(Path(__file__).parents[1]))  # behind everything, for a bench that has this folder only

from support.models import TINY_LLAMA, write_config
from support.stepping import expected_tokens, token_at

__all__ = [
    "TINY_LLAMA", "AsyncScheduler", "MambaCacheMode", "RequestStatus", "Scheduler", "StructuredOutputGrammar",
    "expected_tokens", "vllm", "write_model",
]  # fmt: skip

BLOCK = 16
write_model = write_config
"""A model of two layers, made by hand; its weights are never loaded."""


@lru_cache
def model_folder() -> str:
    return write_model(Path(tempfile.mkdtemp(prefix="tiny-llama-")))


@lru_cache
def _model_config(max_model_len: int) -> Any:
    return ModelConfig(
        model=model_folder(), dtype="float16", seed=42, skip_tokenizer_init=True, max_model_len=max_model_len
    )


def make_vllm_config(
    *,
    block_size: int = BLOCK,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 8192,
    max_model_len: int = 8192,
    asynchronous: bool = False,
    caching: bool = True,
    priority: bool = False,
    options: object = None,
    events: Any = None,
) -> Any:
    """A `VllmConfig`.

    Args:
        options: what `--additional-config` holds under "peek".
        events: what is published of the cache, a `KVEventsConfig`.
    """
    scheduling = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        enable_chunked_prefill=True,
        async_scheduling=asynchronous,
        is_encoder_decoder=False,
        policy="priority" if priority else "fcfs",
    )
    cache = CacheConfig(
        block_size=block_size,
        gpu_memory_utilization=0.9,
        cache_dtype="auto",
        enable_prefix_caching=caching,
    )
    config = VllmConfig(
        scheduler_config=scheduling, model_config=_model_config(max_model_len), cache_config=cache
    )
    config.scheduler_config.async_scheduling = asynchronous  # the CPU platform forces it to False
    config.additional_config = {} if options is None else {"peek": options}
    config.kv_events_config = events
    cache.block_size = block_size
    return config


LOOKS_AHEAD = hasattr(VllmConfig, "num_hash_lookahead_tokens")
"""0.33: with a draft model a block's hash covers the next token too, and no block is dropped."""


class Draft:
    """What a scheduler reads off a `SpeculativeConfig` of EAGLE; drafts nothing."""

    num_speculative_tokens = 1
    num_speculative_tokens_per_batch_size = None
    max_num_new_slots_for_drafting = 0
    method = "eagle"

    def __init__(self, ahead: bool) -> None:
        self.disable_lookahead_block_hashes = not ahead

    def use_eagle(self) -> bool:
        return True

    def use_eagle_block_drop(self) -> bool:
        return True

    def needs_eagle_block_drop(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return (lambda *args: False) if name.startswith(("use", "uses")) else None


def full_attention(block_size: int) -> Any:
    return FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)


def make_scheduler(
    cls: Any = Scheduler,
    num_blocks: int = 1000,
    block_size: int = BLOCK,
    specs: Iterable[Any] | None = None,
    config: Any = None,
    shards: int = 1,
    eagle: bool = False,
    ahead: bool = False,
    tensors: Iterable[Any] = (),
    **settings: Any,
) -> Any:
    """A scheduler over `num_blocks` blocks (one of them is vLLM's null block).

    Args:
        specs: of the KV cache groups; one of full attention where none is given.
        shards: ranks that a block of so many tokens is spread over (decode context parallelism).
        eagle: as with a draft model that shares the prefix cache; `ahead` with hashes that look ahead.
        tensors: the memory of the KV cache, for a connector that goes by its size.
    """
    if config is None:
        config = make_vllm_config(block_size=block_size, **settings)
    config.parallel_config.decode_context_parallel_size = shards
    if eagle:
        config.speculative_config = Draft(ahead)
    config.cache_config.num_gpu_blocks = num_blocks
    specs = list(specs or [full_attention(block_size)])
    modes = {spec.mamba_cache_mode for spec in specs if hasattr(spec, "mamba_cache_mode")}
    config.cache_config.mamba_cache_mode = max(modes, default="none")
    groups = [KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(specs)]
    if eagle and hasattr(groups[0], "is_eagle_group"):
        groups[0].is_eagle_group = True
    cache = KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=list(tensors), kv_cache_groups=groups)
    try:  # newer versions need the registry of specs filled
        from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    except ImportError:
        pass
    else:
        register_all_kvcache_specs(config)
    scheduler = cls(
        vllm_config=config,
        kv_cache_config=cache,
        block_size=shards * block_size,
        log_stats=False,
        structured_output_manager=StructuredOutputManager(config),
    )
    if hasattr(scheduler, "use_v2_model_runner"):
        scheduler.use_v2_model_runner = False
    return scheduler


@lru_cache
def _hasher(block_size: int, ahead: int = 0) -> Any:
    init_none_hash(sha256)
    return get_request_block_hasher(block_size, sha256, *([ahead] if ahead else []))


def hash_lookahead(scheduler: Any) -> int:
    """Tokens behind a block that its hash covers, for `make_request`."""
    return int(getattr(scheduler, "num_hash_lookahead_tokens", 0))


def make_request(
    name: str,
    tokens: list[int],
    max_tokens: int = 4,
    block_size: int = BLOCK,
    *,
    hashed: bool = True,
    lora: str | None = None,
    skip_reading: bool | None = None,
    grammar: bool = False,
    pooling: bool = False,
    ahead: int = 0,
    **more: Any,
) -> Any:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0)
    sampling.skip_reading_prefix_cache = skip_reading
    if grammar:
        sampling.structured_outputs = StructuredOutputsParams(regex=".*")
    if lora is not None:
        more["lora_request"] = LoRARequest(lora, 1 + zlib.crc32(lora.encode()) % 1000, "/nowhere")
    pools = PoolingParams(task="embed", skip_reading_prefix_cache=skip_reading)
    return Request(
        request_id=name,
        prompt_token_ids=tokens,
        sampling_params=None if pooling else sampling,
        pooling_params=pools if pooling else None,
        block_hasher=_hasher(block_size, ahead) if hashed else None,
        **more,
    )


def fake_output(scheduler: Any, scheduled: Any) -> Any:
    """A worker's answer: one token for each request whose prefill is complete; it accepts no draft."""
    names = list(scheduled.num_scheduled_tokens)
    tokens: list[list[int]] = []
    for name in names:
        request = scheduler.requests[name]
        done = not request.is_prefill_chunk
        drafts = len(scheduled.scheduled_spec_decode_tokens.get(name, ()))
        tokens.append([token_at(name, request.num_computed_tokens - drafts)] if done else [])
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: i for i, name in enumerate(names)},
        sampled_token_ids=tokens,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[None] * len(names),
    )


QUEUES = ("waiting", "skipped_waiting", "kv_holding_waiting")


def queued(scheduler: Any) -> list[Any]:
    """Everybody in a waiting list, whatever this version calls its lists."""
    return [request for name in QUEUES if hasattr(scheduler, name) for request in getattr(scheduler, name)]


def waiting_names(scheduler: Any) -> list[str]:
    return [request.request_id for request in scheduler.waiting]


def free_blocks(scheduler: Any) -> int:
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def cached_now(scheduler: Any, request: Any) -> int:
    """vLLM's own answer: prompt tokens of a request that it would find in its cache."""
    return int(scheduler.kv_cache_manager.get_computed_blocks(request)[1])


def takes_throttle() -> bool:
    return "throttle_prefills" in inspect.signature(Scheduler.schedule).parameters
