"""ARC004 to ARC006: what parses in Python 3 and worked only in Python 2."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from ..edit import Edit, Fix
from ..finding import Hit
from ..kind import Kind
from ..program import Program
from ..rewrite import constant, replace, round_down
from ..rule import Rule
from .sources import PYTHON_3, V1_13

_BUILTINS = {
    "xrange": "range",
    "raw_input": "input",
    "unicode": "str",
    "unichr": "chr",
    "long": "int",
    "basestring": "str",
}
_VERSION = re.compile(r"version_info|python_version|PY[23]")
_METHODS = {"iteritems": "items", "itervalues": "values", "iterkeys": "keys"}


def find_names(program: Program) -> Iterator[Hit]:
    """Find built-in functions and methods of dictionaries that Python 3 renamed."""
    for node in program.all(ast.Name):
        if (
            node.id in _BUILTINS
            and isinstance(node.ctx, ast.Load)
            and not hasattr(builtins, node.id)
        ):
            if program.scopes.bindings(node) or _is_for_python2(program, node):
                continue
            new = _BUILTINS[node.id]
            yield Hit(
                program.start(node),
                program.end(node),
                f"Python 3 has no `{node.id}`, so this raises NameError; write `{new}`",
                Fix((replace(program, node, new),), is_safe=True),
            )
    for old, new in _METHODS.items():
        for call in program.method_calls.get(old, []):
            if call.args or call.keywords or _is_own_method(program, old):
                continue
            assert isinstance(call.func, ast.Attribute)
            end = program.end(call.func)
            yield Hit(
                program.start(call),
                program.end(call),
                f"dictionaries of Python 3 have no `{old}()`; write `{new}()`",
                Fix((Edit(end - len(old), end, new),), is_safe=False),
            )


def _is_for_python2(program: Program, node: ast.Name) -> bool:
    """Return whether a condition on the version, or a handler of the error, surrounds a name."""
    for parent in program.ancestors(node):
        if isinstance(parent, (ast.If, ast.IfExp)) and _VERSION.search(program.source(parent.test)):
            return True
        if isinstance(parent, ast.Try) and any(
            each.type is None or "NameError" in program.source(each.type)
            for each in parent.handlers
        ):
            return True
    return False


def _is_own_method(program: Program, name: str) -> bool:
    return name in program.functions


def find_next(program: Program) -> Iterator[Hit]:
    """Find `.next()` of iterators."""
    for call in program.method_calls.get("next", []):
        assert isinstance(call.func, ast.Attribute)
        value = call.func.value
        if call.args or call.keywords or not _is_iterator(program, value):
            continue
        edits = (
            Edit(program.start(call), program.start(value), "next("),
            Edit(program.end(value), program.end(call), ")"),
        )
        yield Hit(
            program.start(call),
            program.end(call),
            "iterators have no method `next()` in Python 3, nor have those of DataLoader since "
            "PyTorch 1.13; write `next(iterator)`",
            Fix(edits, is_safe=True),
        )


def _is_iterator(program: Program, node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "iter"
    if isinstance(node, ast.Name):
        bindings = program.scopes.bindings(node)
    elif isinstance(node, ast.Attribute):
        bindings = program.scopes.attributes.get(node.attr, [])
    else:
        return False
    return any(
        isinstance(each.value, ast.Call)
        and not each.path
        and isinstance(each.value.func, ast.Name)
        and each.value.func.id == "iter"
        for each in bindings
    )


def find_division(program: Program) -> Iterator[Hit]:
    """Find `/` where the program itself checks that the division leaves no remainder."""
    if any(
        alias.name == "division" for each in program.all(ast.ImportFrom) for alias in each.names
    ):
        return
    checked = set()
    for node in program.all(ast.BinOp):
        if isinstance(node.op, ast.Mod) and isinstance(program.parents[node], ast.Compare):
            compare = program.parents[node]
            assert isinstance(compare, ast.Compare)
            if constant(compare.comparators[0]) == 0:
                scope = program.scopes.scope(node)
                checked.add((scope, ast.dump(node.left), ast.dump(node.right)))
    if not checked:
        return
    for node in program.all(ast.BinOp):
        if not isinstance(node.op, ast.Div) or not isinstance(program.parents[node], ast.Assign):
            continue
        key = (program.scopes.scope(node), ast.dump(node.left), ast.dump(node.right))
        if key not in checked or Kind.TENSOR in program.kinds.of(node.left):
            continue
        yield Hit(
            program.start(node),
            program.end(node),
            "the program checks that this division leaves no remainder, and `/` gives a float in "
            "Python 3, which no `range` or layer accepts; write `//`",
            Fix((round_down(program, node),), is_safe=False),
        )


NAMES = Rule(
    code="ARC004",
    name="python2-name",
    happens="`xrange`, `raw_input`, `unicode`, `iteritems()` and the like are gone: NameError or "
    "AttributeError when the line is reached.",
    since="Python 3.0",
    cure="Write `range`, `input`, `str`, `items()`.",
    source=PYTHON_3,
    fires="for step in xrange(3):\n    pass\n",
    silent="for step in range(3):\n    pass\n",
    fixed="for step in range(3):\n    pass\n",
    find=find_names,
)
NEXT = Rule(
    code="ARC005",
    name="iterator-next",
    happens=(
        "`iterator.next()` raises AttributeError. PyTorch's DataLoader had the method until 1.12."
    ),
    since="Python 3.0; PyTorch 1.13.0",
    cure="Write `next(iterator)`.",
    source=f"{PYTHON_3} and {V1_13}",
    fires=(
        "import torch\n\n\ndef first(loader):\n    batches = iter(loader)\n"
        "    return batches.next()\n"
    ),
    silent=(
        "import torch\n\n\ndef first(loader):\n    batches = iter(loader)\n"
        "    return next(batches)\n"
    ),
    fixed=(
        "import torch\n\n\ndef first(loader):\n    batches = iter(loader)\n"
        "    return next(batches)\n"
    ),
    find=find_next,
)
DIVISION = Rule(
    code="ARC006",
    name="python2-division",
    happens="`/` of integers gives a float, and `range` or the size of a layer raises TypeError. "
    "Reported where the program checks that no remainder is left.",
    since="Python 3.0",
    cure="Write `//`.",
    source=PYTHON_3,
    fires=(
        "import torch\n\n\ndef blocks(depth):\n    assert (depth - 4) % 6 == 0\n"
        "    n = (depth - 4) / 6\n    return range(n)\n"
    ),
    silent=(
        "import torch\n\n\ndef blocks(depth):\n    assert (depth - 4) % 6 == 0\n"
        "    n = (depth - 4) // 6\n    return range(n)\n"
    ),
    fixed=(
        "import torch\n\n\ndef blocks(depth):\n    assert (depth - 4) % 6 == 0\n"
        "    n = (depth - 4) // 6\n    return range(n)\n"
    ),
    find=find_division,
)
