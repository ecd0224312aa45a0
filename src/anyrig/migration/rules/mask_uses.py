"""Whether a sum of masks is used as a number, so that it matters whether it counts."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence

from ..kind import Kind
from ..program import Program
from ..rewrite import constant
from ..torch_names import COMPARISONS, SAME_ELEMENTS

ARITHMETIC = (ast.Add, ast.Sub, ast.Mult)
"""Operations whose results were numbers while masks were bytes."""

MOST = 255
"""The greatest byte."""

_SAME_NUMBERS = SAME_ELEMENTS | {"data", "detach", "clone", "cpu", "cuda", "byte"}
_NUMBERS = frozenset(
    {
        *("sum", "mean", "float", "double", "half", "long", "int", "short", "type", "type_as"),
        *("cumsum", "prod", "max", "min", "std", "var", "norm", "numpy", "tolist"),
    }
)
OPERATORS: dict[type[ast.cmpop] | str, Callable[[float, float], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
"""Comparisons of the syntax, and methods and functions that compare."""


def is_number(
    program: Program, node: ast.expr, most: int, seen: frozenset[str] = frozenset()
) -> bool:
    """Return whether a sum of masks is used where a number above 1 is not the same as True.

    In code for newer versions, only a comparison that no boolean can change counts.
    """
    parent = program.parents[node]
    if isinstance(parent, ast.Compare) and len(parent.ops) == 1:
        is_left = node is parent.left
        other = parent.comparators[0] if is_left else parent.left
        return _is_compared(program, type(parent.ops[0]), other, most, is_left=is_left)
    if isinstance(parent, ast.Attribute):
        call = program.parents[parent]
        if not isinstance(call, ast.Call) or call.func is not parent:
            return parent.attr == "data" and is_number(program, parent, most, seen)
        return _is_number_for(program, call, parent.attr, call.args, most, seen)
    if isinstance(parent, ast.Call) and parent.args[:1] == [node]:
        name = program.names.dotted(parent.func) or ""
        if name == "torch.autograd.Variable":
            return is_number(program, parent, most, seen)
        if name.count(".") == 1 and name.startswith("torch."):
            return _is_number_for(program, parent, name[6:], parent.args[1:], most, seen)
        return False
    if isinstance(parent, ast.Assign) and parent.value is node and len(parent.targets) == 1:
        target = parent.targets[0]
        return isinstance(target, ast.Name) and are_numbers(program, target, most, seen)
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, (*ARITHMETIC, ast.Div)):
        other_side = parent.right if node is parent.left else parent.left
        return program.is_old and Kind.NUMBER in program.kinds.of(other_side)
    if isinstance(parent, ast.AugAssign) and isinstance(parent.op, (*ARITHMETIC, ast.Div)):
        return program.is_old and Kind.MASK not in program.kinds.of(parent.target)
    return False


def _is_number_for(
    program: Program,
    call: ast.Call,
    method: str,
    arguments: Sequence[ast.expr],
    most: int,
    seen: frozenset[str],
) -> bool:
    if method in COMPARISONS and method in OPERATORS and arguments:
        return _is_compared(program, method, arguments[0], most)
    if method in _SAME_NUMBERS:
        return is_number(program, call, most, seen)
    return method in _NUMBERS and program.is_old


def _is_compared(
    program: Program,
    how: type[ast.cmpop] | str,
    other: ast.expr,
    most: int,
    *,
    is_left: bool = True,
) -> bool:
    """Return whether a comparison with the sum differs between 1 and a greater number."""
    compare, bound = OPERATORS.get(how), number(other)
    if compare is None:
        return False
    if bound is None:
        return program.is_old and Kind.NUMBER in program.kinds.of(other)
    results = [
        compare(value, bound) if is_left else compare(bound, value)
        for value in range(min(most, MOST) + 1)
    ]
    is_constant = results[0] == results[1]
    return any(each != results[1] for each in results[2:]) and (program.is_old or is_constant)


def number(node: ast.expr) -> float | None:
    """Return the value of a number in the text; None for any other expression."""
    is_negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    value = constant(node.operand if isinstance(node, ast.UnaryOp) and is_negative else node)
    if not isinstance(value, int | float):
        return None
    return -value if is_negative else value


def are_numbers(
    program: Program, name: ast.Name, most: int, seen: frozenset[str] = frozenset()
) -> bool:
    """Return whether a name that has a sum as its only value is used as a number."""
    bindings = program.scopes.bindings(name)
    if name.id in seen or sum(each.how != "augment" for each in bindings) != 1:
        return False
    seen |= {name.id}
    home = program.scopes.home(name)
    return any(
        each.id == name.id
        and isinstance(each.ctx, ast.Load)
        and program.scopes.home(each) is home
        and is_number(program, each, most, seen)
        for each in program.all(ast.Name)
    )
