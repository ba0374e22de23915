"""Every link of the site leads somewhere: `python docs/links.py build/site`.

Without a network: links to other hosts are left alone.  Nothing may be *loaded* from another host, so that
the pages can be read without one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "iframe": "src", "link": "href"}


class Page(HTMLParser):
    """What a page of HTML points to, what it loads, and the names that can be pointed to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.names: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        told = dict(attributes)
        for name in ("id", "name"):
            self.names.add(told.get(name) or "")
        if tag == "a" and told.get("href"):
            self.links.append(told["href"] or "")
        if told.get(LOADED.get(tag, "")):
            self.loads.append(told[LOADED[tag]] or "")


def broken(site: Path) -> Iterator[str]:
    """A line for each link that leads nowhere, and for each thing that is loaded from elsewhere."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site.resolve())
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loads and parts.scheme != "data":
                    yield f"{where}: loads {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                yield f"{where}: {link} is not there"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].names:
                yield f"{where}: {link} names a place that is not there"


def main(site: str) -> int:
    """Print what is broken; the exit code."""
    faults = list(broken(Path(site)))
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
