"""A parsed program: its tree, where each node stands in the text, and what expressions are."""

from __future__ import annotations

import ast
import re
from functools import cached_property

from .edit import Edit
from .kinds import Kinds
from .lines import Lines
from .tree import Tree

_LOSS_DATA = re.compile(r"loss\w*\.data\[0\]")


class Program(Tree):
    """The tree of a text, the text, and the questions that rules ask about both.

    Attributes:
        text: the text, which parses.
        is_package: whether the text is an ``__init__.py``, whose imports others may use.
        is_old: whether the text was written for PyTorch 0.3 or older.
        siblings: the modules next to a package's ``__init__.py``; none for any other file.
    """

    def __init__(
        self,
        text: str,
        tree: ast.Module,
        *,
        is_package: bool = False,
        is_old: bool | None = None,
        siblings: frozenset[str] = frozenset(),
    ) -> None:
        self.text = text
        super().__init__(tree)
        self.is_package = is_package
        self.siblings = siblings
        self.is_old = self._looks_old() if is_old is None else is_old

    def _looks_old(self) -> bool:
        """Return whether the program calls what PyTorch 0.4 or 1.0 made superfluous."""
        return (
            bool(self.calls.get("torch.autograd.Variable"))
            or any(node.arg in ("volatile", "size_average") for node in self.all(ast.keyword))
            or _LOSS_DATA.search(self.text) is not None
        )

    @cached_property
    def kinds(self) -> Kinds:
        """What the expressions of the program are."""
        return Kinds(self)

    # Places in the text.

    @cached_property
    def _lines(self) -> Lines:
        return Lines(self.text)

    @property
    def _line_starts(self) -> list[int]:
        return self._lines.starts

    @cached_property
    def _is_ascii(self) -> bool:
        return self.text.isascii()

    def offset(self, line: int, column_bytes: int) -> int:
        """Return the place in the text of a line and a column of the tree; lines count from 1."""
        start = self._line_starts[line - 1]
        if self._is_ascii:
            return start + column_bytes
        stop = self._line_starts[line] if line < len(self._line_starts) else len(self.text)
        head = self.text[start:stop].encode()[:column_bytes]
        return start + len(head.decode())

    def position(self, offset: int) -> tuple[int, int]:
        """Return the line and the column of a place in the text, counted from 1."""
        return self._lines.position(offset)

    def line_start(self, line: int) -> int:
        """Return where a line begins; the number of lines plus one is the end of the text."""
        starts = self._line_starts
        return starts[line - 1] if line <= len(starts) else len(self.text)

    def start(self, node: ast.expr | ast.stmt | ast.keyword | ast.alias | ast.arg) -> int:
        """Return where a node begins."""
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt | ast.keyword | ast.alias | ast.arg) -> int:
        """Return where a node ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.end_lineno, node.end_col_offset)

    def source(self, node: ast.expr | ast.stmt) -> str:
        """Return the text of a node."""
        return self.text[self.start(node) : self.end(node)]

    def import_torch(self) -> tuple[str, tuple[Edit, ...]]:
        """Return the name of the module torch here, and the edits that import it if necessary."""
        for alias, target in self.names.imported.items():
            if target == "torch":
                return alias, ()
        for node in sorted(self.all(ast.Import, ast.ImportFrom), key=lambda each: each.lineno):
            is_first = isinstance(self.parents[node], ast.Module)
            if is_first and getattr(node, "module", "") != "__future__":
                start = self.start(node)
                return "torch", (Edit(start, start, f"import torch{self.newline}"),)
        return "torch", ()

    @cached_property
    def newline(self) -> str:
        """The newline of the text."""
        start = self.line_start(2)
        ending = self.text[max(0, start - 2) : start]
        return "\r\n" if ending == "\r\n" else "\r" if ending.endswith("\r") else "\n"
