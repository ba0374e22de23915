"""A long run of vLLM's real scheduler with `peek` on it, two steps deep: is anything lost or kept?

    make soak-vllm                                        (100,000 requests)
    PYTHONPATH=tests OMP_NUM_THREADS=1 python tests/vllm/soak.py [--requests 5000] [--sync] [--tiers]

A cache of 400 blocks for 16 seats and about 200 waiting, so blocks are evicted and requests preempted all
the time.  Every twentieth step vLLM is asked what it would find in its cache for everybody that waits, which
must be what the plan counts on.  With `--tiers` vLLM's `SimpleCPUOffloadConnector` keeps evicted blocks in a
lower tier of twice the size, and loads them again; what it holds is no part of what is compared.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any

from support.traffic import Arrival, Soak
from vllm_lab import (
    BLOCK,
    fake_output,
    free_blocks,
    full_attention,
    hash_lookahead,
    make_request,
    make_scheduler,
    make_vllm_config,
    vllm,
)
from vllm_plays import Stepper
from vllm_small import compared

BLOCKS = 400
CHECK_EVERY = 20


def with_tier(config: Any) -> dict[str, Any]:
    """What `make_scheduler` needs for this configuration with a lower tier."""
    from vllm.config import KVTransferConfig
    from vllm.v1.kv_cache_interface import KVCacheTensor

    page = full_attention(BLOCK).page_size_bytes
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="SimpleCPUOffloadConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": 2 * BLOCKS * page},
    )
    return {"config": config, "tensors": [KVCacheTensor(BLOCKS * page, ["layer0"], 0, page)]}


def copied(engine: Any, scheduled: Any) -> Any:
    """A worker's answer that also says that all copies between the tiers are done."""
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

    asked, output = scheduled.kv_connector_metadata, fake_output(engine, scheduled)
    loaded = set(asked.load_event_to_reqs.get(asked.load_event, ()))
    stored = SimpleCPUOffloadWorkerMetadata({asked.store_event: 1} if asked.store_event >= 0 else {})
    output.kv_connector_output = KVConnectorOutput(finished_recving=loaded, kv_connector_worker_meta=stored)
    return output


def soaked(requests: int, asynchronous: bool, policy: str, tiers: bool) -> Soak:
    from peek.adapters.vllm import PeekAsyncScheduler, PeekScheduler

    config = make_vllm_config(
        max_num_seqs=16,
        max_num_batched_tokens=512,
        asynchronous=asynchronous,
        options={"policy": policy},
    )
    kind = PeekAsyncScheduler if asynchronous else PeekScheduler
    engine = make_scheduler(kind, BLOCKS, **(with_tier(config) if tiers else {"config": config}))
    stepper = Stepper(engine, asynchronous, copied if tiers else fake_output)

    def make(new: Arrival) -> Any:
        more = {"lora": new.lora, "cache_salt": new.salt, "ahead": hash_lookahead(engine)}
        return make_request(new.name, new.tokens, new.max_tokens, arrival_time=stepper.now, **more)

    def compare() -> None:
        if stepper.at % CHECK_EVERY == 0:
            for anew, mine, truth in (compared(engine) or {}).values():
                soak.compare(mine if mine == anew else -1, truth)

    soak = Soak(requests, stepper, make, lambda: len(engine.waiting), compare)
    soak.run()
    while tiers and engine.connector.has_pending_push_work():
        scheduled = engine.schedule()
        engine.update_from_output(scheduled, copied(engine, scheduled))
    if tiers:
        soak.log.counts["loads"] = engine.connector.scheduler_manager._load_event_counter
    engine.schedule()  # the adapter learns that the last one has left
    return soak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--sync", action="store_true", help="the synchronous scheduler, one step deep")
    parser.add_argument("--tiers", action="store_true", help="with a lower tier (vLLM 0.32.0 and later)")
    parser.add_argument("--policy", default="peek")
    asked = parser.parse_args()
    logging.disable(logging.INFO)
    soak = soaked(asked.requests, not asked.sync, asked.policy, asked.tiers)
    engine = soak.stepper.engine
    adapter = engine.peek.adapter
    left = {
        "blocks leaked": BLOCKS - 1 - free_blocks(engine),
        "known to vLLM": len(engine.requests) + len(adapter._keys),
        "symbols kept": len(adapter.mirror),
    }
    kind = f"{'sync' if asked.sync else 'async'}{', two tiers' if asked.tiers else ''}"
    title = f"vLLM {vllm.__version__}, {kind}, {asked.policy}"
    sys.exit(soak.verdict(title, engine.peek, left))


if __name__ == "__main__":
    main()
