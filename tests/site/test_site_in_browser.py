"""Every page of the site and the gallery in a real browser. `make test-docs` runs this.

Set SCREENSHOTS to a folder to keep a picture of each page.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, find_browser

SITE = Path(__file__).parents[2] / "build" / "site"
PATH = find_browser()
pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(PATH is None, reason="no Chromium is installed (apt-get install chromium)"),
    pytest.mark.skipif(not SITE.exists(), reason="build/site does not exist (make docs)"),
]
# A server sends 404.html for any address, so its links begin at the server's root.
PAGES = sorted(page for page in SITE.rglob("*.html") if page.name != "404.html")
# A page that moves sideways has something wider than the window outside of a box that scrolls.
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"
SEARCH = "document.activeElement.shadowRoot"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PATH is not None
    browser = Browser(PATH, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(SITE).as_posix())
def test_a_page_opens_without_an_error(
    browser: Browser, page: Path, scheme: str, width: int
) -> None:
    browser.messages.clear()
    browser.open(page, width=width, scheme=scheme)
    if folder := os.environ.get("SCREENSHOTS"):
        name = page.relative_to(SITE).as_posix().replace("/", "-")
        browser.screenshot(Path(folder) / f"{name}-{width}-{scheme}.png")
    assert browser.messages == []
    needed, given = browser.evaluate(WIDTHS)
    assert needed <= given
    brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    if page.parent != SITE / "gallery":  # whose pages have the colours of the system
        assert (browser.evaluate(brightness) > 128) == (scheme == "light")


def test_the_search_works_from_the_disk(browser: Browser) -> None:
    browser.messages.clear()
    browser.open(SITE / "start.html", width=1400)
    browser.press("/")
    browser.wait_for(f"{SEARCH}?.activeElement?.tagName === 'INPUT'")
    for letter in "recompute_blocks":
        browser.press(letter)
    browser.wait_for(f"{SEARCH}.querySelector('a[href*=\"memory.html\"]')")
    assert browser.messages == []
