"""What the names of a Python file stand for, as far as the file says: paths such as ``torch._C``.

Follows imports and assignments, function by function: after ``from torch import _C as c`` and
``core: Any = c``, the expression ``getattr(core, "_cuda_init")`` is ``torch._C._cuda_init``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_IMPORTERS = {"import_module", "__import__", "find_spec", "resolve_name", "locate"}
_GETTERS = {"getattr", "getattr_static"}


class Scope:
    """The names of a module, function or class body."""

    def __init__(self, outer: Scope | None) -> None:
        self._outer = outer
        self.paths: dict[str, set[str]] = {}

    def find(self, name: str) -> set[str]:
        if name in self.paths:
            return self.paths[name]
        return self._outer.find(name) if self._outer is not None else set()


class PythonFile:
    """A parsed file of the package `package`.

    Attributes:
        nodes: all nodes, outermost first.
        parents: the node around each node.
        classes: the innermost class around each node, also from within its methods.
        imported: the modules of the same package that the file imports.
    """

    def __init__(self, file: Path, package: Path) -> None:
        self.file = file
        self.tree = ast.parse(file.read_text(encoding="utf-8"))
        self.nodes = list(ast.walk(self.tree))
        self.parents: dict[ast.AST, ast.AST] = {}
        self.classes: dict[ast.AST, str | None] = {}
        self.imported: set[str] = set()
        self._package = (package.name, *file.relative_to(package).parent.parts)
        self._scopes: dict[ast.AST, Scope] = {}
        self._enter(self.tree, Scope(None), None)
        binding = [node for node in self.nodes if isinstance(node, _BINDING)]
        for _ in range(3):  # an alias of an alias of an alias
            for node in binding:
                self._learn(node)

    def resolve(self, node: ast.expr | None) -> set[str]:
        """Return the paths for which `node` may stand; none if the file does not say."""
        if isinstance(node, ast.Name):
            return self._scopes[node].find(node.id)
        if isinstance(node, ast.Attribute):
            return {f"{path}.{node.attr}" for path in self.resolve(node.value)}
        if isinstance(node, ast.NamedExpr):
            return self.resolve(node.value)
        if isinstance(node, ast.IfExp):
            return self.resolve(node.body) | self.resolve(node.orelse)
        if isinstance(node, ast.BoolOp):
            return set().union(*map(self.resolve, node.values))
        if isinstance(node, ast.Subscript):
            return self._item(node.value, text_of(node.slice))
        if isinstance(node, ast.Call):
            return self._result(node)
        return set()

    def _enter(self, node: ast.AST, scope: Scope, owner: str | None) -> None:
        self._scopes[node], self.classes[node] = scope, owner
        for child in ast.iter_child_nodes(node):
            self.parents[child] = node
            if isinstance(child, (*FUNCTIONS, ast.Lambda)):
                inner = Scope(scope)
                inner.paths = {argument.arg: set() for argument in _arguments(child.args)}
                self._enter(child, inner, owner)
            elif isinstance(child, ast.ClassDef):
                self._enter(child, Scope(scope), child.name)
            else:
                self._enter(child, scope, owner)

    def _learn(self, node: ast.AST) -> None:
        names = self._scopes[node].paths
        if isinstance(node, ast.Import):
            for alias in node.names:
                path = alias.name if alias.asname else alias.name.partition(".")[0]
                names.setdefault(alias.asname or path, set()).add(path)
        elif isinstance(node, ast.ImportFrom):
            module = self._module_of(node)
            for alias in node.names:
                path = f"{module}.{alias.name}"
                names.setdefault(alias.asname or alias.name, set()).add(path)
                self.imported |= {module, path}
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._bind(target, node.value, names)
        elif isinstance(node, ast.For) and isinstance(node.iter, (ast.Tuple, ast.List)):
            for each in node.iter.elts:
                self._bind(node.target, each, names)

    def _bind(self, target: ast.expr, value: ast.expr, names: dict[str, set[str]]) -> None:
        if isinstance(target, ast.Name):
            names.setdefault(target.id, set()).update(self.resolve(value))
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its in zip(target.elts, value.elts, strict=False):
                self._bind(one, its, names)

    def _module_of(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return str(node.module)
        base = self._package[: len(self._package) - node.level + 1]
        return ".".join((*base, node.module) if node.module else base)

    def _item(self, holder: ast.expr, key: str | None) -> set[str]:
        """Return what `sys.modules[key]`, `vars(x)[key]` or `x.__dict__[key]` stands for."""
        if key is None:
            return set()
        if "sys.modules" in self.resolve(holder):
            return {key}
        return {f"{path}.{key}" for path in self.resolve(owner_of_namespace(holder))}

    def _result(self, call: ast.Call) -> set[str]:
        name = name_called(call)
        first = call.args[0] if call.args else None
        if name in _IMPORTERS:
            path = text_of(first)
            return {path} if path else set()
        if name in _GETTERS and len(call.args) > 1:
            key = text_of(call.args[1])
            return {f"{path}.{key}" for path in self.resolve(first)} if key else set()
        if name == "cast" and len(call.args) == 2:
            return self.resolve(call.args[1])
        if isinstance(call.func, ast.Attribute) and name in ("get", "pop", "setdefault"):
            return self._item(call.func.value, text_of(first))
        return set()


_BINDING = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For)


def text_of(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def name_called(call: ast.Call) -> str:
    called = call.func
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def owner_of_namespace(node: ast.expr) -> ast.expr | None:
    """Return `x` for ``vars(x)`` and ``x.__dict__``."""
    if isinstance(node, ast.Attribute) and node.attr == "__dict__":
        return node.value
    if isinstance(node, ast.Call) and name_called(node) == "vars" and node.args:
        return node.args[0]
    return None


def _arguments(given: ast.arguments) -> Iterator[ast.arg]:
    yield from (*given.posonlyargs, *given.args, *given.kwonlyargs)
    yield from filter(None, (given.vararg, given.kwarg))
