"""The plugin for flake8: ``flake8 --select ARC`` reports the findings of `anyrig check`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from .. import __version__
from .check import check_source
from .rules.every import RULES
from .source_file import SourceFile, find_siblings


class Plugin:
    """The object that flake8 makes for each file that parses."""

    name = "anyrig"
    version = __version__

    def __init__(self, tree: ast.AST, lines: list[str], filename: str = "stdin") -> None:
        path = Path(filename)
        self._source = SourceFile(path, "".join(lines), "utf-8", find_siblings(path))

    def run(self) -> Iterator[tuple[int, int, str, type[Plugin]]]:
        """Yield the line, the column from 0, the text and the plugin for each finding."""
        for finding in check_source(self._source, RULES):
            text = f"{finding.code} {finding.message}"
            yield finding.line, finding.column - 1, text, type(self)
