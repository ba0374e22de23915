"""Reads the recipes of deploy/ as the programs that run them do."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.served import Server, say

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
IN_IMAGE = Path("/etc/peek/peek.json")
"""Where deploy/Dockerfile puts peek.json."""


def load(name: str) -> list[Any]:
    """The documents of a file in YAML or JSON."""
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Container:
    """A container that runs an engine.

    Attributes:
        where: file and name.
        image: what it is made from, or its own name.
        words: the command line.
        environ: what the recipe sets.
        mounts: where its folders come from: path inside -> a folder here, or the name of a ConfigMap.
        ports: where it is reached.
    """

    where: str
    image: str
    words: list[str]
    environ: dict[str, str]
    mounts: dict[str, str]
    ports: list[int]

    @property
    def engine(self) -> str:
        """Which engine, by the command."""
        return "sglang" if "sglang.launch_server" in self.words else "vllm"

    @property
    def flags(self) -> list[str]:
        """What is said to the server, without what depends on the machine."""
        theirs = ("--model-path=", "--served-model-name=", "--host=", "--port=")
        return [word for word in self.words if word.startswith("--") and not word.startswith(theirs)]

    def flag(self, name: str) -> str:
        """The value of a flag, "" without it."""
        return next((word.partition("=")[2] for word in self.words if word.startswith(f"{name}=")), "")


def containers() -> Iterator[Container]:
    """Every container of an engine, in all recipes."""
    for name, service in load("compose.yaml")[0]["services"].items():
        if "build" in service:
            mounts = dict(reversed(volume.split(":")[:2]) for volume in service["volumes"])
            words = service["entrypoint"] + service["command"]
            ports = [int(port.rpartition(":")[2]) for port in service["ports"]]
            image = service["build"]["args"]["ENGINE"]
            environ = {"PEEK_CONFIG": f"@{IN_IMAGE}"}
            yield Container(f"compose.yaml: {name}", image, words, environ, mounts, ports)
    for name in ("kubernetes/vllm.yaml", "kubernetes/sglang.yaml"):
        pod = load(name)[0]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        ports = [port["containerPort"] for port in container["ports"]]
        yield Container(
            name, container["image"], container["command"] + container["args"], *_seen(container, pod), ports
        )
    (values,) = load("production-stack.yaml")
    (model,) = values["servingEngineSpec"]["modelSpec"]
    shaped = {"env": model["env"], "volumeMounts": model["extraVolumeMounts"]}
    yield Container(
        "production-stack.yaml",
        f"{model['repository']}:{model['tag']}",
        ["vllm", "serve", model["modelURL"], *model["vllmConfig"]["extraArgs"]],
        *_seen(shaped, {"volumes": model["extraVolumes"]}),
        [],
    )


def _seen(container: dict[str, Any], pod: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """The environment and the mounted ConfigMaps of a pod's container."""
    maps = {volume["name"]: volume.get("configMap", {}).get("name", "") for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: maps[mount["name"]] for mount in container["volumeMounts"]}
    return {each["name"]: each["value"] for each in container["env"]}, mounts


def options() -> dict[str, Any]:
    """What peek.json asks for."""
    return dict(json.loads((DEPLOY / "peek.json").read_text(encoding="utf-8")))


def config_map() -> dict[str, str]:
    """The files of the ConfigMap."""
    return dict(load("kubernetes/peek.yaml")[0]["data"])


def alarms(file: str = "alerts.yml") -> dict[str, str]:
    """The expression of each alarm, by its name."""
    (found,) = load(file)
    groups = found["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def series_of(expression: str) -> set[str]:
    """The series that an expression names."""
    return set(re.findall(r"\b(?:ray_)?peek_\w+", expression))


def of_ray_app() -> tuple[dict[str, Any], dict[str, Any]]:
    """What ray/llm_app.py says to `fleet_options`, and to the engine."""
    tree = ast.parse((DEPLOY / "ray" / "llm_app.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    said = {
        call.func.id: {each.arg: each.value for each in call.keywords if each.arg}
        for call in calls
        if isinstance(call.func, ast.Name)
    }
    fleet = {name: ast.literal_eval(value) for name, value in said["fleet_options"].items()}
    return fleet, ast.literal_eval(said["LLMConfig"]["engine_kwargs"])


def settle(folder: Path) -> dict[str, str]:
    """Lay the recipes' options into a folder, the control file beside them; the environment that says so."""
    asked = {**options(), "control_file": str(folder / Path(options()["control_file"]).name)}
    file = folder / "peek.json"
    file.write_text(json.dumps(asked), encoding="utf-8")
    return {"PEEK_CONFIG": f"@{file}"}


def roll_out(server: Server, folder: Path, serve: Callable[[], object]) -> None:
    """Shadow, on, off: as docs/deploying.md has it, the state of a server follows the file in this folder.

    Args:
        serve: some requests; the file is looked at every so many calls of the scheduler.
    """
    for word in ("", "on", "off"):
        if word:
            say(folder, word)
        for _ in range(30):
            serve()
            states = {series: value for series, value in server.series("peek_state{").items() if value == 1}
            (found,) = [re.findall(r'reason="(\w+)', series)[0] for series in states]
            if found == (word or "shadow"):
                break
        assert found == (word or "shadow")
        assert server.metric("peek_active") == (word == "on")
    assert server.metric("peek_fallbacks_total") == 0
