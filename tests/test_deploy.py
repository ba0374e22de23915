"""The recipes of deploy/ name what there is: options, variables, flags, series, ports, files, versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.recipes import (
    DEPLOY,
    IN_IMAGE,
    Container,
    alarms,
    config_map,
    containers,
    load,
    of_ray_app,
    options,
    series_of,
)

from peek.adapters import fleet_metrics
from peek.adapters.activation import KNOWN_VARIABLES, OTHER_VARIABLES, Settings, settings_from
from peek.adapters.engine_adapter import TESTED
from peek.adapters.lifecycle import Switch
from peek.adapters.metrics import LABELS, METRICS, Metric
from peek.adapters.ray_serve.settings import VERSIONS, checked

ROOT = DEPLOY.parent
PAGE = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
NAMES = [str(path.relative_to(DEPLOY)) for path in FILES]
MANIFESTS = ("kubernetes/peek.yaml", "kubernetes/vllm.yaml", "kubernetes/sglang.yaml")
CONTAINERS = list(containers())
each_container = pytest.mark.parametrize("container", CONTAINERS, ids=lambda container: container.where)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_parses_and_the_page_names_it(name: str) -> None:
    if name.endswith((".yaml", ".yml", ".json")):
        assert all(load(name))
    elif name.endswith(".py"):
        compile((DEPLOY / name).read_text(encoding="utf-8"), name, "exec")
    else:
        assert name == "Dockerfile"
    folder = name.rpartition("/")[0]
    assert f"`deploy/{name}`" in PAGE or f"`deploy/{folder}/`" in PAGE, "not on docs/deploying.md"


def test_the_page_names_no_file_that_is_not_there() -> None:
    named = re.findall(r"`deploy/([\w./-]*)`", PAGE)
    assert named
    assert [name for name in named if not (DEPLOY / name).exists()] == []


def test_every_variable_is_one_that_is_read() -> None:
    """Also those in the recipes' comments; none of an operator's own begins like ours."""
    for path in FILES:
        found = set(re.findall(r"\bPEEK_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")))
        assert found <= {*KNOWN_VARIABLES, *OTHER_VARIABLES}, path


# -- settings ---------------------------------------------------------------------------------------------


def test_the_options_are_taken_and_begin_in_shadow(tmp_path: Path) -> None:
    for text in ((DEPLOY / "peek.json").read_text(encoding="utf-8"), config_map()["peek.json"]):
        file = tmp_path / "peek.json"
        file.write_text(text)
        settings = settings_from({"PEEK_CONFIG": f"@{file}"})
        assert (settings.config.policy, settings.mode) == ("peek", "shadow")
        assert settings == Settings.from_dict(options())
    assert config_map()["mode"] == options()["mode"]


def test_doctor_takes_them_as_the_image_asks_it_to(tmp_path: Path) -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    ((copied, target),) = re.findall(r"^COPY (\S+) (\S+)$", text, re.MULTILINE)
    assert (DEPLOY / copied).is_file()
    assert Path(target) == IN_IMAGE
    assert f"ENV PEEK_CONFIG=@{target}\n" in text
    (command,) = re.findall(r"^RUN python3 (-m peek .*)$", text, re.MULTILINE)
    for file, code in ((DEPLOY / copied, 0), (DEPLOY / "compose.yaml", 1)):
        done = subprocess.run(
            [sys.executable, *command.split()],
            env={**os.environ, "PEEK_CONFIG": f"@{file}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert ("shadow at start" in done.stdout) == (code == 0)


@each_container
def test_an_engine_finds_its_options_and_its_control_file(container: Container) -> None:
    file = Path(container.environ["PEEK_CONFIG"].removeprefix("@"))
    assert (
        file == IN_IMAGE
        or container.mounts[str(file.parent)] == load("kubernetes/peek.yaml")[0]["metadata"]["name"]
    )
    assert file.name in config_map()
    control = Path(options()["control_file"])
    source = container.mounts[str(control.parent)]
    assert source == "./control" or (source == "peek" and control.name in config_map())


@pytest.mark.parametrize("word", ["on", "off", "shadow"])
def test_the_switch_follows_a_config_map(tmp_path: Path, word: str) -> None:
    """A kubelet lays a new folder beside the old one and swaps a link; times of the files may be equal."""

    def lay(name: str, mode: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mode").write_text(mode)
        os.utime(tmp_path / name / "mode", (1, 1))
        (tmp_path / "..tmp").symlink_to(name)
        os.replace(tmp_path / "..tmp", tmp_path / "..data")

    lay("..1", config_map()["mode"])
    (tmp_path / "mode").symlink_to("..data/mode")
    switch = Switch("shadow", str(tmp_path / "mode"), 1)
    assert switch.look() == "shadow"
    lay("..2", word)
    shutil.rmtree(tmp_path / "..1")
    assert switch.look() == word


# -- engines ----------------------------------------------------------------------------------------------


@each_container
def test_an_engine_is_started_so_that_peek_can_work(container: Container) -> None:
    if container.engine == "vllm":
        module, _, name = container.flag("--scheduler-cls").rpartition(".")
        assert name in import_module(module).__all__
    else:
        assert "--enable-metrics" in container.flags, "no metrics without it"
    found = re.search(r":v?([\d.]+)$", container.image)
    assert found is not None
    assert found[1] in TESTED[container.engine]
    if container.ports:
        assert container.ports == [int(container.flag("--port"))]
        assert container.flag("--host") == "0.0.0.0"
    assert container.flag("--served-model-name") == load("litellm.yaml")[0]["model_list"][0]["model_name"]


def test_prefix_caching_is_on_in_the_chart() -> None:
    """Its template turns it off where the values say nothing."""
    (values,) = load("production-stack.yaml")
    assert values["servingEngineSpec"]["modelSpec"][0]["vllmConfig"]["enablePrefixCaching"] is True


def test_compose_names_what_is_there() -> None:
    services = load("compose.yaml")[0]["services"] | load("compose.litellm.yaml")[0]["services"]
    volumes = load("compose.yaml")[0]["volumes"]
    mounted = {}
    for name, service in services.items():
        for volume in service["volumes"]:
            source, target = volume.split(":")[:2]
            mounted[name, target] = source
            assert source in volumes or source == "./control" or (DEPLOY / source).exists(), volume
        for word in service.get("command", []):
            file = re.fullmatch(r"--config(?:\.file)?=(.*)", word)
            assert file is None or (name, file[1]) in mounted
        if "healthcheck" in service:
            (port,) = [int(port.rpartition(":")[2]) for port in service["ports"]]
            assert f":{port}/health" in service["healthcheck"]["test"][-1]
    (rules,) = load("prometheus.yml")[0]["rule_files"]
    assert mounted["prometheus", f"/etc/prometheus/{rules}"] == f"./{rules}"
    (provider,) = load("grafana/dashboards.yaml")[0]["providers"]
    dashboards = DEPLOY / mounted["grafana", provider["options"]["path"]]
    assert [path.name for path in dashboards.iterdir()] == ["peek.json"]


def test_addresses_lead_to_services() -> None:
    services = load("compose.yaml")[0]["services"]
    reached = {
        f"{name}:{port.rpartition(':')[2]}" for name, each in services.items() for port in each["ports"]
    }
    (scraped,) = load("prometheus.yml")[0]["scrape_configs"]
    (targets,) = (each["targets"] for each in scraped["static_configs"])
    (source,) = load("grafana/datasources.yaml")[0]["datasources"]
    (model,) = load("litellm.yaml")[0]["model_list"]
    named = [source["url"], model["litellm_params"]["api_base"].removesuffix("/v1")]
    assert {*targets, *(url.removeprefix("http://") for url in named)} <= reached
    assert source["type"] == "prometheus", "of which type the dashboard's variable is"


@pytest.mark.parametrize("name", ["kubernetes/vllm.yaml", "kubernetes/sglang.yaml"])
def test_a_manifest_holds_together(name: str) -> None:
    deployment, service = load(name)
    template = deployment["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert pod["enableServiceLinks"] is False, (
        "VLLM_PORT of a service `vllm` is no port; PEEK_... would be warned of"
    )
    for wanted in (deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"]):
        assert wanted.items() <= labels.items()
    (served,) = service["spec"]["ports"]
    assert served["port"] == ports[served["targetPort"]]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    assert not any("subPath" in mount for mount in container["volumeMounts"]), "would never change"
    monitor = load("kubernetes/monitoring.yaml")[0]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["podMetricsEndpoints"][0]["port"] in ports


def test_the_app_of_ray_serve_asks_for_what_there_is() -> None:
    fleet, engine = of_ray_app()
    asked = checked(fleet)
    assert asked["seats"] == engine["max_num_seqs"] < asked["max_ongoing_requests"], "its engine orders"
    assert Settings.from_dict(engine["additional_config"]["peek"]) == Settings.from_dict(options())
    module, _, name = engine["scheduler_cls"].rpartition(".")
    assert name in import_module(module).__all__
    (app,) = load("ray/serve.yaml")[0]["applications"]
    file, _, made = app["import_path"].partition(":")
    assert f"\n{made} = " in (DEPLOY / "ray" / f"{file}.py").read_text(encoding="utf-8")
    assert f"Ray {VERSIONS[-1].rstrip('.')}," in (DEPLOY / "ray" / "serve.yaml").read_text(encoding="utf-8")


# -- alarms -----------------------------------------------------------------------------------------------


def exported() -> set[str]:
    """Every series of engines and fleets; Ray puts its name before a fleet's."""

    def of(metric: Metric) -> list[str]:
        if metric.kind == "histogram":
            return [f"{metric.name}_{ending}" for ending in ("bucket", "sum", "count")]
        return [f"{metric.name}_total" if metric.kind == "counter" else metric.name]

    engines = {name for metric in METRICS for name in of(metric)}
    fleets = {name for metric in fleet_metrics.METRICS for name in of(metric)}
    return engines | fleets | {f"ray_{name}" for name in fleets}


