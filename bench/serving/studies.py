"""Sections of the report that ask a question across streams: ablation, lanes, gate, bounds, client window."""

from __future__ import annotations

from engines import FAMILY
from paper import BASELINE, published
from plans import ALL, RATES, REAL, SIMULATED, W1, W2, WINDOW
from results import Results, change, percent, seconds, table, title
from sections import ENGINE_NAMES

FULL_STACK = "clpm+gm+dl+pe"
PAIRS = (
    ("cLPM alone against the full stack", "clpm", FULL_STACK),
    ("eviction on the stock order", "+pe", "+lru"),
    ("GM added to cLPM", "clpm+gm", "clpm"),
    ("DL added to cLPM+GM", "clpm+gm+dl", "clpm+gm"),
    ("PE added to cLPM+GM+DL", FULL_STACK, "clpm+gm+dl"),
)


def _pair(engine: str, left: str, right: str) -> tuple[str, str]:
    """The stock order of an engine has another name on each."""
    order = BASELINE[FAMILY[engine]].split("+")[0]
    return (order + left if left.startswith("+") else left), (order + right if right[0] == "+" else right)


def ablation(results: Results, engine: str) -> str:
    """Change of hit in points and of mean TTFT in per cent; the paper's in brackets."""
    rows = []
    for stream in W1:
        cells = [title(stream)]
        for _, added, base in PAIRS:
            added, base = _pair(engine, added, base)
            if not (results.has(engine, stream, added) and results.has(engine, stream, base)):
                cells.append("not run")
                continue
            hits = [100 * results.mean(engine, stream, name, "hit") for name in (added, base)]
            ttft = [results.mean(engine, stream, name, "ttft") for name in (added, base)]
            text = f"{hits[0] - hits[1]:+.1f}, {change(ttft[0], ttft[1])}"
            theirs = [published(FAMILY[engine], stream, name) for name in (added, base)]
            if theirs[0] and theirs[1]:
                text += f" ({theirs[0][1] - theirs[1][1]:+.1f}, {change(theirs[0][2], theirs[1][2])})"
            cells.append(text)
        rows.append(cells)
    return table([ENGINE_NAMES[engine], *(name for name, _, _ in PAIRS)], rows)


def spread(results: Results, engine: str, which: int) -> tuple[float, float, float, float]:
    """Smallest and largest change (points of hit, % of mean TTFT) of one pair over the W1 cells."""
    _, added, base = PAIRS[which]
    added, base = _pair(engine, added, base)
    hits, ttft = [], []
    for stream in W1:
        if results.has(engine, stream, added) and results.has(engine, stream, base):
            both = [results.mean(engine, stream, name, "hit") for name in (added, base)]
            hits.append(100 * (both[0] - both[1]))
            times = [results.mean(engine, stream, name, "ttft") for name in (added, base)]
            ttft.append(100 * (times[0] / times[1] - 1))
    return min(hits), max(hits), min(ttft), max(ttft)


def ablation_verdicts(results: Results) -> str:
    """The paper's four directions, each with the range found here."""
    lines = []
    claims = (
        (0, "cLPM alone is within 3 points of hit of the full stack", lambda r: max(-r[0], r[1]) <= 3.0),
        (1, "eviction alone is worth about nothing (1 point, 2 %)", lambda r: max(-r[0], r[1]) <= 1.0),
        (2, "GM costs mean TTFT", lambda r: r[3] > 0.0),
        (3, "DL gives some of it back", lambda r: r[2] < 0.0),
    )
    for which, claim, holds in claims:
        for engine in REAL:
            if any(results.has(engine, stream, "clpm+gm+dl") for stream in W1):
                found = spread(results, engine, which)
                verdict = "confirmed" if holds(found) else "refuted"
                always = "" if which < 2 or found[2] * found[3] > 0 else " in some cells, not in all"
                verdict += always if verdict == "confirmed" else ""
                lines.append(
                    f"- *{claim}*, {ENGINE_NAMES[engine]}: {verdict}."
                    f" Hit {found[0]:+.1f} to {found[1]:+.1f} points, mean TTFT {found[2]:+.0f} to"
                    f" {found[3]:+.0f} %."
                )
    return "\n".join(lines)


