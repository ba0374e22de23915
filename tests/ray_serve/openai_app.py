"""`ray.serve.llm`'s OpenAI endpoint over several vLLM replicas, behind a router of peek's or of Ray's.

    $ serve run openai_app:build model=Qwen/Qwen2.5-0.5B-Instruct replicas=2

in this folder; `router=stock` and `router=prefix` are what it is compared with.  Without a GPU: `cpu=1`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final

from peek.adapters.ray_serve import fleet_options

PREFIX_ROUTER: Final = (
    "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router:PrefixCacheAffinityRouter"
)


def routing(router: str, options: dict[str, Any]) -> dict[str, Any]:
    """What a deployment's configuration says about its router: `peek`, `stock` or `prefix`."""
    if router == "peek":
        return fleet_options(**options)
    chosen = {"max_ongoing_requests": options.get("max_ongoing_requests", 64)}
    if router == "prefix":
        from ray.serve.config import RequestRouterConfig

        chosen["request_router_config"] = RequestRouterConfig(request_router_class=PREFIX_ROUTER)
    return chosen


def build(arguments: dict[str, str]) -> Any:
    """The application.

    Args:
        arguments: `model`, a name or folder; `replicas`; `router`, see `routing`; `options` of
            `fleet_options` and `engine` arguments of vLLM in JSON; `cpu`.
    """
    from ray.serve.llm import LLMConfig, build_openai_app

    said = {"replicas": "1", "router": "peek", "options": "{}", "engine": "{}", "cpu": "", **arguments}
    deployment = {
        "num_replicas": int(said["replicas"]),
        **routing(said["router"], json.loads(said["options"])),
    }
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    config = LLMConfig(
        model_loading_config={"model_id": "m", "model_source": said["model"]},
        deployment_config=deployment,
        engine_kwargs=json.loads(said["engine"]),
        runtime_env={"env_vars": variables},
        **({"accelerator_config": {"kind": "cpu"}} if said["cpu"] else {}),
    )
    return build_openai_app({"llm_configs": [config]})
