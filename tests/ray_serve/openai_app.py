"""`ray.serve.llm`'s OpenAI endpoint over several vLLM replicas, behind a router of peek's.

    $ serve run openai_app:build model=Qwen/Qwen2.5-0.5B-Instruct replicas=2

in this folder.  Without a GPU: `cpu=1`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from peek.adapters.ray_serve import fleet_options


def build(arguments: dict[str, str]) -> Any:
    """The application.

    Args:
        arguments: `model`, a name or folder; `replicas`; `options` of `fleet_options` and
            `engine` arguments of vLLM in JSON; `cpu`.
    """
    from ray.serve.llm import LLMConfig, build_openai_app

    said = {"replicas": "1", "options": "{}", "engine": "{}", "cpu": "", **arguments}
    deployment = {"num_replicas": int(said["replicas"]), **fleet_options(**json.loads(said["options"]))}
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    config = LLMConfig(
        model_loading_config={"model_id": "m", "model_source": said["model"]},
        deployment_config=deployment,
        engine_kwargs=json.loads(said["engine"]),
        runtime_env={"env_vars": variables},
        **({"accelerator_config": {"kind": "cpu"}} if said["cpu"] else {}),
    )
    return build_openai_app({"llm_configs": [config]})
