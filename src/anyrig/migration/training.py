"""Which parts of a program train: they contain a backward pass or an optimizer's step."""

from __future__ import annotations

import ast

from .program import Program

_TRAINS = {"backward", "zero_grad", "manual_backward", "minimize"}


def trains(program: Program, nodes: list[ast.stmt]) -> bool:
    """Return whether statements train, or call a function of this file that does."""
    return _trains(program, nodes, frozenset())


def _trains(program: Program, nodes: list[ast.stmt], seen: frozenset[str]) -> bool:
    for statement in nodes:
        for node in ast.walk(statement):
            if not isinstance(node, ast.Call):
                continue
            name = called_name(node)
            if name in _TRAINS or (name == "step" and _is_optimizer(node)):
                return True
            if name == "train" and isinstance(node.func, ast.Attribute) and not node.args:
                return True
            if name in seen:
                continue
            for function in program.functions.get(name, ()):
                if _trains(program, function.body, seen | {name}):
                    return True
    return False


def _is_optimizer(call: ast.Call) -> bool:
    assert isinstance(call.func, (ast.Attribute, ast.Name))
    text = ast.unparse(call.func).lower()
    return "optim" in text or "solver" in text


def called_name(call: ast.Call) -> str:
    """Return the last part of the called name, or an empty string."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
