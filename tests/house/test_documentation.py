"""What the documentation shows runs: every Python block of a page, one after the other."""

import re
from pathlib import Path

import pytest
import write_findings_page

from forked_programs import run_forked

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(page: Path, tmp_path: Path) -> None:
    blocks = BLOCK.findall(page.read_text())
    if not blocks:
        return
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(blocks))
    run = run_forked(str(script), timeout=120, cwd=tmp_path)
    assert run.returncode == 0, f"{page.name}:\n{run.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "build/gallery/" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_site_leads_to_every_page() -> None:
    configuration = (ROOT / "zensical.toml").read_text()
    missing = [page.name for page in DOCS.glob("*.md") if f'"{page.name}"' not in configuration]
    assert missing == [], "add the page to `nav`"


def test_the_page_of_findings_has_every_script() -> None:
    assert write_findings_page.PAGE.read_text() == write_findings_page.page(), "run `make rules`"
