"""docs/operations.md and the dashboard say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import dashboard

from peek.adapters.activation import MODES
from peek.adapters.lifecycle import FIRST_WAIT, LONGEST_WAIT
from peek.adapters.metrics import LABELS, METRICS

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = (DOCS / "operations.md").read_text(encoding="utf-8")
DASHBOARD = dashboard.load()


def series_name(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def table() -> str:
    """The metrics as the page has them."""
    rows = ["| series | kind | |", "|---|---|---|"]
    for metric in METRICS:
        labels = f" (`{'`, `'.join(metric.labels)}`)" if metric.labels else ""
        name = series_name(metric.name, metric.kind)
        rows.append(f"| `{name}`{labels} | {metric.kind} | {metric.text} |")
    return "\n".join(rows)


def test_the_table_of_metrics_is_the_one_in_the_code() -> None:
    assert table() in PAGE, f"docs/operations.md needs this table:\n{table()}"


def test_labels_waits_and_modes_are_named() -> None:
    assert all(f"`{label}`" in PAGE for label in LABELS)
    assert all(f"| `{mode}` |" in PAGE for mode in MODES)
    assert f"after {FIRST_WAIT:,} calls" in PAGE
    assert f"up to {LONGEST_WAIT:,} calls" in PAGE


@pytest.mark.parametrize("line", re.findall(r"`(tries again [^`]*|has recovered [^`]*)`", PAGE))
def test_log_lines_are_those_of_the_code(line: str) -> None:
    sources = [path.read_text() for path in (DOCS.parent / "peek" / "adapters").glob("*.py")]
    pattern = re.sub(r"\\?\d+", r"\\{self.wait\\}", re.escape(line))
    assert any(re.search(pattern, source) for source in sources), line


# -- the dashboard ------------------------------------------------------------------------------------------


def known_series() -> set[str]:
    found = set()
    for metric in METRICS:
        if metric.kind == "histogram":
            found |= {f"{metric.name}_{ending}" for ending in ("bucket", "sum", "count")}
        else:
            found.add(series_name(metric.name, metric.kind))
    return found


PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_what_there_is(expression: str) -> None:
    used = set(re.findall(r"\bpeek_\w+", expression))
    assert used
    assert used <= known_series()
    for selector in re.findall(r"peek_\w+\{([^}]*)\}", expression):
        names = [part.partition("=")[0] for part in selector.split(",")]
        assert set(names) <= {*LABELS, "reason", "le"}
    assert len(re.findall(r"peek_\w+\{", expression)) == len(re.findall(r"\bpeek_\w+", expression))
    variables = set(re.findall(r"\$(\w+)", expression)) - {"__rate_interval", "__range"}
    assert variables <= {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    for pair in ("()", "{}", "[]"):
        assert expression.count(pair[0]) == expression.count(pair[1])
    counters = re.findall(r"(\w+_(?:total|bucket))\{", expression)
    assert len(re.findall(r"(?:rate|increase)\(peek_", expression)) == len(counters), "a counter as it is"


def test_every_metric_is_on_the_dashboard() -> None:
    shown = set(re.findall(r"\bpeek_\w+", " ".join(EXPRESSIONS)))
    for metric in METRICS:
        names = {name for name in known_series() if name.startswith(metric.name)}
        if metric.name not in ("peek_planned_requests", "peek_withdrawn_requests", "peek_tree_nodes"):
            assert names & shown or metric.name == "peek_protected_evictions", metric.name


def test_panels_are_as_grafana_wants_them() -> None:
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["uid"]
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        assert {"id", "title", "type", "datasource", "gridPos", "fieldConfig", "options", "targets"} <= set(
            panel
        )
        assert panel["type"] in ("timeseries", "stat")
        now = [bool(target.get("instant")) for target in panel["targets"]]
        assert set(now) == {panel["type"] == "stat"}, "what was true an hour ago is not true now"
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{panel['title']} lies over another"
        taken |= cells
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        assert all(target["legendFormat"] for target in panel["targets"])


def missing(wanted: Any, found: Any, at: str = "") -> list[str]:
    """Where `found` lacks what `wanted` has."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [
            path
            for key, value in wanted.items()
            for path in ([f"{at}.{key}"] if key not in found else missing(value, found[key], f"{at}.{key}"))
        ]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [path for i, value in enumerate(wanted) for path in missing(value, found[i], f"{at}[{i}]")]
    return [] if wanted == found else [at]


def test_grafanas_own_model_knows_every_field() -> None:
    """Grafana's types for Python drop what they do not know."""
    models = pytest.importorskip(
        "grafana_foundation_sdk.models.dashboard", reason="no grafana-foundation-sdk"
    )
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    pytest.importorskip("grafana_foundation_sdk.cog.plugins").register_default_plugins()

    def known(given: dict[str, Any]) -> Any:
        return json.loads(encoder.JSONEncoder().encode(models.Dashboard.from_json(given)))

    assert missing(DASHBOARD, known(dashboard.load())) == []
    wrong = dashboard.load()
    wrong["panels"][0]["options"]["colourMode"] = "background"
    assert missing(wrong, known(wrong)) == [".panels[0].options.colourMode"]


def test_variables_ask_for_what_there_is() -> None:
    variables = dashboard.variables()
    assert {"datasource", *variables} == {one["name"] for one in DASHBOARD["templating"]["list"]}
    for series, label in variables.values():
        assert series in known_series()
        assert label in LABELS
