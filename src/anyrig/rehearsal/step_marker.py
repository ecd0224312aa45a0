"""Steps that are the calls of a function of the program: ``--step-marker train_step``."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from keyword import iskeyword
from types import CodeType
from typing import Any

from ..errors import ReportError

# The name by which the marked function finds its decorator in the program's `__main__`.
_DECORATOR = "__anyrig_step_marker__"
_MOST_NAMES = 10

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_name(function: str) -> None:
    """Raise `ReportError` unless the text can be the name of a function or ``Class.method``."""
    parts = function.split(".")
    if len(parts) > 2 or not all(part.isidentifier() and not iskeyword(part) for part in parts):
        raise ReportError(
            f"{function[:80]!r} cannot be the name of a function; write one as in train_step or "
            "Trainer.train_step"
        )


@dataclass(frozen=True)
class StepMarker:
    """A function of a script, and what to do after each of its calls.

    Attributes:
        function: the function's name, or ``Class.method``.
        after_call: what to call after each call that returned.
    """

    function: str
    after_call: Callable[[], object]

    def compile(self, source: str | bytes, path: str) -> CodeType:
        """Compile a script whose calls of the function are followed by `after_call`.

        Raises:
            ReportError: the script has no such function.
            SyntaxError: the script cannot be parsed.
        """
        tree = ast.parse(source, path)
        functions = dict(_functions_in(tree, ""))
        if self.function not in functions:
            raise ReportError(
                f"{path} has no function {self.function!r} whose calls could be steps; "
                f"{_describe(list(functions))}"
            )
        function = functions[self.function]
        decorator = ast.Name(_DECORATOR, ast.Load())
        function.decorator_list.insert(0, ast.copy_location(decorator, function))
        return compile(tree, path, "exec", dont_inherit=True)

    def names(self) -> dict[str, Any]:
        """Return what the program's `__main__` needs."""
        return {_DECORATOR: self._decorate}

    def _decorate(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.after_call()
            return result

        return call


def _functions_in(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions_in(child, f"{prefix}{child.name}.")
        else:
            yield from _functions_in(child, prefix)


def _describe(names: list[str]) -> str:
    if not names:
        return "it defines none"
    shown = ", ".join(names[:_MOST_NAMES])
    return f"its functions are {shown}{', …' if len(names) > _MOST_NAMES else ''}"
