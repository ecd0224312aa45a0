"""ARC101: `Variable`, which PyTorch 0.4 merged with tensors."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Edit, Fix
from ..finding import Hit
from ..kind import Kind
from ..program import Program
from ..rewrite import constant, has_stars, keyword, remove_line, replace, unwrap
from ..rule import Rule
from .sources import GUIDE_0_4

VARIABLE = "torch.autograd.Variable"


def find(program: Program) -> Iterator[Hit]:
    """Find calls of `Variable`, tests for it, and its import once nothing uses it."""
    calls = program.calls.get(VARIABLE, [])
    for call in calls:
        if keyword(call, "volatile") is None:
            yield _call_hit(program, call)
    references = list(_references(program))
    used = {id(call.func) for call in calls}
    for node in references:
        if id(node) not in used:
            yield _reference_hit(program, node)
    is_used = any(name.startswith(VARIABLE) for name in program.names.references.values())
    if not is_used:
        yield from _imports(program)


def unwrapped(program: Program, call: ast.Call) -> tuple[Edit, ...]:
    """Return the edits that leave the tensor of a `Variable(…)`, or nothing if that is unclear.

    ``Variable(x)`` has no graph, even if ``x`` has one: where ``x`` may have one, the tensor is
    detached.
    """
    known = ("requires_grad", "volatile", "data")
    if has_stars(call) or any(each.arg not in known for each in call.keywords):
        return ()
    data = keyword(call, "data")
    inner = call.args[0] if call.args else data.value if data else None
    if inner is None or len(call.args) > 2:
        return ()
    requires = keyword(call, "requires_grad")
    wanted = call.args[1] if len(call.args) == 2 else requires.value if requires else None
    suffix = _requires_grad(program, wanted)
    is_fresh = Kind.FRESH in program.kinds.of(inner) or _is_of_data(inner)
    is_temporary = isinstance(inner, ast.Call)
    if not is_fresh or (suffix and not is_temporary):
        suffix = f".detach(){suffix}"
    return unwrap(program, call, inner, suffix)


def _is_of_data(node: ast.expr) -> bool:
    """Return whether a value comes from ``x.data``, which has no graph."""
    while True:
        if isinstance(node, ast.Attribute):
            if node.attr == "data":
                return True
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Subscript):
            node = node.value
        else:
            return False


def _requires_grad(program: Program, wanted: ast.expr | None) -> str:
    if wanted is None or constant(wanted) in (False, None):
        return ""
    return (
        ".requires_grad_()"
        if constant(wanted) is True
        else (f".requires_grad_({program.source(wanted)})")
    )


def _call_hit(program: Program, call: ast.Call) -> Hit:
    message = "`Variable` has been the tensor itself since PyTorch 0.4; use the tensor"
    start, end = program.start(call), program.end(call)
    edits = removed_statement(program, call) or unwrapped(program, call)
    return Hit(start, end, message, Fix(edits, is_safe=True) if edits else None)


def removed_statement(program: Program, call: ast.Call) -> tuple[Edit, ...]:
    """Return the edit that deletes ``x, y = Variable(x), Variable(y)`` where that does nothing."""
    statement = program.statement(call)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ()
    pairs = [(statement.targets[0], statement.value)]
    if isinstance(statement.targets[0], ast.Tuple) and isinstance(statement.value, ast.Tuple):
        pairs = list(zip(statement.targets[0].elts, statement.value.elts, strict=False))
        if len(statement.targets[0].elts) != len(statement.value.elts):
            return ()
    for target, value in pairs:
        if not (
            isinstance(value, ast.Call)
            and program.names.dotted(value.func) == VARIABLE
            and len(value.args) == 1
            and all(
                each.arg == "volatile" or constant(each.value) is False for each in value.keywords
            )
            and isinstance(value.args[0], ast.Name)
            and isinstance(target, ast.Name)
            and target.id == value.args[0].id
            and Kind.FRESH in program.kinds.of(value.args[0])
        ):
            return ()
    edit = remove_line(program, statement)
    return () if edit is None else (edit,)


def _references(program: Program) -> Iterator[ast.expr]:
    for node, name in program.names.references.items():
        if name == VARIABLE and not isinstance(program.parents.get(node), ast.Attribute):
            assert isinstance(node, ast.expr)
            yield node


def _reference_hit(program: Program, node: ast.expr) -> Hit:
    start, end = program.start(node), program.end(node)
    parent = program.parents.get(node)
    torch, imports = program.import_torch()
    if isinstance(parent, ast.Compare) and parent.left is not node and _is_type_call(parent.left):
        operator = parent.ops[0]
        negation = "not " if isinstance(operator, (ast.NotEq, ast.IsNot)) else ""
        assert isinstance(parent.left, ast.Call)
        value = program.source(parent.left.args[0])
        new = f"{negation}isinstance({value}, {torch}.Tensor)"
        return Hit(
            program.start(parent),
            program.end(parent),
            "no tensor has had the type `Variable` since PyTorch 0.4, so this comparison has one "
            f"result; ask `isinstance({value}, torch.Tensor)`",
            Fix((*imports, replace(program, parent, new)), is_safe=False),
        )
    return Hit(
        start,
        end,
        "every tensor has been a `Variable` since PyTorch 0.4; name `torch.Tensor`",
        Fix((*imports, replace(program, node, f"{torch}.Tensor")), is_safe=True),
    )


def _is_type_call(node: ast.expr) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1
    return is_call and node.func.id == "type"  # type: ignore[attr-defined]


def _imports(program: Program) -> Iterator[Hit]:
    for node in program.all(ast.ImportFrom):
        if node.level or node.module not in ("torch.autograd", "torch.autograd.variable"):
            continue
        for alias in node.names:
            if alias.name != "Variable" or program.is_package or _is_exported(program):
                continue
            edit = remove_line(program, node) if len(node.names) == 1 else None
            if len(node.names) > 1 and "(" not in program.source(node):
                names = ", ".join(
                    f"{each.name} as {each.asname}" if each.asname else each.name
                    for each in node.names
                    if each is not alias
                )
                edit = replace(program, node, f"from {node.module} import {names}")
            yield Hit(
                program.start(node),
                program.end(node),
                "`Variable` has been the tensor itself since PyTorch 0.4; this import has no use",
                None if edit is None else Fix((edit,), is_safe=True),
            )


def _is_exported(program: Program) -> bool:
    """Return whether the program names `Variable` in a string, as in ``__all__``."""
    return any(constant(node) == "Variable" for node in program.all(ast.Constant))


RULE = Rule(
    code="ARC101",
    name="variable",
    happens="`Variable(x)` returns a tensor with the values of `x` and without its graph. Since "
    "tensors record their own graph, it does nothing else; a comparison of types with `Variable` "
    "is never true.",
    since="PyTorch 0.4.0",
    cure="Use the tensor, and `detach()` or `requires_grad_()` where that was the purpose.",
    source=GUIDE_0_4,
    fires="import torch\nfrom torch.autograd import Variable\n\nx = Variable(torch.ones(3))\n",
    silent="import torch\n\nx = torch.ones(3)\n",
    fixed="import torch\n\nx = torch.ones(3)\n",
    find=find,
)
