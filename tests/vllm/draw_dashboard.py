"""Draws the dashboard from what a Prometheus answered: `draw_dashboard.py DATA.json PICTURE.png`.

DATA is what `test_prometheus.py` leaves where DASHBOARD_DATA says.  It is no picture of Grafana: panels lie
where Grafana puts them, with their titles, legends and units, and matplotlib draws them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from support import dashboard


def legend(target: dict[str, Any], labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), target["legendFormat"])


def draw_lines(axes: Any, panel: dict[str, Any], found: dict[str, Any]) -> None:
    scale = 100 if panel["fieldConfig"]["defaults"].get("unit") == "percentunit" else 1
    for target in panel["targets"]:
        for one in found[f"{panel['title']} {target['refId']}"]:
            times, values = zip(*((at, float(value) * scale) for at, value in one["values"]), strict=True)
            axes.plot([at - START for at in times], values, label=legend(target, one["metric"]))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="upper left", ncols=2)


def draw_stat(axes: Any, panel: dict[str, Any], found: dict[str, Any]) -> None:
    target = panel["targets"][0]
    texts = []
    colour = "tab:green"
    for one in found[f"{panel['title']} {target['refId']}"]:
        at, value = one["values"][-1]
        if at < END - 0.5:
            continue  # an instant query would not show it
        number = f"{float(value):.0f}"
        mappings = panel["fieldConfig"]["defaults"].get("mappings", [{"options": {}}])
        mapped = mappings[0]["options"].get(number, {"text": number, "color": "tab:green"})
        steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
        colour = next(
            (s["color"] for s in reversed(steps) if (s["value"] or 0) <= float(value)), mapped["color"]
        )
        shown = {"name": "", "value_and_name": f"{mapped['text']}\n"}.get(panel["options"]["textMode"])
        texts.append(mapped["text"] if shown is None else shown + legend(target, one["metric"]))
    axes.set_facecolor(colour)
    size = 15 if len(max(texts, default="", key=len)) < 30 else 7
    axes.text(0.5, 0.5, "\n".join(texts), ha="center", va="center", fontsize=size, color="white")
    axes.set_xticks([])
    axes.set_yticks([])


FOUND: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
MOMENTS = [at for panel in FOUND.values() for one in panel for at, _ in one["values"]]
START, END = min(MOMENTS), max(MOMENTS)

if __name__ == "__main__":
    panels = dashboard.load()["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(16, height * 0.5))
    for panel in panels:
        at = panel["gridPos"]
        below = height - at["y"] - at["h"]
        axes = figure.add_axes(
            ((at["x"] + 0.8) / 24, (below + 1) / height, (at["w"] - 1.2) / 24, (at["h"] - 2) / height)
        )
        unit = panel["fieldConfig"]["defaults"].get("unit", "short")
        name = {"percentunit": ", %", "short": ""}.get(unit, f", {unit}")
        axes.set_title(panel["title"] + name, fontsize=10)
        (draw_stat if panel["type"] == "stat" else draw_lines)(axes, panel, FOUND)
    figure.savefig(sys.argv[2], dpi=80)
