"""The dashboard's panels and their expressions, in the form in which Prometheus gets them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent.parent / "docs" / "dashboards" / "peek.json"


def load() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def expressions(rate_interval: str, whole: str) -> dict[str, str]:
    """Every expression with its variables filled in as Grafana does for "All", by panel and series."""
    found = {}
    for panel in load()["panels"]:
        for target in panel["targets"]:
            asked = target["expr"].replace("$__rate_interval", rate_interval).replace("$__range", whole)
            found[f"{panel['title']} {target['refId']}"] = re.sub(r"\$\w+", ".*", asked)
    return found


def variables() -> dict[str, tuple[str, str]]:
    """The series and the label whose values a variable offers, by its name."""
    asked = {}
    for variable in load()["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert match is not None
            asked[variable["name"]] = (match[1], match[2])
    return asked