@pytest.mark.parametrize("expression", alarms().values(), ids=list(alarms()))
def test_an_alarm_names_series_that_are_exported(expression: str) -> None:
    assert series_of(expression)
    assert series_of(expression) <= exported()
    for names in re.findall(r"(?:on|by) \(([^)]*)\)", expression):
        assert set(re.split(r", *", names)) <= {*LABELS, "instance", "le"}
    for selector in re.findall(r"\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)[=!]", selector)) <= {*LABELS, "reason"}


def test_summaries_name_series_that_are_exported() -> None:
    groups = load("alerts.yml")[0]["groups"]
    notes = [note for group in groups for rule in group["rules"] for note in rule["annotations"].values()]
    assert set.union(*map(series_of, notes)) <= exported()
    assert all("summary" in rule["annotations"] for group in groups for rule in group["rules"])


def test_every_alarm_is_tried_and_told_to_the_operator() -> None:
    (tried,) = load("alerts_test.yml")
    assert {rule["alertname"] for test in tried["tests"] for rule in test["alert_rule_test"]} == set(alarms())
    assert load("kubernetes/monitoring.yaml")[1]["spec"]["groups"] == load("alerts.yml")[0]["groups"]
    assert set(re.findall(r"\| `(Peek\w+)` \|", PAGE)) == set(alarms())


