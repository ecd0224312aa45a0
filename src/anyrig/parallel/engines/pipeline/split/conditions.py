"""Conditions on values that only decide whether a module raises an exception.

``assert length <= 512`` and ``if length > 512: raise ValueError`` do not change what a module
computes, so they are recorded as checks, and tracing continues.
"""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache

from .....errors import SpreadError
from .refusal import Place

# In expressions of other kinds, the truth of a part does not follow from the truth of the whole.
_SIMPLE = (
    *(ast.Compare, ast.BinOp, ast.Attribute, ast.Name, ast.Constant, ast.Subscript, ast.Tuple),
    *(ast.operator, ast.cmpop, ast.boolop, ast.expr_context, ast.USub, ast.UnaryOp, ast.BoolOp),
)


def expected_truth(place: Place) -> bool | None:
    """Return the truth that a condition at `place` needs for the module to continue.

    Return None unless the condition is that of an assertion, or of an ``if`` that only raises.
    """
    joined: type[ast.boolop]
    for node in ast.walk(_parse(place.file)):
        if isinstance(node, ast.Assert):
            test, joined, expected = node.test, ast.And, True
        elif isinstance(node, ast.If) and not node.orelse:
            if len(node.body) != 1 or not isinstance(node.body[0], ast.Raise):
                continue
            test, joined, expected = node.test, ast.Or, False
        else:
            continue
        if test.lineno <= place.line <= (test.end_lineno or test.lineno):
            return expected if _is_simple(test, joined, expected) else None
    return None


def _is_simple(test: ast.expr, joined: type[ast.boolop], expected: bool) -> bool:
    for node in ast.walk(test):
        if isinstance(node, ast.Call):
            method = node.func
            if not isinstance(method, ast.Attribute) or method.attr not in ("size", "dim"):
                return False
        elif isinstance(node, ast.boolop):
            if not isinstance(node, joined):
                return False
        elif isinstance(node, ast.Compare):
            # `x in (2, 3)` is several comparisons.
            several = len(node.ops) > 1 and not expected
            if several or any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
                return False
        elif isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.Not):
                return False
        elif not isinstance(node, _SIMPLE):
            return False
    return True


@lru_cache(maxsize=64)
def _parse(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


def require_truth(value: object, expected: bool, place: Place) -> None:
    """Raise if a condition that was assumed during tracing does not hold in this call.

    Raises:
        AssertionError: an assertion of the module fails.
        SpreadError: the module would raise an exception of its own.
    """
    if bool(value) is expected:
        return
    if expected:
        raise AssertionError(f"the module's assertion fails, in {place}")
    raise SpreadError(f"the module refuses these arguments, in {place}")
