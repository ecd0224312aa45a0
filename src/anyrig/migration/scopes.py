"""What the names of a program are bound to."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Module)


@dataclass(frozen=True)
class Binding:
    """One place that gives a name a value.

    Attributes:
        node: the place.
        how: ``"assign"``, ``"augment"``, ``"loop"``, ``"with"``, ``"parameter"``, ``"import"``,
            ``"define"`` or ``"other"``.
        value: the expression that the value comes from; for a loop, what it iterates over.
        path: where in the value: ``(1, 0)`` for the ``x`` of ``i, (x, y) = value``.
    """

    node: ast.AST
    how: str
    value: ast.expr | None = None
    path: tuple[int, ...] = ()


class Scopes:
    """The bindings of each scope, and of attributes such as `self.model` in the whole file."""

    def __init__(
        self,
        tree: ast.Module,
        parents: Mapping[ast.AST, ast.AST],
        by_type: Mapping[type[ast.AST], list[ast.AST]],
    ) -> None:
        self._tree = tree
        self._parents = parents
        self._scope_of: dict[ast.AST, ast.AST] = {}
        self._bound: dict[ast.AST, dict[str, list[Binding]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self.attributes: dict[str, list[Binding]] = defaultdict(list)
        self._collect(by_type)

    def scope(self, node: ast.AST) -> ast.AST:
        """Return the function, class or module whose names a node uses."""
        path = []
        found: ast.AST = self._tree
        parent = self._parents.get(node)
        while parent is not None:
            path.append(node)
            known = self._scope_of.get(node)
            if known is not None:
                found = known
                break
            if isinstance(parent, _SCOPES) and not _is_outside(node, parent):
                found = parent
                break
            node, parent = parent, self._parents.get(parent)
        for each in path:
            self._scope_of[each] = found
        return found

    def bindings(self, name: ast.Name) -> list[Binding]:
        """Return the bindings of a name in the innermost scope that binds it."""
        return self._bound[self.home(name)].get(name.id, []) if self._bound else []

    def home(self, name: ast.Name) -> ast.AST:
        """Return the innermost scope that binds a name; the module if none does."""
        scope = self.scope(name)
        while not isinstance(scope, ast.Module):
            if scope in self._bound and name.id in self._bound[scope]:
                return scope
            scope = self.scope(scope)
            while isinstance(scope, ast.ClassDef):  # functions do not see the names of their class
                scope = self.scope(scope)
        return scope

    def of_scope(self, scope: ast.AST) -> Mapping[str, list[Binding]]:
        """Return the bindings of one scope, by name."""
        return self._bound.get(scope, {})

    def _collect(self, by_type: Mapping[type[ast.AST], list[ast.AST]]) -> None:
        for kind, nodes in by_type.items():
            if issubclass(kind, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                for node in nodes:
                    self._bind(node, node.name, Binding(node, "define"))  # type: ignore[attr-defined]
        for node in by_type.get(ast.arg, ()):
            assert isinstance(node, ast.arg)
            function = self._parents[self._parents[node]]
            self._bound[function][node.arg].append(Binding(node, "parameter"))
        for kind in (ast.Import, ast.ImportFrom):
            for node in by_type.get(kind, ()):
                for alias in node.names:  # type: ignore[attr-defined]
                    name = alias.asname or alias.name.split(".")[0]
                    self._bind(node, name, Binding(node, "import"))
        for node, how, target, value in _targets(by_type):
            for leaf, path in _leaves(target):
                binding = Binding(node, how, value, path)
                if isinstance(leaf, ast.Name):
                    self._bind(node, leaf.id, binding)
                elif isinstance(leaf, ast.Attribute):
                    self.attributes[leaf.attr].append(binding)
        for node in by_type.get(ast.ExceptHandler, ()):
            if node.name:  # type: ignore[attr-defined]
                self._bind(node, node.name, Binding(node, "other"))  # type: ignore[attr-defined]

    def _bind(self, node: ast.AST, name: str, binding: Binding) -> None:
        self._bound[self.scope(node)][name].append(binding)


def _is_outside(node: ast.AST, scope: ast.AST) -> bool:
    """Return whether a child of a scope is evaluated outside it: decorators, defaults, bases."""
    if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node in scope.decorator_list or node is scope.returns
    if isinstance(scope, ast.ClassDef):
        return node in scope.decorator_list or node in scope.bases or node in scope.keywords
    return False


def _targets(
    by_type: Mapping[type[ast.AST], list[ast.AST]],
) -> Iterator[tuple[ast.AST, str, ast.expr, ast.expr | None]]:
    for node in by_type.get(ast.Assign, ()):
        assert isinstance(node, ast.Assign)
        for target in node.targets:
            yield node, "assign", target, node.value
    for node in by_type.get(ast.AnnAssign, ()):
        assert isinstance(node, ast.AnnAssign)
        yield node, "assign", node.target, node.value
    for node in by_type.get(ast.NamedExpr, ()):
        assert isinstance(node, ast.NamedExpr)
        yield node, "assign", node.target, node.value
    for node in by_type.get(ast.AugAssign, ()):
        assert isinstance(node, ast.AugAssign)
        yield node, "augment", node.target, node.value
    for kind in (ast.For, ast.AsyncFor, ast.comprehension):
        for node in by_type.get(kind, ()):
            yield node, "loop", node.target, node.iter  # type: ignore[attr-defined]
    for node in by_type.get(ast.withitem, ()):
        assert isinstance(node, ast.withitem)
        if node.optional_vars is not None:
            yield node, "with", node.optional_vars, node.context_expr


def _leaves(target: ast.expr) -> Iterator[tuple[ast.expr, tuple[int, ...]]]:
    stack: list[tuple[ast.expr, tuple[int, ...]]] = [(target, ())]
    while stack:
        node, path = stack.pop()
        if isinstance(node, (ast.Tuple, ast.List)):
            stack += [(each, (*path, index)) for index, each in enumerate(node.elts)]
        elif isinstance(node, ast.Starred):
            stack.append((node.value, (*path, -1)))
        else:
            yield node, path