def variants(
    results: Results, labels: tuple[str, ...], streams: tuple[str, ...], engines: tuple[str, ...] = ALL
) -> str:
    """hit, mean / p99 TTFT and longest wait of a few policies, side by side."""
    rows = []
    for stream in streams:
        for engine in engines:
            if any(results.has(engine, stream, label) for label in labels[1:]):
                cells = [title(stream), ENGINE_NAMES[engine]]
                for label in labels:
                    if not results.has(engine, stream, label):
                        cells.append("not run")
                        continue
                    hit, mean, p99, longest = (
                        results.mean(engine, stream, label, name)
                        for name in ("hit", "ttft", "ttft_p99", "wait_max")
                    )
                    cells.append(f"{percent(hit)}, {seconds(mean)} / {seconds(p99)}, {seconds(longest)}")
                rows.append(cells)
    return table(["stream", "engine", *(f"`{label}`" for label in labels)], rows)


def bounds(results: Results, engines: tuple[str, ...]) -> str:
    """Hit of stock and `peek`, of the best possible eviction in the same orders, and of an infinite cache."""
    rows = []
    for engine in engines:
        for stream in (*W1, *W2):
            if not (results.has(engine, stream, "peek") and results.has(engine, stream, "fcfs+lru")):
                continue
            cells = [title(stream), ENGINE_NAMES[engine]]
            for policy in ("fcfs+lru", "peek"):
                cells += [percent(results.mean(engine, stream, policy, f)) for f in ("hit", "belady")]
            cells.append(percent(results.mean(engine, stream, "peek", "ideal")))
            rows.append(cells)
    head = ["cell", "engine", "`fcfs+lru`", "Belady, its order", "`peek`", "Belady, its order"]
    return table([*head, "infinite cache"], rows)


def window(results: Results, engine: str) -> str:
    """The W1 cells with a cap on what the client has outstanding, between the open loop and the paper."""
    family = FAMILY[engine]
    stock = BASELINE[family]
    rows = []
    for stream in WINDOW:
        if not results.has(engine, stream, FULL_STACK):
            continue
        cells = [title(stream.removesuffix(":window")), ENGINE_NAMES[engine]]
        for policy in (stock, FULL_STACK):
            theirs = published(family, stream, policy)
            cells.append("" if theirs is None else f"{theirs[1]:.1f}, {seconds(theirs[2])}, {theirs[0]:.2f}")
            forms = (stream.removesuffix(":window"), stream)
            cells += [three(results, engine, form, policy) for form in forms]
        rows.append(cells)
    columns = ("paper", "open loop", "window")
    head = ["hit %, TTFT s, req/s", "", *(f"`{p}`: {c}" for p in (stock, FULL_STACK) for c in columns)]
    return table(head, rows) if rows else ""


def three(results: Results, engine: str, stream: str, policy: str) -> str:
    """hit, mean TTFT and throughput in one cell."""
    if not results.has(engine, stream, policy):
        return "not run"
    hit, ttft, rps = (results.mean(engine, stream, policy, name) for name in ("hit", "ttft", "rps"))
    return f"{percent(hit)}, {seconds(ttft)}, {rps:.2f}"


def arena(results: Results) -> str:
    """Hit of stock and published policy with smaller arenas, beside the paper's."""
    rows = []
    for engine in SIMULATED:
        stock = BASELINE[FAMILY[engine]]
        for cell in ("w1a:heavy", "w1b:heavy", "w1c:heavy", "w1d:heavy"):
            cells = [title(cell), ENGINE_NAMES[engine]]
            for policy in (stock, FULL_STACK):
                theirs = published(FAMILY[engine], cell, policy)
                forms = (f"{cell}:arena35", f"{cell}:arena40", f"{cell}:arena45", cell)
                if theirs is None or not all(results.has(engine, form, policy) for form in forms):
                    continue
                found = [percent(results.mean(engine, form, policy, "hit")) for form in forms]
                cells += [f"{theirs[1]:.1f}", " / ".join(found)]
            if len(cells) == 6:
                rows.append(cells)
    sizes = "35K / 40K / 45K / 50K"
    lines = []
    for place, size in enumerate(sizes.split(" / ")):
        off = [abs(float(row[3].split(" / ")[place]) - float(row[2])) for row in rows]
        if off:
            lines.append(f"{size} {sum(off) / len(off):.1f} (at most {max(off):.1f})")
    means = f"\n\nMean distance of the stock hit from the paper's, in points: {', '.join(lines)}."
    return table(["cell", "engine", "stock: paper", sizes, f"`{FULL_STACK}`: paper", sizes], rows) + means


