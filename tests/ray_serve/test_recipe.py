"""The application of deploy/ray as Ray itself builds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from serving import needs_its_vllm
from support.recipes import DEPLOY, of_ray_app

BUILD = """
import json, yaml
from ray.serve.deployment import Application
from ray.serve.schema import ServeDeploySchema
asked = ServeDeploySchema(**yaml.safe_load(open("serve.yaml")))
file, _, name = asked.applications[0].import_path.partition(":")
module = __import__(file)
assert isinstance(getattr(module, name), Application)
print(json.dumps([module.config.deployment_config["max_ongoing_requests"], module.config.engine_kwargs]))
"""


@needs_its_vllm
def test_ray_builds_the_application() -> None:
    path = os.pathsep.join(each for each in sys.path if each)
    done = subprocess.run(
        [sys.executable, "-c", BUILD],
        cwd=Path(DEPLOY, "ray"),
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    fleet, engine = of_ray_app()
    assert json.loads(done.stdout.splitlines()[-1]) == [fleet["max_ongoing_requests"], engine]
