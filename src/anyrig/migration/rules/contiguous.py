"""ARC108: `view` of a transposed result."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Edit, Fix
from ..finding import Hit
from ..program import Program
from ..rewrite import constant
from ..rule import Rule
from .sources import GUIDE_0_4, thread

_KEEP_ORDER = ("eq", "ne", "lt", "gt", "le", "ge", "float", "long", "byte", "add", "mul", "clone")


def find(program: Program) -> Iterator[Hit]:
    """Find ``correct[:k].view(-1)`` where `correct` compares something transposed."""
    for call in program.method_calls.get("view", []):
        assert isinstance(call.func, ast.Attribute)
        part = call.func.value
        if not isinstance(part, ast.Subscript) or not isinstance(part.slice, ast.Slice):
            continue
        if part.slice.lower is None and constant(part.slice.upper) == 1:
            continue  # one row has one stride
        if [constant(each) for each in call.args] != [...] or not _is_minus_one(call.args[0]):
            continue
        if isinstance(part.value, ast.Name) and _is_transposed(program, part.value, 4):
            end = program.end(part)
            name_start = program.text.index("view", end)
            yield Hit(
                program.start(call),
                program.end(call),
                "this part of a transposed tensor is not contiguous since PyTorch 1.7 keeps the "
                "order of memory in comparisons, so `view` raises RuntimeError if it has several "
                "rows; write `reshape`",
                Fix((Edit(name_start, name_start + len("view"), "reshape"),), is_safe=True),
            )


def find_reduced(program: Program) -> Iterator[Hit]:
    """Find ``x.view(-1).float().sum(0)`` in old code, whose result had one dimension."""
    if not program.is_old:
        return
    for call in program.method_calls.get("sum", []):
        assert isinstance(call.func, ast.Attribute)
        if [constant(each) for each in call.args] != [0] or call.keywords:
            continue
        inner: ast.expr = call.func.value
        while (
            isinstance(inner, ast.Call)
            and isinstance(inner.func, ast.Attribute)
            and inner.func.attr in ("float", "double", "long", "int", "cpu")
        ):
            inner = inner.func.value
        if (
            isinstance(inner, ast.Call)
            and isinstance(inner.func, ast.Attribute)
            and inner.func.attr in ("view", "reshape")
            and len(inner.args) == 1
            and _is_minus_one(inner.args[0])
        ):
            end = program.end(call) - 1
            yield Hit(
                program.start(call),
                program.end(call),
                "the sum over the only dimension had one element before PyTorch 0.4, and has no "
                "dimension now: an index 0 on it raises IndexError; pass `keepdim=True`",
                Fix((Edit(end, end, ", keepdim=True"),), is_safe=False),
            )


def _is_minus_one(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and constant(node.operand) == 1


def _is_transposed(program: Program, node: ast.expr, depth: int) -> bool:
    """Return whether a value has the memory order of a result of `t()` or `transpose()`."""
    if depth == 0:
        return False
    if isinstance(node, ast.Name):
        return any(
            each.how == "assign"
            and each.value is not None
            and not each.path
            and _is_transposed(program, each.value, depth - 1)
            for each in program.scopes.bindings(node)
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("t", "transpose") and not _is_matrix_only(node):
            return True
        if node.func.attr in _KEEP_ORDER:
            return _is_transposed(program, node.func.value, depth - 1)
    if isinstance(node, ast.Compare):
        return _is_transposed(program, node.left, depth - 1)
    return False


def _is_matrix_only(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "t" and bool(call.args)


RULE = Rule(
    code="ARC108",
    name="view-of-transposed",
    happens="`correct[:k].view(-1)` raises RuntimeError: view size is not compatible. The accuracy "
    "function of many scripts compares a transposed tensor; the result now keeps that order.",
    since="PyTorch 1.7.0",
    cure="Write `reshape(-1)`.",
    source=thread(43998),
    fires=(
        "import torch\n\npred = torch.ones(4, 5).t()\ncorrect = pred.eq(1)\n"
        "top = correct[:3].view(-1)\n"
    ),
    silent=(
        "import torch\n\npred = torch.ones(4, 5)\ncorrect = pred.eq(1)\n"
        "top = correct[:3].view(-1)\n"
    ),
    fixed=(
        "import torch\n\npred = torch.ones(4, 5).t()\ncorrect = pred.eq(1)\n"
        "top = correct[:3].reshape(-1)\n"
    ),
    find=find,
)
REDUCED = Rule(
    code="ARC118",
    name="sum-without-dimension",
    happens="`x.view(-1).sum(0)` had one element, which `[0]` read. It is a number without "
    "dimensions now, and `[0]` raises IndexError, perhaps in another function. Reported only in "
    "code for older versions.",
    since="PyTorch 0.4.0",
    cure="Pass `keepdim=True`, or read the number with `.item()`.",
    source=GUIDE_0_4,
    fires=(
        "import torch\nfrom torch.autograd import Variable\n\n\ndef count(correct):\n"
        "    return Variable(correct).view(-1).float().sum(0)\n"
    ),
    silent="import torch\n\n\ndef count(correct):\n    return correct.view(-1).float().sum(0)\n",
    fixed=(
        "import torch\nfrom torch.autograd import Variable\n\n\ndef count(correct):\n"
        "    return Variable(correct).view(-1).float().sum(0, keepdim=True)\n"
    ),
    find=find_reduced,
)
