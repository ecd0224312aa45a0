"""ARC114: sums and means that were Python numbers before PyTorch 0.4."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Fix
from ..finding import Hit
from ..kind import Kind
from ..program import Program
from ..rewrite import insert_after
from ..rule import Rule
from ..torch_names import REDUCTIONS
from .sources import GUIDE_0_4


def find(program: Program) -> Iterator[Hit]:
    """Find reductions of `.data` or of a comparison, where the result was a number."""
    if not program.is_old:
        return
    for name in REDUCTIONS:
        for call in program.method_calls.get(name, []):
            if call.args or call.keywords or not _is_used_as_number(program, call):
                continue
            assert isinstance(call.func, ast.Attribute)
            if not _had_no_graph(program, call.func.value):
                continue
            yield Hit(
                program.start(call),
                program.end(call),
                f"`{name}()` of a tensor was a Python number before PyTorch 0.4, and is a tensor "
                "now: adding it up keeps a tensor, on its device; write `.item()`",
                Fix((insert_after(program, call, ".item()"),), is_safe=False),
            )


def _is_used_as_number(program: Program, call: ast.Call) -> bool:
    parent = program.parents[call]
    if isinstance(parent, ast.Attribute):
        return False
    if isinstance(parent, ast.Assign):
        return isinstance(parent.targets[0], (ast.Name, ast.Attribute))
    return isinstance(parent, (ast.AugAssign, ast.BinOp, ast.Call, ast.Tuple, ast.FormattedValue))


def _had_no_graph(program: Program, node: ast.expr) -> bool:
    """Return whether a value had no graph in PyTorch 0.3: `.data`, or a comparison of it."""
    while True:
        if isinstance(node, ast.Attribute) and node.attr == "data":
            return True
        if isinstance(node, ast.Compare):
            return any(_had_no_graph(program, each) for each in (node.left, *node.comparators))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            compares = node.func.attr in ("eq", "ne", "gt", "lt", "ge", "le")
            if compares and node.args and _had_no_graph(program, node.args[0]):
                return True
            node = node.func.value
            continue
        return isinstance(node, ast.Name) and _comes_from_data(program, node)


def _comes_from_data(program: Program, name: ast.Name) -> bool:
    values = [each.value for each in program.scopes.bindings(name) if each.how == "assign"]
    return any(
        isinstance(value, ast.expr)
        and Kind.NUMBER not in program.kinds.of(value)
        and any(isinstance(each, ast.Attribute) and each.attr == "data" for each in ast.walk(value))
        for value in values
    )


RULE = Rule(
    code="ARC114",
    name="count-was-a-number",
    happens="`correct += pred.eq(target.data).sum()` once added Python numbers. It adds tensors "
    "now: prints show `tensor(…)`, a division dropped the remainder until PyTorch 1.5, and the "
    "sum stays on the device of its parts. Reported only in code for older versions.",
    since="PyTorch 0.4.0",
    cure="Write `.sum().item()`.",
    source=GUIDE_0_4,
    fires=(
        "import torch\nfrom torch.autograd import Variable\n\n"
        "y = Variable(torch.ones(3))\ncorrect = 0\ncorrect += y.data.eq(1).sum()\n"
    ),
    silent=("import torch\n\ny = torch.ones(3)\ncorrect = 0\ncorrect += y.eq(1).sum()\n"),
    fixed=(
        "import torch\nfrom torch.autograd import Variable\n\ny = Variable(torch.ones(3))\n"
        "correct = 0\ncorrect += y.data.eq(1).sum().item()\n"
    ),
    find=find,
)
