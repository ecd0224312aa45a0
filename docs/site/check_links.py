"""Find what is wrong with built pages: dead links and anchors, and files from the network."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Elements that a browser loads with the page, and the attribute with the address.
LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The links, anchors and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a start tag links to, loads or names."""
        found = dict(attrs)
        self.anchors |= {found.get("id") or "", found.get("name") or ""}
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        address = found.get(LOADED.get(tag, ""))
        if address and found.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(address)


def mistakes_of(site: Path) -> list[str]:
    """Return one line for each mistake on the pages below `site`."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        # A server sends this page for any address, so its own addresses begin at the root.
        root = site if name == Path("404.html") else path.parent
        for address in page.loaded:
            if urlsplit(address).netloc:
                found.append(f"{name} loads {address} from the network")
        for address in [*page.links, *page.loaded]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            relative = parts.path.removeprefix("/") if root == site else parts.path
            target = (root / unquote(relative)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{name} links to {address}, which is no file")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name} links to {address}, whose anchor does not exist")
    return found
