"""The page of `peek check --html`: one file without scripts and links, so that it can be sent around.

It is made from the same object as the JSON.  It has no text of requests: no prompt and no line of a log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from itertools import count
from pathlib import Path
from typing import Any, Final

from peek.cli.reading import counted
from peek.cli.report import figure_text, target_text
from peek.simulation.answer import FIGURES, OURS, figure_named

Checked = Mapping[str, Any]  # the object that `peek check --json` prints

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2733; --dim: #5b6876; --paper: #fff; --line: #d9e0e7;
  --bar: #9fb1c1; --best: #4a7fb0; --ours: #c8553d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8edf2; --dim: #a3b0bd; --paper: #161b21;
  --line: #333d48; --bar: #5f7385; --best: #6ea3d4; --ours: #e07a62; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { margin: .5rem 0; } li { margin: .25rem 0; } figure { margin: 0; }
.dim, footer { color: var(--dim); font-size: .9rem; }
.answer { border-left: .3rem solid var(--ours); padding: .1rem 0 .1rem 1rem; font-size: 1.1rem;
  margin: 1.25rem 0; }
code { font: .92em ui-monospace, monospace; padding: .1em .3em; border-radius: .25em;
  background: color-mix(in srgb, var(--bar) 22%, transparent); overflow-wrap: anywhere; }
.panels { display: grid; gap: 1.25rem; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font: 15px system-ui, sans-serif; }
svg .ours { fill: var(--ours); font-weight: 600; }
svg rect { fill: var(--bar); } svg rect.best { fill: var(--best); } svg rect.ours { fill: var(--ours); }
svg line { stroke: var(--ink); stroke-width: 1.4; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { font-size: .85rem; vertical-align: bottom; }
td { white-space: nowrap; } td .dim { font-size: .75rem; }
"""


def page(found: Checked) -> str:
    log = found["log"]
    names = ", ".join(Path(name).name for name in log["files"])
    panels = {
        "ttft_s.mean": "Mean time to first token",
        "ttft_s.p99": "99th percentile of it",
        "goodput.0.share": f"Requests in time: {target_text(found['runs'][0]['goodput'][0])}",
    }
    drawn = "".join(f"<figure>{_bars(found, *panel)}</figure>" for panel in panels.items())
    answer = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(found["sentence"]))
    unread = log["not_understood"]["lines"]
    told = [*found["summary"], *[f"lines of no known format: {unread:,}"] * bool(unread), *found["notes"]]
    lines = "".join(f"<li>{escape(each)}</li>" for each in told)
    engine, draws = escape(found["engine"]), found["draws"]
    others = "Grey and blue" if len(found["runs"]) > 2 else "Blue"
    ranges = f" Lines: the range over {counted(draws, 'resample')} of the arrivals." * bool(draws)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>peek check: {escape(names)}</title><style>{_STYLE}</style></head><body><main>
<h1>Would another order of the queue help {engine}?</h1>
<p class="dim">{escape(names)}: {escape(found["summary"][-1])}</p>
<p class="answer">{answer}</p>
<div class="panels">{drawn}</div>
<p class="dim">{others}: what {engine} offers by itself; blue is advised. Red: <code>peek</code>.{ranges}</p>
<h2>All figures</h2><div class="wide">{_table(found)}</div>
<h2>What the log is</h2><ul>{lines}</ul>
<h2>How this was found</h2><p>{_method(found)}</p>
<footer>peek {escape(found["version"])}, {escape(found["backend"])}. This page holds no text of any
request.</footer>
</main></body></html>
"""


def _method(found: Checked) -> str:
    engine, model, card = (escape(found[name]) for name in ("engine", "model", "hardware"))
    assumed = f" Taken for granted: {escape(found['assumed'])}." if found["assumed"] else ""
    return (
        f"A model of {engine} served {found['simulated']:,} of the requests: {model} on {card}, room for"
        f" {found['arena_tokens']:,} tokens, {found['max_running']:,} at once.{assumed} For the ranges,"
        " gaps between arrivals were drawn anew in runs; prompts and their order stayed. A gain of"
        " <code>peek</code> counts only beside the best setting of the engine, in each figure and each"
        " resample. Step times are modelled: trust the direction, not the digits."
    )


def _name(run: Mapping[str, Any]) -> str:
    return str(run["policy"]).removesuffix("+lru")


def _bars(found: Checked, name: str, title: str) -> str:
    """Draw a horizontal bar from 0 for each run, with its range and its value, as SVG."""
    left, width, row, top = 96, 200, 30, 32
    figure, runs = figure_named(name), found["runs"]
    most = max([run["spread"][name][1] for run in runs] + [1e-9])
    parts = [f'<text x="0" y="15" font-weight="600">{escape(title)}</text>']
    for y, run in zip(count(top, row), runs, strict=False):
        value = figure.value(run)
        kind = {OURS: "ours", found["advised"]: "best"}.get(run["policy"], "")
        size, *ends = (width * each / most for each in (value, *run["spread"][name]))
        start, stop = (left + end for end in ends)
        parts += [
            f'<text x="{left - 8}" y="{y + 15}" text-anchor="end" class="{kind}">{escape(_name(run))}</text>',
            f'<rect x="{left}" y="{y + 2}" width="{max(size, 1.0):.1f}" height="18" rx="2" class="{kind}"/>',
            f'<line x1="{start:.1f}" x2="{stop:.1f}" y1="{y + 11}" y2="{y + 11}"/>' if found["draws"] else "",
            f'<text x="{max(left + size, stop) + 6:.1f}" y="{y + 15}">{figure_text(figure, value)}</text>',
        ]
    label = "; ".join(f"{_name(run)} {figure_text(figure, figure.value(run))}" for run in runs)
    return (
        f'<svg viewBox="0 0 {left + width + 70} {top + row * len(runs)}" role="img" '
        f'aria-label="{escape(title)}: {escape(label)}">{"".join(parts)}</svg>'
    )


def _table(found: Checked) -> str:
    runs = found["runs"]
    in_time = [f"in time: {target_text(each)}" for each in runs[0]["goodput"][:2]]
    titles = ("first token, mean", "p99", "last token, mean", *in_time, "requests a second", "cache hit")
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    rows = [
        f"<tr><td>{escape(_name(run))}"
        + f"<br><span class='dim'>{escape(run['setting'])}</span>" * (run["setting"] != OURS)
        + "</td>"
        + "".join(f"<td>{figure_text(each, each.value(run))}</td>" for each in FIGURES)
        + "</tr>"
        for run in runs
    ]
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"
