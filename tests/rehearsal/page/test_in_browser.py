"""A page in a real browser: drawn, zoomed, hovered over, searched, and walked through by keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from example_facts import make_facts
from test_written_page import hostile_facts

from anyrig.rehearsal.page.write import write_page
from browser import Browser, find_browser

PATH = find_browser()
pytestmark = pytest.mark.skipif(
    PATH is None,
    reason="no Chromium is installed (apt-get install chromium-headless-shell, or "
    "python -m playwright install chromium)",
)
# The share of a canvas, without 180 pixels at its left and 24 at its top, that has a bright colour.
COLOURED = """(canvas => {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(180, 24, width - 200, height - 24);
  let coloured = 0;
  for (let i = 0; i < data.length; i += 4) {
    const [red, green, blue] = data.slice(i, i + 3);
    coloured += Math.max(red, green, blue) - Math.min(red, green, blue) > 60;
  }
  return coloured / (data.length / 4);
})"""
INK = f"{COLOURED}(document.getElementById('timeline'))"
TOOLTIP = "(e => e.hidden ? '' : e.innerText)(document.getElementById('tooltip'))"
SPAN = "document.getElementById('span')?.textContent"
CHOSEN = "document.getElementById('details').innerText"
BOX = "(b => [b.left, b.top, b.width])(document.getElementById('timeline').getBoundingClientRect())"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PATH is not None
    browser = Browser(PATH, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "out.html"
    write_page(make_facts(devices=2, steps=5, layers=3), path)
    return path


def open_page(browser: Browser, path: Path, scheme: str = "light") -> tuple[float, float, float]:
    browser.messages.clear()
    browser.open(path, scheme=scheme)
    browser.wait_for("document.documentElement.dataset.state")
    assert browser.evaluate("document.documentElement.dataset.state") == "ready", browser.messages
    browser.wait_for(f"{SPAN} !== ''")
    left, top, width = browser.evaluate(BOX)
    return left, top, width


def complaints(browser: Browser) -> list[str]:
    return [message for message in browser.messages if "log level" not in message]


def test_a_reader_finds_the_way(browser: Browser, page: Path) -> None:
    left, top, width = open_page(browser, page)
    assert browser.evaluate(INK) > 0.3, "the time line is not drawn"
    gutter = 168
    middle = left + gutter + (width - gutter) / 2

    # Hovering: the critical path's row, then the first stream's.
    browser.mouse("mouseMoved", middle, top + 34)
    browser.wait_for(f"{TOOLTIP}.includes('on the critical path')")
    rows = browser.evaluate("document.getElementById('timeline').clientHeight")
    found = set()
    for y in range(60, int(rows), 9):
        browser.mouse("mouseMoved", middle, top + y)
        found |= set(browser.evaluate(TOOLTIP).split("\n"))
    assert {"cuda:0 stream 0", "cuda:1 stream 0"} <= found

    # Zooming by wheel keeps the time below the pointer.
    before = browser.evaluate(SPAN)
    browser.mouse("mouseWheel", middle, top + 34, deltaX=0, deltaY=-240, modifiers=2)
    browser.wait_for(f"{SPAN} !== {before!r}")
    browser.evaluate("document.getElementById('whole-step').click()")
    browser.wait_for(f"{SPAN} === {before!r}")

    # Measuring.
    browser.mouse("mouseMoved", middle - 100, top + 80)
    for kind, by, buttons in (
        ("mousePressed", 0, 1),
        ("mouseMoved", 60, 1),
        ("mouseReleased", 60, 0),
    ):
        where = (middle - 100 + by, top + 80)
        browser.mouse(kind, *where, button="left", buttons=buttons, clickCount=1, modifiers=8)
    browser.wait_for("document.getElementById('sums').innerText.includes('Measured')")
    assert complaints(browser) == []


def test_a_page_works_by_keys(browser: Browser, page: Path) -> None:
    open_page(browser, page)
    browser.evaluate("document.getElementById('timeline').focus()")
    spans = [browser.evaluate(SPAN)]
    for key in ("+", "-", "0", "Home"):
        browser.press(key)
        browser.wait_for(f"{SPAN} !== {spans[-1]!r}")
        spans.append(browser.evaluate(SPAN))
    assert spans[0] == spans[2] == spans[4]
    assert "ms" in spans[3]

    step = "document.querySelector('#steps [aria-checked=true]').getAttribute('aria-label')"
    assert browser.evaluate(step).startswith("step 3")
    browser.press("k")
    assert browser.evaluate(step).startswith("step 4")

    browser.press("ArrowDown", 40)
    browser.wait_for(f"{CHOSEN}.includes('rank 0 host')")
    first = browser.evaluate(CHOSEN)
    browser.press(".")
    assert browser.evaluate(CHOSEN) != first
    assert browser.evaluate(TOOLTIP)
    assert browser.evaluate("document.getElementById('spoken').textContent")
    browser.press("Escape", 27)
    browser.wait_for(f"{CHOSEN}.startsWith('On the critical path')")

    browser.press("/")
    for letter in "mlp.up":
        browser.press(letter)
    found = browser.evaluate("document.getElementById('found').textContent")
    # In five steps of two devices: three layers, forward once and backward twice, host and device.
    assert found.startswith("180 found: kernels "), found
    assert browser.evaluate(INK) < 0.3, "what does not match is not dimmed"
    browser.press("Enter", 13)
    assert "mlp.up" in browser.evaluate(CHOSEN)
    browser.press("Escape", 27)
    browser.press("?")
    assert browser.evaluate("document.getElementById('keys').open")
    assert complaints(browser) == []


def test_the_address_keeps_the_view(browser: Browser, page: Path) -> None:
    open_page(browser, page)
    browser.evaluate("document.getElementById('zoom-in').click()")
    browser.wait_for("location.hash.startsWith('#t=')")
    address, span = browser.evaluate("location.hash"), browser.evaluate(SPAN)
    browser.evaluate("document.documentElement.dataset.state = ''; location.reload()")
    browser.wait_for(f"document.documentElement?.dataset.state === 'ready' && {SPAN} === {span!r}")
    assert browser.evaluate("location.hash") == address


def test_hostile_texts_do_nothing_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    write_page(hostile_facts(), tmp_path / "out.html")
    left, top, width = open_page(browser, tmp_path / "out.html", scheme="dark")
    for y in range(30, 150, 8):
        browser.mouse("mouseMoved", left + width / 2, top + y)
    assert "</script>" in browser.evaluate(TOOLTIP) + browser.evaluate("document.body.innerText")
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert complaints(browser) == []


def test_paper_has_the_time_line_on_white_and_no_scripts_leave_a_note(
    browser: Browser, page: Path
) -> None:
    brightest = "Math.max(...document.getElementById('timeline').getContext('2d')"
    brightest += ".getImageData(0, 0, 9, 9).data.slice(0, 3))"
    open_page(browser, page, scheme="dark")
    assert browser.evaluate(brightest) < 60
    browser.emulate("dark", "print")
    browser.wait_for(f"{brightest} === 255")
    assert browser.evaluate(INK) > 0.3
    assert (
        browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    )
    browser.emulate("light")
    browser.scripts_are_off = True
    try:
        browser.open(page)
        assert browser.evaluate("document.getElementById('notice').offsetHeight")
        assert not browser.evaluate("document.getElementById('timeline').offsetHeight")
        assert browser.evaluate("document.querySelector('.memory-picture').clientHeight") > 20
    finally:
        browser.scripts_are_off = False
