"""What people type finds the page that tells of it: `python docs/search.py build/site`.

Ranks pages as the search of the site does: main entries of the index, then headings, then text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from sphinx.search.en import SearchEnglish

WANTED: Final = {
    "custom policy": ("own_policy",),
    "starvation": ("lanes",),
    "kubernetes": ("deploying",),
    "docker": ("deploying",),
    "anthropic": ("trace",),
    "LoRA": ("sglang", "vllm"),
    "agents": ("policies", "evaluation_losses"),
    "priority": ("sglang", "vllm", "policies"),
    "prometheus": ("deploying", "operations"),
    "shadow": ("operations",),
    "litellm": ("deploying",),
}
"""Query -> the pages that must come first, in this order."""

MAIN, HEADING, TEXT = 100, 15, 5


def load(site: Path) -> dict[str, Any]:
    """The index of a built site."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    return dict(json.loads(text[text.index("(") + 1 : text.rindex(")")]))


def found(index: dict[str, Any], query: str) -> list[str]:
    """The pages that a query finds, the best first."""
    stem = SearchEnglish({}).stem
    scores: list[dict[int, int]] = []
    for word in query.lower().split():
        of_word = dict.fromkeys(_pages(index["terms"].get(stem(word), [])), TEXT)
        of_word.update(dict.fromkeys(_pages(index["titleterms"].get(stem(word), [])), HEADING))
        scores.append(of_word)
    best = {page: max(each[page] for each in scores) for page in set.intersection(*map(set, scores))}
    entries = index["indexentries"].get(query.lower(), [])
    best.update({page: MAIN for page, _, is_main in entries if is_main})
    titles = index["titles"]
    return [index["docnames"][page] for page in sorted(best, key=lambda at: (-best[at], titles[at].lower()))]


def _pages(listed: int | list[int]) -> list[int]:
    """Sphinx writes a single page without a list."""
    return [listed] if isinstance(listed, int) else listed


def faults(index: dict[str, Any]) -> list[str]:
    """A line for each query that does not find its pages first."""
    said = []
    for query, pages in WANTED.items():
        shown = found(index, query)
        if tuple(shown[: len(pages)]) != pages:
            said.append(f"{query!r} finds {shown[:5]}, not {list(pages)} first")
    return said


def main(site: str) -> int:
    """Print what is not found; the exit code."""
    said = faults(load(Path(site)))
    sys.stdout.write("".join(f"{fault}\n" for fault in said))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
