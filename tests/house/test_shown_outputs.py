"""The commands that pages show print what the pages say, but for the numbers in it.

A page has a program under its name, in a block that begins with ```python title="train.py". In a
shown output, a line of "…" stands for any lines, and "…" in a line for the rest of it.
"""

import re
import shlex
from importlib.metadata import version
from pathlib import Path

import pytest

from forked_programs import run_anyrig

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
FIRST = ("start", "out_of_memory", "is_it_right", "faster", "resume")
PAGES = [ROOT / "docs" / f"{name}.md" for name in FIRST]
PROGRAM = re.compile(r'^```python title="(.*?)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ anyrig (.*)\n((?:(?!\$ ).*\n)+)", re.MULTILINE)
PINNED = (ROOT / "constraints.txt").read_text().splitlines()
PROGRAMS = {name: text for page in PAGES for name, text in PROGRAM.findall(page.read_text())}


def shown(page: Path) -> list[tuple[list[str], str]]:
    """The commands of a page that have an output: their words, and the output."""
    blocks = CONSOLE.findall(page.read_text())
    return [
        (shlex.split(words), text) for block in blocks for words, text in COMMAND.findall(block)
    ]


def plain(text: str) -> list[str]:
    """The lines of a text without what may differ: spaces and numbers."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return [re.sub(r"\d[\d.,]*", "#", line) + "\n" for line in lines]


def pattern_of(text: str) -> str:
    """What matches the output that a page shows."""
    lines = [re.escape(line).replace("…", ".*") for line in plain(text)]
    return "".join("(?:.*\n)*?" if line == ".*\\\n" else line for line in lines)


def run_all(page: Path, folder: Path) -> None:
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text)
    assert shown(page)
    for words, text in shown(page):
        run = run_anyrig(*words, cwd=folder, COLUMNS="200")
        output = "".join(plain(run.stdout) + plain(run.stderr))
        assert re.fullmatch(pattern_of(text), output), f"{words} printed\n{run.stdout}{run.stderr}"


def test_the_readme_shows_what_commands_print(tmp_path: Path) -> None:
    run_all(README, tmp_path)


@pytest.mark.sweep
@pytest.mark.skipif(
    f"torch=={version('torch').partition('+')[0]}" not in PINNED,
    reason="the pages show what the pinned PyTorch prints; others need other memory",
)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_show_what_commands_print(page: Path, tmp_path: Path) -> None:
    run_all(page, tmp_path)