def lane_verdicts(results: Results, labels: tuple[str, ...]) -> str:
    """What each way to charge costs in hit, and what it does to mean and longest wait, against cLPM alone."""
    lines = []
    for label in labels:
        for engine in ALL:
            ran = [stream for stream in W1 if results.has(engine, stream, label)]
            if not ran:
                continue
            hits, means, longest = [], [], []
            for stream in ran:
                pair = [results.mean(engine, stream, name, "hit") for name in (label, "clpm")]
                hits.append(100 * (pair[0] - pair[1]))
                pair = [results.mean(engine, stream, name, "ttft") for name in (label, "clpm")]
                means.append(pair[0] / pair[1])
                pair = [results.mean(engine, stream, name, "wait_max") for name in (label, "clpm")]
                longest.append(pair[0] / pair[1])
            lines.append(
                f"- `{label}`, {ENGINE_NAMES[engine]}: hit {min(hits):+.1f} to {max(hits):+.1f} points, mean"
                f" TTFT {min(means):.2f} to {max(means):.2f} times, longest wait {min(longest):.2f} to"
                f" {max(longest):.2f} times that of `clpm`."
            )
    return "\n".join(lines)


def twins(results: Results) -> str:
    """How far the simulated engines are from the real ones, over the W1 cells and every policy both ran."""
    lines = []
    for real, twin in zip(REAL, SIMULATED, strict=True):
        gaps = []
        for stream in W1:
            for policy in results.policies(real, stream):
                seeds = sorted(
                    set(results.runs[real, stream][policy])
                    & set(results.runs.get((twin, stream), {}).get(policy, {}))
                )
                for seed in seeds:
                    pair = [results.runs[engine, stream][policy][seed] for engine in (real, twin)]
                    gaps.append(
                        (100 * abs(pair[0]["hit"] - pair[1]["hit"]), pair[1]["ttft"] / pair[0]["ttft"])
                    )
        if gaps:
            hits, ratios = [gap[0] for gap in gaps], [gap[1] for gap in gaps]
            lines.append(
                f"- {ENGINE_NAMES[real]} and its simulated twin, {len(gaps)} W1 runs: hit apart by"
                f" {sum(hits) / len(hits):.1f} points in the mean, {max(hits):.1f} at most; mean TTFT of the"
                f" twin {min(ratios):.2f} to {max(ratios):.2f} times the real engine's."
            )
    return "\n".join(lines)


def against_paper(results: Results, engine: str) -> str:
    """Which cells are within 8 points (stock) and 5 points (published policy) of the paper's hit."""
    family = FAMILY[engine]
    lines = []
    for policy, limit in ((BASELINE[family], 8.0), (FULL_STACK, 5.0)):
        for name, streams in (("W1 and W2", (*W1, *W2)), ("W1 with a client window", WINDOW)):
            off = {}
            for stream in streams:
                theirs = published(family, stream, policy)
                if theirs is not None and results.has(engine, stream, policy):
                    off[stream] = 100 * results.mean(engine, stream, policy, "hit") - theirs[1]
            if off:
                outside = [f"{title(stream)} ({gap:+.1f})" for stream, gap in off.items() if abs(gap) > limit]
                lines.append(
                    f"- {ENGINE_NAMES[engine]}, `{policy}`, {name}: {len(off) - len(outside)} of"
                    f" {len(off)} cells within {limit:.0f} points of hit"
                    + (f"; outside: {', '.join(outside)}." if outside else ".")
                )
    return "\n".join(lines)


def rates(results: Results) -> str:
    """W2 B heavy with slower arrivals: hit, mean TTFT and throughput of stock and published policy."""
    rows = []
    for engine in SIMULATED:
        for policy in (BASELINE[FAMILY[engine]], FULL_STACK):
            theirs = published(FAMILY[engine], "w2b:heavy", policy)
            assert theirs is not None
            cells = [
                ENGINE_NAMES[engine],
                f"`{policy}`",
                f"{theirs[1]:.1f}, {seconds(theirs[2])}, {theirs[0]:.2f}",
            ]
            cells += [three(results, engine, stream, policy) for stream in (*RATES, "w2b:heavy")]
            rows.append(cells)
    head = ["W2 B heavy: hit %, TTFT s, req/s", "policy", "paper"]
    return table([*head, *(f"{r.rpartition('rate')[2]} % of its rate" for r in RATES), "its rate"], rows)
