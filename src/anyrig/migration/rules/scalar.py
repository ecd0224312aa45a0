"""ARC103: `loss.data[0]`, which indexes a tensor that has no dimension."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..edit import Fix
from ..finding import Hit
from ..kind import Kind
from ..program import Program
from ..rewrite import constant, unwrap
from ..rule import Rule
from ..training import called_name
from .sources import GUIDE_0_4, thread

# Usual names of a loss. The name decides if the value comes from a function in another file.
_LOSS_NAME = re.compile(r"loss|criterion|(^|_)(err|mse|bce|nll|kld?|cost)($|_|[A-Z])|^err[A-Z]")
_TO_NUMPY = ("numpy", "cpu", "tolist")


def find(program: Program) -> Iterator[Hit]:
    """Find an index 0 on a tensor that is one number."""
    for node, value in numbers(program):
        name = program.source(value)[:40]
        is_guess = Kind.SCALAR not in program.kinds.of(value) and _is_sample(program, value)
        what = f"`{name}`, if it is a single sample," if is_guess else f"`{name}`"
        error = "TypeError" if program.source(node.value).endswith(".tolist()") else "IndexError"
        yield Hit(
            program.start(node),
            program.end(node),
            f"{what} is one number and has had no index since PyTorch 0.4, so this raises {error}; "
            "write `.item()`",
            Fix(unwrap(program, node, value, ".item()"), is_safe=not is_guess),
        )


def numbers(program: Program) -> Iterator[tuple[ast.Subscript, ast.expr]]:
    """Yield each index 0 on a tensor that is one number, and the tensor."""
    for node in program.all(ast.Subscript):
        if constant(node.slice) != 0 or not isinstance(node.ctx, ast.Load):
            continue
        value, is_data = _value(node.value)
        if value is None:
            continue
        kind = program.kinds.of(value)
        is_number = Kind.SCALAR in kind or (is_data and _is_loss_by_name(program, value, kind))
        if is_number or (is_data and _is_sample(program, value)):
            yield node, value


def _value(node: ast.expr) -> tuple[ast.expr | None, bool]:
    """Return the tensor of ``tensor.data``, ``tensor.data.cpu().numpy()`` and so on."""
    is_data = False
    while True:
        if isinstance(node, ast.Attribute) and node.attr == "data":
            node, is_data = node.value, True
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _TO_NUMPY
            and not node.args
        ):
            node = node.func.value
        elif isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.BinOp)):
            return node, is_data
        else:
            return None, False


def _is_sample(program: Program, value: ast.expr) -> bool:
    """Return whether old code samples a value of a distribution, such as one action."""
    return (
        program.is_old
        and isinstance(value, ast.Name)
        and any(
            isinstance(each.value, ast.Call)
            and not each.path
            and called_name(each.value) == "sample"
            for each in program.scopes.bindings(value)
        )
    )


def _is_loss_by_name(program: Program, value: ast.expr, kind: Kind) -> bool:
    if kind & ~(Kind.TENSOR | Kind.LOSS | Kind.SCALAR | Kind.FRESH):
        return False
    if isinstance(value, ast.Call):
        return _LOSS_NAME.search(called_name(value)) is not None
    if isinstance(value, ast.Name):
        if _LOSS_NAME.search(value.id):
            return True
        return any(
            isinstance(each.value, ast.Call)
            and not each.path
            and _LOSS_NAME.search(called_name(each.value)) is not None
            and Kind.CRITERION not in program.kinds.of(each.value.func)
            for each in program.scopes.bindings(value)
        )
    return isinstance(value, ast.Attribute) and _LOSS_NAME.search(value.attr) is not None


RULE = Rule(
    code="ARC103",
    name="index-of-a-number",
    happens="A loss, and every sum or mean over all elements, is a tensor without dimensions. "
    "`loss.data[0]` raises IndexError: invalid index of a 0-dim tensor.",
    since="PyTorch 0.4.0 (a warning), 1.0.0 (an error)",
    cure="Write `loss.item()`.",
    source=f"{GUIDE_0_4} and {thread(11679)}",
    fires="import torch\n\nloss = torch.ones(3, requires_grad=True).sum()\nprint(loss.data[0])\n",
    silent=(
        'import torch\n\nbatch = {"data": [1, 2]}\nprint(batch["data"][0], torch.ones(3).data[0])\n'
    ),
    fixed="import torch\n\nloss = torch.ones(3, requires_grad=True).sum()\nprint(loss.item())\n",
    find=find,
)
