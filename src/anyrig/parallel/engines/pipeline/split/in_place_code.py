"""Whether code that is not traced may change its arguments in place."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from torch import nn


def module_changes_arguments(module: nn.Module) -> bool:
    """Return whether the methods of a module's class may change arguments in place.

    Only the module's own methods are read. Without their source, the answer is yes.
    """
    for kind in type(module).__mro__:
        if kind is nn.Module:
            return False
        if kind.__module__.startswith("torch."):
            continue
        methods = [each for each in vars(kind).values() if isinstance(each, FunctionType)]
        if any(
            each.__name__ != "__init__" and function_changes_arguments(each) for each in methods
        ):
            return True
    return False


def function_changes_arguments(function: Any) -> bool:
    """Return whether a function may change an argument in place; yes if its source is unknown."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return True
    local = _names_of_results(tree)
    return any(_base_of(changed) not in local for changed in _changed(tree))


def _changed(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield what is changed: ``x`` of ``x += 1``, ``x[0] = 1`` and ``x.add_()``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Attribute):
            yield node.target
        elif isinstance(node, ast.Assign):
            yield from (each for each in node.targets if isinstance(each, ast.Subscript))
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and _is_in_place(called.attr):
                yield from (called.value, *node.args[:1])
            yield from (k.value for k in node.keywords if k.arg == "out")
            if any(k.arg == "inplace" and not _is_false(k.value) for k in node.keywords):
                yield from node.args[:1]


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def _base_of(changed: ast.expr) -> str:
    while isinstance(changed, (ast.Subscript, ast.Attribute)):
        changed = changed.value
    return changed.id if isinstance(changed, ast.Name) else ""


def _names_of_results(tree: ast.AST) -> set[str]:
    """Return the names only ever set to constants, lists, dicts or results of torch functions."""
    own: set[str] = set()
    others: set[str] = {""}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            others.add(node.arg)
        elif isinstance(node, ast.Assign):
            fresh = isinstance(node.value, (ast.Constant, ast.List, ast.Dict)) or (
                isinstance(node.value, ast.Call)
                and isinstance(node.value.func, ast.Attribute)
                and _base_of(node.value.func) == "torch"
            )
            for target in node.targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                        (own if fresh else others).add(name.id)
        elif isinstance(node, (ast.For, ast.comprehension, ast.NamedExpr, ast.withitem)):
            bound = node.optional_vars if isinstance(node, ast.withitem) else node.target
            others.update(n.id for n in ast.walk(bound or ast.Pass()) if isinstance(n, ast.Name))
    return own - others
