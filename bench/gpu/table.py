"""The table and the plot of stored results: `python -m bench.gpu.table RESULTS.jsonl [PLOT.png]`.

The table is Markdown, ratios to stock first: TTFT and E2E as stock / policy, throughput as policy / stock,
so that more is better everywhere.  None where a replay was cut off, whose means are of early requests.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

Stored = dict[str, Any]
"""A line of results.jsonl."""

HEAD = (
    "| model | load | policy | TTFT ×, mean | TTFT ×, p99 | throughput × | E2E × | TTFT mean / p50 / p99, s "
    "| E2E mean, s | TPOT, ms | requests/s | cached tokens | hit | finished |\n" + "|---" * 14 + "|"
)


def read(path: Path) -> list[Stored]:
    """The stored results; a last line that was cut off is left out."""
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"{path}: a line that is cut off is left out", file=sys.stderr)
    return rows


def table(rows: list[Stored]) -> str:
    """All results, by model and load, each beside the stock result of the same."""
    stock = {_setting(row): row for row in rows if row["policy"] == "stock"}
    ordered = sorted(
        rows, key=lambda row: (row["model"], row["load"], row["policy"] != "stock", row["policy"])
    )
    lines = [_line(row, stock.get(_setting(row))) for row in ordered]
    runs = {
        f"{row['device']}, vLLM {row['vllm']}, torch {row['torch']}, "
        f"peek {row['peek']} ({row['peek_backend']})"
        for row in rows
    }
    return "\n".join([*sorted(runs), "", HEAD, *lines])


def _setting(row: Stored) -> tuple[Any, ...]:
    return row["model"], row["load"], row["seed"], row["rate_scale"], row["device"]


def _line(row: Stored, stock: Stored | None) -> str:
    ttft = row["ttft_s"]
    cells = [row["model"], row["load"], row["policy"], *_ratios(row, stock)]
    cells += [" / ".join(f"{ttft[name]:.3g}" for name in ("mean", "p50", "p99"))]
    cells += [f"{row['e2e_s']['mean']:.3g}", f"{row['tpot_ms']['mean']:.3g}", f"{row['throughput_rps']:.3g}"]
    cells += [
        f"{row['cached_tokens']:,}",
        f"{row['cache_hit']:.3f}",
        f"{row['finished']} of {row['requests']}",
    ]
    return "| " + " | ".join(cells) + " |"


def _ratios(row: Stored, stock: Stored | None) -> list[str]:
    if stock is None or any(one["finished"] < one["requests"] for one in (row, stock)):
        return [""] * 4
    pairs = [
        (stock["ttft_s"]["mean"], row["ttft_s"]["mean"]),
        (stock["ttft_s"]["p99"], row["ttft_s"]["p99"]),
        (row["throughput_rps"], stock["throughput_rps"]),
        (stock["e2e_s"]["mean"], row["e2e_s"]["mean"]),
    ]
    return [f"{more / less:.2f}" if less else "" for more, less in pairs]


def plot(rows: list[Stored], path: Path) -> None:
    """Share of requests whose first token had come, over time: a row per model, a column per load."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models, loads = (sorted({row[of] for row in rows}) for of in ("model", "load"))
    size = (4.2 * len(loads), 3.4 * len(models))
    figure, axes = pyplot.subplots(len(models), len(loads), figsize=size, squeeze=False)
    for axis, (model, name) in zip(axes.flat, product(models, loads), strict=True):
        for row in rows:
            if (row["model"], row["load"]) == (model, name):
                times = sorted(row["ttft_each_s"])
                shares = [(place + 1) / row["requests"] for place in range(len(times))]
                axis.step(times, shares, where="post", label=row["policy"])
        axis.set(title=f"{name}, {model}", xlabel="TTFT, s", ylabel="share of requests", ylim=(0, 1.02))
        if axis.lines:
            axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    stored = read(Path(sys.argv[1]))
    print(table(stored))
    if len(sys.argv) > 2:
        plot(stored, Path(sys.argv[2]))
