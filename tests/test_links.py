"""Links between the files of the repository, and the checker of the site's."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_relative_link_names_a_file(text: Path) -> None:
    code = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)\s]+)\)", code.sub("", text.read_text(encoding="utf-8")))
    files = [link.partition("#")[0] for link in links if not re.match(r"https?:|#", link)]
    assert [name for name in files if not (text.parent / name).is_file()] == []


def test_the_checker_of_the_site_finds_what_is_broken(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("peek_links", ROOT / "docs" / "links.py")
    assert spec is not None
    assert spec.loader is not None
    links = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(links)
    good = '<a href="b.html#here">b</a><a href="https://example.org">c</a><h1 id="top"/><a href="#top">d</a>'
    (tmp_path / "a.html").write_text(good)
    (tmp_path / "b.html").write_text('<h1 id="here">b</h1><img src="data:image/png;base64,AA">')
    assert list(links.broken(tmp_path)) == []
    (tmp_path / "c.html").write_text(
        '<a href="d.html">no page</a><a href="b.html#there">no place</a><a href="#nor">here</a>'
        '<script src="https://example.org/x.js"></script><img src="gone.svg">'
    )
    assert [fault.partition(": ")[2] for fault in links.broken(tmp_path)] == [
        "d.html is not there",
        "b.html#there names a place that is not there",
        "#nor names a place that is not there",
        "loads https://example.org/x.js",
        "gone.svg is not there",
    ]
    assert links.main(str(tmp_path)) == 1
