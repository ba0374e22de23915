"""Links between the files of the repository, and the checkers of the site's links and search."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.programs import loaded

ROOT = Path(__file__).resolve().parent.parent
TEXTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_relative_link_names_a_file(text: Path) -> None:
    code = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)\s]+)\)", code.sub("", text.read_text(encoding="utf-8")))
    files = [link.partition("#")[0] for link in links if not re.match(r"https?:|#", link)]
    assert [name for name in files if not (text.parent / name).is_file()] == []


def test_the_checker_of_the_site_finds_what_is_broken(tmp_path: Path) -> None:
    links = loaded(ROOT / "docs" / "links.py")
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


def test_the_checker_of_the_search_finds_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sphinx", reason="pip install sphinx")
    search = loaded(ROOT / "docs" / "search.py")
    index = {
        "docnames": ["a", "b", "c"],
        "titles": ["Last", "Middle", "Early"],
        "terms": {"agent": [0, 1, 2], "prioriti": 1},
        "titleterms": {"agent": 1},
        "indexentries": {"agents": [[0, "index-0", True], [2, "index-0", False]]},
    }
    assert search.found(index, "Agents") == ["a", "b", "c"]
    assert search.found(index, "agent priority") == ["b"]
    assert search.found(index, "nobody") == []
    (tmp_path / "searchindex.js").write_text(f"Search.setIndex({json.dumps(index)})")
    monkeypatch.setattr(search, "WANTED", {"agents": ("a", "b")})
    assert search.main(str(tmp_path)) == 0
    monkeypatch.setattr(search, "WANTED", {"priority": ("c",)})
    assert search.main(str(tmp_path)) == 1
    assert capsys.readouterr().out == "'priority' finds ['b'], not ['c'] first\n"
