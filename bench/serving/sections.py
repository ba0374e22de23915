"""Sections of the report that look at one engine and one stream at a time."""

from __future__ import annotations

import json

from engines import FAMILY, FIT
from paper import BASELINE, published
from plans import LANES, MAIN, REAL, SIMULATED, W1, W1_MODERATE, W2, W3, W4, W5, WINDOW
from results import STOCKS, Results, change, percent, seconds, table, title

CELLS = (*W1, *W1_MODERATE, *W2, *W3, *W4, *W5)
ENGINE_NAMES = {
    "sglang": "SGLang",
    "vllm": "vLLM",
    "simulated-radix": "simulated, radix",
    "simulated-blocks": "simulated, blocks",
}
PARTS = ("peek, no gate", "peek, no lanes", "peek, no guard")
ORDER = (*MAIN, "hrrn-limit+lru", *PARTS, *LANES)
STEP = {"ttft": "mean TTFT", "ttft_p99": "p99 TTFT", "rps": "throughput"}


def heading(results: Results, engine: str, stream: str) -> str:
    seeds = results.seeds(engine, stream)
    return f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"


def headline(results: Results, engine: str, streams: tuple[str, ...]) -> str:
    """`peek` against the best stock policy of each column."""
    rows = []
    for stream in streams:
        if not results.has(engine, stream, "peek"):
            continue
        cells = [title(stream)]
        for figure in STEP:
            best = results.best(engine, stream, figure)
            assert best is not None
            ours = results.mean(engine, stream, "peek", figure)
            shown = f"{ours:.2f}" if figure == "rps" else seconds(ours)
            cells.append(f"**{change(ours, best[1])}** ({shown}; `{best[0]}`)")
        stock = BASELINE[FAMILY[engine]]
        factor = results.mean(engine, stream, stock, "ttft") / results.mean(engine, stream, "peek", "ttft")
        cells += [f"{factor:.1f}", heading(results, engine, stream)]
        rows.append(cells)
    stock = BASELINE[FAMILY[engine]]
    head = [ENGINE_NAMES[engine], *STEP.values(), f"mean TTFT of `{stock}` / of `peek`", ""]
    return table(head, rows)


def fitted() -> str:
    """The free constant, and what it leaves unexplained."""
    rows = []
    for family, fit in sorted(json.loads(FIT.read_text()).items()):
        paper, ours = fit["paper"], fit["ours"]
        cells = [ENGINE_NAMES[family], f"`{fit['policy']}`", f"{fit['mfu']:.3f}"]
        cells += [
            f"{paper[figure]:g} / {ours[figure]:.1f} ({change(ours[figure], paper[figure])})"
            for figure in ("rps", "ttft", "e2e", "tpot_ms")
        ]
        cells.append(f"{percent(paper['hit'])} / {percent(ours['hit'])}")
        rows.append(cells)
    head = ["engine", "policy", "mfu", "req/s (fitted)", "mean TTFT s", "mean E2E s", "TPOT ms", "hit %"]
    return table(head, rows)


def beside_paper(results: Results, engine: str) -> str:
    """Hit of baseline and published policy, theirs and ours, and the ratios of mean TTFT."""
    family = FAMILY[engine]
    stock, full = BASELINE[family], "clpm+gm+dl+pe"
    rows = []
    for stream in (*CELLS, *WINDOW):
        theirs, peak = published(family, stream, stock), published(family, stream, full)
        ran = all(results.has(engine, stream, policy) for policy in (stock, full, "peek"))
        if theirs is None or peak is None or not ran:
            continue
        hits = [results.mean(engine, stream, policy, "hit") for policy in (stock, full, "peek")]
        ttft = [results.mean(engine, stream, policy, "ttft") for policy in (stock, full, "peek")]
        off = (100 * hits[0] - theirs[1], 100 * hits[1] - peak[1])
        rows.append(
            [
                title(stream),
                f"{theirs[1]:.1f} / {percent(hits[0])} ({off[0]:+.1f})",
                f"{peak[1]:.1f} / {percent(hits[1])} ({off[1]:+.1f})",
                percent(hits[2]),
                f"{seconds(theirs[2])} / {seconds(ttft[0])}",
                f"{seconds(peak[2])} / {seconds(ttft[1])}",
                seconds(ttft[2]),
                f"{theirs[2] / peak[2]:.1f} / {ttft[0] / ttft[1]:.1f}",
            ]
        )
    head = [
        f"{ENGINE_NAMES[engine]}: paper / here",
        f"hit % `{stock}`",
        f"hit % `{full}`",
        "hit % `peek`",
        f"TTFT s `{stock}`",
        f"TTFT s `{full}`",
        "TTFT s `peek`",
        "ratio of the two",
    ]
    return table(head, rows)


