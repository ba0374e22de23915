"""How the report writes figures, tables and the names of streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NAMES = {
    "mooncake-conversation": "Mooncake conversation",
    "mooncake-synthetic": "Mooncake synthetic",
    "agents-1": "Coding agents, first request",
    "agents-4": "Coding agents, first four requests",
    "azure-code": "Azure code",
}
"""Of what is recorded; the paper's cells are named after themselves."""
FORMS = {
    "window": "client window",
    "dp2": "DP=2",
    "sglang": "rounds do not wait",
    "vllm": "rounds wait",
}


def title(stream: str) -> str:
    """`w1c:heavy:window` as "W1 C heavy, client window"."""
    kind, load, form = [*stream.split(":"), "", ""][:3]
    if kind.startswith(("mooncake", "azure")):
        rows = f", first {int(form):,} rows" if form else ""
        return f"{NAMES[kind]}, {load} x recorded rate{rows}"
    name = (
        NAMES.get(kind)
        or f"{kind[:2].upper()} {kind[2:].replace('-', '') if '-' in kind else kind[2:].upper()}".strip()
        + f" {load}"
    )
    if form.startswith("arena"):
        return f"{name}, arena {form.removeprefix('arena')}K"
    if form.startswith("rate"):
        return f"{name}, {form.removeprefix('rate')} % of the rate"
    return f"{name}, {FORMS[form]}" if form else name


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def percent(value: float) -> str:
    """A share with one digit: 0.9034 -> 90.3."""
    return f"{100.0 * value:.1f}"


def change(ours: float, theirs: float) -> str:
    """Signed per cent of `ours` against `theirs`."""
    return f"{100.0 * (ours / theirs - 1.0):+.1f} %"


def seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def span(values: Iterable[float], form: str) -> str:
    """ "smallest to largest", each in `form`."""
    known = list(values)
    return f"{min(known):{form}} to {max(known):{form}}"


def code(names: Iterable[str]) -> list[str]:
    return [f"`{name}`" for name in names]
