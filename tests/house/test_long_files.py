"""Files of more than 400 lines say why at their top: "More than 400 lines: ..."."""

from __future__ import annotations

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
REASON = re.compile(r"(More|Longer) than\s+(//\s*)?400 lines")
# Files that are being split.
UNEXPLAINED = {"tests/rehearsal/page/example_facts.py", "tests/virtual/test_build.py"}


def says_why(file: Path) -> bool:
    text = file.read_text()
    if file.suffix == ".py":
        top = ast.get_docstring(ast.parse(text)) or ""
    else:
        top = re.split(r"^#(?:include|pragma|ifdef)", text, maxsplit=1, flags=re.MULTILINE)[0]
    return REASON.search(top) is not None


def unexplained(folder: Path, *parts: str) -> set[str]:
    """Return the long files in these parts of a folder that give no reason."""
    files = (file for part in parts for file in (folder / part).rglob("*"))
    return {
        file.relative_to(folder).as_posix()
        for file in files
        if file.suffix in (".py", ".h", ".cpp")
        if file.read_text().count("\n") > 400 and not says_why(file)
    }


def test_long_files_say_why_they_are_long() -> None:
    assert unexplained(REPOSITORY, "src", "tests") - UNEXPLAINED == set()


def test_a_long_file_without_a_reason_is_found(tmp_path: Path) -> None:
    lines = "\n" * 400
    (tmp_path / "short.py").write_text(lines)
    (tmp_path / "long.py").write_text(f"x = 1\n# More than 400 lines: too late\n{lines}")
    (tmp_path / "table.py").write_text(f'"""Facts. More than 400 lines:\none table."""\n{lines}')
    (tmp_path / "long.cpp").write_text(f"#include <a>\n// More than 400 lines: late\n{lines}")
    (tmp_path / "one.h").write_text(f"// More than\n// 400 lines: a list.\n#pragma once\n{lines}")
    assert unexplained(tmp_path, ".") == {"long.py", "long.cpp"}
