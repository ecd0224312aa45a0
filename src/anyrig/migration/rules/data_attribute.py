"""ARC119: `.data`, which hides a change from autograd."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Edit, Fix
from ..finding import Hit
from ..kind import Kind
from ..program import Program
from ..rewrite import constant
from ..rule import Rule
from .scalar import numbers
from .sources import GUIDE_0_4

# Methods that only tensors have, and that only read.
_OF_TENSORS = frozenset(
    {
        *(
            "argmax",
            "clone",
            "cpu",
            "cuda",
            "div",
            "eq",
            "exp",
            "expand",
            "float",
            "ge",
            "gt",
            "le",
        ),
        *("long", "lt", "max", "mean", "min", "mm", "mul", "ne", "new", "norm", "numpy", "squeeze"),
        *("sum", "topk", "transpose", "unsqueeze", "view", "view_as"),
    }
)


def find(program: Program) -> Iterator[Hit]:
    """Find reads of `.data` and assignments to it, in old code."""
    if not program.is_old:
        return
    replaced = {inner for node, _ in numbers(program) for inner in ast.walk(node)}
    for node in program.all(ast.Attribute):
        if node.attr != "data" or node in replaced or not _is_tensor(program, node):
            continue
        if _is_written(program, node):
            continue
        start, end = program.end(node.value), program.end(node)
        if isinstance(node.ctx, ast.Store):
            name = program.source(node.value)
            yield Hit(
                start,
                end,
                f"autograd does not see an assignment to `.data`; assign `{name}` itself, or "
                f"`{name}.copy_(…)` inside `torch.no_grad()`",
            )
        elif isinstance(node.ctx, ast.Load):
            yield Hit(
                start,
                end,
                "autograd does not see what happens to `.data`, and may compute wrong gradients "
                "silently; write `.detach()`",
                Fix((Edit(end - len("data"), end, "detach()"),), is_safe=False),
            )


def _is_tensor(program: Program, node: ast.Attribute) -> bool:
    """Return whether the text shows that this is a tensor's attribute."""
    if Kind.TENSOR in program.kinds.of(node.value):
        return True
    parent = program.parents[node]
    if isinstance(parent, ast.Attribute) and parent.attr in _OF_TENSORS:
        return isinstance(program.parents[parent], ast.Call)
    if isinstance(node.value, ast.Name):
        if isinstance(parent, ast.Subscript) and constant(parent.slice) == 0:
            return True
        values = [each.value for each in program.scopes.bindings(node.value)]
        return any(_calls_module(program, value) for value in values if value is not None)
    return isinstance(parent, ast.Compare)


def _calls_module(program: Program, value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    if Kind.MODULE in program.kinds.possible(value.func):
        return True
    return isinstance(value.func, ast.Name) and value.func.id in ("model", "net", "network")


def _is_written(program: Program, node: ast.Attribute) -> bool:
    """Return whether the program changes the tensor through `.data`, in place."""
    parent = program.parents[node]
    if isinstance(parent, ast.Attribute):
        return parent.attr.endswith("_") or isinstance(parent.ctx, ast.Store)
    if isinstance(parent, ast.Subscript):
        return not isinstance(parent.ctx, ast.Load)
    return isinstance(parent, ast.AugAssign) and parent.target is node


RULE = Rule(
    code="ARC119",
    name="data-attribute",
    happens="`x.data` is `x` without its graph, and autograd does not see what is done to it: a "
    "change in place gives wrong gradients, silently. After `x.detach()`, it raises an error. "
    "Reported only in code for older versions, and not where the change in place is the purpose.",
    since="PyTorch 0.4.0, which recommends `detach()` in its place",
    cure="Write `.detach()`; change parameters inside `with torch.no_grad():`.",
    source=GUIDE_0_4,
    fires=(
        "import torch\nfrom torch.autograd import Variable\n\nx = Variable(torch.ones(3))\n"
        "y = x.data.view(-1)\n"
    ),
    silent=("import torch\n\nx = torch.ones(3)\nx.data.fill_(1)\ny = x.data.view(-1)\n"),
    fixed=(
        "import torch\nfrom torch.autograd import Variable\n\nx = Variable(torch.ones(3))\n"
        "y = x.detach().view(-1)\n"
    ),
    find=find,
)
