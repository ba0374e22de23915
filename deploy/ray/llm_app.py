"""An OpenAI endpoint over two vLLM replicas of Ray Serve, behind peek's router: `serve run llm_app:app`."""

from __future__ import annotations

from ray.serve.llm import LLMConfig, build_openai_app

from peek.adapters.ray_serve import fleet_options

config = LLMConfig(
    model_loading_config={"model_id": "served", "model_source": "Qwen/Qwen2.5-7B-Instruct"},
    accelerator_type="H100",
    deployment_config={
        "num_replicas": 2,
        # A replica takes requests beyond its seats if it has half of their prompt.
        # Its log gives the cache size.
        **fleet_options(max_ongoing_requests=1_000, seats=64, cache_tokens=400_000),
        "max_queued_requests": 10_000,  # limit of each proxy; beyond it clients get 503 and Retry-After
    },
    engine_kwargs={
        "enable_prefix_caching": True,
        "max_num_seqs": 64,
        # Each replica orders what it was sent.
        "scheduler_cls": "peek.adapters.vllm.Scheduler",
        "additional_config": {
            "peek": {"policy": "peek", "mode": "shadow", "control_file": "/run/peek/mode"},
        },
    },
)
app = build_openai_app({"llm_configs": [config]})
