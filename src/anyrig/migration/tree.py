"""The tree of a program: its nodes by type, what stands around each, and what names mean."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import TypeVar

from .names import Names
from .scopes import Scopes

_Node = TypeVar("_Node", bound=ast.AST)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.While | ast.AsyncFor


class Tree:
    """The tree of a program's text, and what can be read from it alone.

    Attributes:
        tree: the root.
        parents: the parent of each node.
        scopes: what each name is bound to.
        names: what dotted names mean, by the imports.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self._by_type: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self._index()
        self.scopes = Scopes(tree, self.parents, self._by_type)
        self.names = Names(self.scopes, self.parents, self._by_type)

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
