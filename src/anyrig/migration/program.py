"""A parsed program: its nodes by type, their parents, and where each stands in the text."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import TypeVar

from .edit import Edit
from .kinds import Kinds
from .lines import Lines
from .names import Names
from .scopes import Scopes

_LOSS_DATA = re.compile(r"loss\w*\.data\[0\]")
_Node = TypeVar("_Node", bound=ast.AST)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.While | ast.AsyncFor


class Program:
    """The tree of a text, and the questions that rules ask about it.

    Attributes:
        text: the text, which parses.
        tree: its tree.
        is_package: whether the text is an ``__init__.py``, whose imports others may use.
        is_old: whether the text was written for PyTorch 0.3 or older.
        siblings: the modules beside a package's ``__init__.py``; none for any other file.
        parents: the parent of each node.
        scopes: what each name is bound to.
        names: what dotted names mean, by the imports.
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
        self.tree = tree
        self.is_package = is_package
        self.siblings = siblings
        self.parents: dict[ast.AST, ast.AST] = {}
        self._by_type: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self._index()
        self.scopes = Scopes(tree, self.parents, self._by_type)
        self.names = Names(self.scopes, self.parents, self._by_type)
        self.is_old = self._looks_old() if is_old is None else is_old

    def _looks_old(self) -> bool:
        """Return whether the program calls what PyTorch 0.4 or 1.0 made superfluous."""
        return (
            bool(self.calls.get("torch.autograd.Variable"))
            or any(node.arg in ("volatile", "size_average") for node in self.all(ast.keyword))
            or _LOSS_DATA.search(self.text) is not None
        )

    def _index(self) -> None:
        stack: list[ast.AST] = [self.tree]
        parents, by_type = self.parents, self._by_type
        while stack:
            node = stack.pop()
            by_type[type(node)].append(node)
            for value in node.__dict__.values():
                if isinstance(value, list):
                    for item in value:
                        if isinstance(item, ast.AST):
                            parents[item] = node
                            stack.append(item)
                # Contexts and operators have no fields, and no place in the text.
                elif isinstance(value, ast.AST) and value._fields:
                    parents[value] = node
                    stack.append(value)

    def all(self, *types: type[_Node]) -> Iterator[_Node]:
        """Yield every node of exactly these types, in no particular order."""
        for each in types:
            yield from self._by_type.get(each, ())  # type: ignore[misc]

    @cached_property
    def calls(self) -> dict[str, list[ast.Call]]:
        """The calls of each dotted name, such as ``"torch.load"``."""
        found: dict[str, list[ast.Call]] = defaultdict(list)
        for call in self.all(ast.Call):
            name = self.names.dotted(call.func)
            if name is not None:
                found[name].append(call)
        return found

    @cached_property
    def method_calls(self) -> dict[str, list[ast.Call]]:
        """The calls of each attribute, such as ``"backward"``, whatever it is an attribute of."""
        found: dict[str, list[ast.Call]] = defaultdict(list)
        for call in self.all(ast.Call):
            if isinstance(call.func, ast.Attribute):
                found[call.func.attr].append(call)
        return found

    @cached_property
    def functions(self) -> dict[str, list[Function]]:
        """The functions and methods of each name."""
        found: dict[str, list[Function]] = defaultdict(list)
        nodes: list[Function] = [*self.all(ast.FunctionDef), *self.all(ast.AsyncFunctionDef)]
        for node in nodes:
            found[node.name].append(node)
        return found

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

    # What stands around a node.

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, the innermost first."""
        parents = self.parents
        while (parent := parents.get(node)) is not None:
            yield parent
            node = parent

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the statement that a node belongs to; for a statement, the statement itself."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def function(self, node: ast.AST) -> Function | None:
        """Return the innermost function around a node."""
        return next((each for each in self.ancestors(node) if isinstance(each, _FUNCTIONS)), None)

    def loops(self, node: ast.AST) -> Iterator[Loop]:
        """Yield the loops around a node within its function, the innermost first."""
        for each in self.ancestors(node):
            if isinstance(each, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
                return
            if isinstance(each, _LOOPS):
                yield each

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
