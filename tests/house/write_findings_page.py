"""Write docs/findings.md from the first comments of the scripts. `make rules` runs this."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "findings.md"
HEAD = """# Findings

Surprises of other projects that we met on the way. Each script installs the versions that it names
in a new environment, shows the surprise, and fails once it is gone. `make rules` writes this page
from their first comments.

| surprise | expected | seen |
|---|---|---|
"""


def breakable(cell: str) -> str:
    """Return a cell of a table, whose long names may be broken at a dot or the like."""
    return re.sub(
        r"\S{20,}",
        lambda word: re.sub(r"(?<=[._(=/,])(?=\w)", "<wbr>", word[0]),
        cell.replace("|", "\\|"),
    )


def row_of(script: Path) -> str:
    """Return a script's row of the table."""
    lines = []
    for line in script.read_text().splitlines()[1:]:
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    found = re.fullmatch(
        r"(.*?) Version: (.*?) Expected: (.*?) Seen: (.*?) The script fails if .*",
        " ".join(" ".join(lines).split()),
    )
    assert found, f"{script.name} does not begin with Version, Expected and Seen"
    title, versions, expected, seen = (breakable(cell) for cell in found.groups())
    link = f"[{title.rstrip('.')}](../findings/{script.name})"
    return f"| {link}: {versions.rstrip('.')} | {expected} | {seen} |"


def page() -> str:
    """Return the text of the page."""
    rows = [row_of(script) for script in sorted((ROOT / "findings").glob("*.sh"))]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