def cell_table(results: Results, engine: str, stream: str) -> str:
    """Every policy that was run."""
    rows = []
    ran = results.policies(engine, stream)
    for policy in [name for name in ORDER if name in ran]:
        value = {
            name: results.mean(engine, stream, policy, name)
            for name in ("hit", "ttft", "ttft_p50", "ttft_p99", "wait_max", "rps", "e2e", "tpot_ms", "cpu_us")
        }
        theirs = published(FAMILY[engine], stream, policy)
        rows.append(
            [
                f"`{policy}`",
                percent(value["hit"]),
                *(seconds(value[name]) for name in ("ttft", "ttft_p50", "ttft_p99", "wait_max")),
                f"{value['rps']:.2f}",
                seconds(value["e2e"]),
                f"{value['tpot_ms']:.0f}",
                f"{results.mean(engine, stream, policy, 'preemptions'):.0f}",
                "" if theirs is None else f"{theirs[1]:.1f}, {seconds(theirs[2])}, {theirs[0]:.2f}",
            ]
        )
    head = ["policy", "hit %", "TTFT s", "p50", "p99", "longest wait", "req/s", "E2E s", "TPOT ms"]
    return table([*head, "preempted", "paper: hit, TTFT, req/s"], rows)


def cell_tables(results: Results, engines: tuple[str, ...], streams: tuple[str, ...]) -> str:
    parts = []
    for stream in streams:
        for engine in engines:
            if results.has(engine, stream):
                ideal = results.mean(engine, stream, results.policies(engine, stream)[0], "ideal")
                about = f"{heading(results, engine, stream)}, infinite cache {percent(ideal)} %"
                parts.append(f"**{title(stream)}, {ENGINE_NAMES[engine]}** ({about})\n")
                parts.append(cell_table(results, engine, stream) + "\n")
    return "\n".join(parts)


def losses(
    results: Results,
    streams: tuple[str, ...],
    engines: tuple[str, ...],
    tolerance: float,
    among: tuple[str, ...] = STOCKS,
) -> str:
    """Every column in which `peek` is more than `tolerance` behind the best of some stock policies."""
    rows = []
    for stream in streams:
        for engine in engines:
            if not results.has(engine, stream, "peek"):
                continue
            for figure, name in STEP.items():
                best = results.best(engine, stream, figure, among)
                assert best is not None
                ours = results.mean(engine, stream, "peek", figure)
                worse = ours / best[1] - 1.0 if figure != "rps" else best[1] / ours - 1.0
                if worse > tolerance:
                    seeds = results.by_seed(engine, stream, "peek", best[0], figure)
                    cells = [title(stream), ENGINE_NAMES[engine], name, change(ours, best[1])]
                    rows.append([*cells, f"`{best[0]}`", seeds])
    head = ["stream", "engine", "figure", "`peek`", "against", "each seed"]
    return table(head, rows) if rows else "None.\n"


def cpu(results: Results, engine: str, streams: tuple[str, ...]) -> str:
    """Scheduling CPU time: of `calc_priority` on SGLang, of all of `schedule()` on vLLM."""
    shown = ("fcfs+lru", "lpm+lru", "lpm-nolimit+lru", "hrrn+lru", "clpm+gm+dl+pe", "peek")
    rows = []
    for stream in streams:
        if results.has(engine, stream, "peek"):
            cells = [title(stream)]
            for policy in shown:
                pair = [results.mean(engine, stream, policy, name) / 1e3 for name in ("cpu_us", "cpu_us_p99")]
                cells.append(f"{pair[0]:.2f} / {pair[1]:.2f}")
            rows.append(cells)
    return table([f"{ENGINE_NAMES[engine]}, ms mean / p99", *(f"`{name}`" for name in shown)], rows)


__all__ = ["CELLS", "REAL", "SIMULATED", "STOCKS"]