@pytest.mark.parametrize(
    "command", ["check config prometheus.yml", "check rules alerts.yml", "test rules alerts_test.yml"]
)
def test_promtool_is_content(command: str) -> None:
    tool = shutil.which("promtool") or str(Path(os.environ.get("PROMETHEUS", "-")).parent / "promtool")
    if not Path(tool).is_file():
        pytest.skip(
            "no `promtool` on the path, nor beside the program that PROMETHEUS names: `make prometheus`"
        )
    done = subprocess.run([tool, *command.split()], cwd=DEPLOY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# -- schemas ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["compose.yaml", "compose.litellm.yaml"])
def test_compose_files_are_as_the_specification_says(name: str) -> None:
    compose = pytest.importorskip("compose_spec", reason="pip install compose-spec")
    text = (DEPLOY / name).read_text(encoding="utf-8")
    compose.PyCompose.from_yaml(text)
    with pytest.raises(ValueError, match="restarts"):
        compose.PyCompose.from_yaml(text.replace("restart:", "restarts:", 1))


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_are_as_kubernetes_says(name: str) -> None:
    schema: Any = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for document in load(name):
        schema.validate(document, "1.34", strict=True)
        with pytest.raises(schema.ValidationError):
            schema.validate({**document, "specs": {}}, "1.34", strict=True)
