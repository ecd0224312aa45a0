"""Whether code runs only where there is a GPU, by a condition, a decorator or a name around it."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from .program import Program

_SAYS_GPU = re.compile(r"cuda|gpu|accelerator|device|xpu|nccl|backend", re.IGNORECASE)


def is_guarded(program: Program, node: ast.AST) -> bool:
    """Return whether a condition, a decorator, or the name of a function or class mentions GPUs."""
    child: ast.AST = node
    for parent in program.ancestors(node):
        if isinstance(parent, (ast.If, ast.IfExp, ast.While)) and child is not parent.test:
            if _speaks(program, parent.test):
                return True
        elif isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if _SAYS_GPU.search(parent.name):
                return True
            if any(_speaks(program, each) for each in parent.decorator_list):
                return True
            if any(_leaves_without_gpu(program, each, node) for each in parent.body):
                return True
        elif isinstance(parent, ast.Module):
            return any(_leaves_without_gpu(program, each, node) for each in parent.body)
        elif isinstance(parent, (ast.Try,)) and child in parent.body:
            return True
        child = parent
    return False


def _speaks(program: Program, node: ast.expr) -> bool:
    return _SAYS_GPU.search(program.source(node)) is not None


def _leaves_without_gpu(program: Program, statement: ast.stmt, node: ast.AST) -> bool:
    """Return whether a statement before the node ends the function or the program without a GPU."""
    if getattr(node, "lineno", 0) <= statement.lineno:
        return False
    if isinstance(statement, ast.Assert):
        return _speaks(program, statement.test)
    return (
        isinstance(statement, ast.If)
        and _speaks(program, statement.test)
        and isinstance(statement.body[-1], (ast.Return, ast.Raise, ast.Expr))
        and _ends(program.source(statement.body[-1]))
    )


@lru_cache(maxsize=1024)
def _ends(text: str) -> bool:
    return re.match(r"return|raise|(sys\.|os\._?)?exit|quit|pytest\.skip", text) is not None
