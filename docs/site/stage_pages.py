"""Collect the pages of the site in build/docs, from which Zensical builds build/site.

The site has the files of docs, the README as its first page, further pages of the repository, and
one page of reference for each package. Links between pages work in the repository and on the site:
a link that leaves docs is rewritten. Files that are no pages are copied, as text.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from reference_pages import reference_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STAGED = ROOT / "build" / "docs"
# Where a file of the repository that is not in docs stands on the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples.md",
    "src/anyrig/virtual/csrc/README.md": "virtual_sources.md",
}
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)")


def place_of(path: Path) -> str:
    """Return where the site has a file of the repository, relative to its root."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if name.startswith("build/gallery/"):
        return name.removeprefix("build/")
    return PAGES.get(name, f"files/{name}.txt")


def with_links_of_the_site(text: str, source: Path, place: str) -> str:
    """Return the text of a page with its links to files as the site has them, and copy these."""

    def rewrite(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / link[1]))
        if not target.is_file():
            raise SystemExit(f"{source.relative_to(ROOT)} links to {link[1]}, which is no file")
        found = place_of(target)
        if found.startswith("files/"):
            copy(target, found)
        return "](" + os.path.relpath(found, Path(place).parent)

    parts = FENCE.split(text)
    blocks = [*FENCE.findall(text), ""]
    rewritten = [LINK.sub(rewrite, part) for part in parts]
    return "".join(part + block for part, block in zip(rewritten, blocks, strict=True))


def copy(path: Path, place: str) -> None:
    """Copy a file to its place in the folder of staged pages."""
    target = STAGED / place
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def stage() -> None:
    """Write all pages and files of the site."""
    shutil.rmtree(STAGED, ignore_errors=True)
    outside = [ROOT / name for name in PAGES if (ROOT / name).exists()]
    for path in [*sorted(DOCS.rglob("*.*")), *sorted(ROOT.glob("build/gallery/*.html")), *outside]:
        place = place_of(path)
        if path.is_relative_to(DOCS / "site") and path.suffix not in (".css", ".js"):
            continue
        copy(path, place)
        if path.suffix == ".md":
            text = with_links_of_the_site(path.read_text(), path, place)
            (STAGED / place).write_text(text)
    for place, text in reference_pages(ROOT / "src").items():
        (STAGED / place).parent.mkdir(parents=True, exist_ok=True)
        (STAGED / place).write_text(text)


if __name__ == "__main__":
    stage()
