"""ARC107: dividing tensors of integers, which once rounded."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Fix
from ..finding import Hit
from ..kind import Kind
from ..program import Program
from ..rewrite import round_down
from ..rule import Rule
from .sources import V1_5, V1_7, V1_13


def find(program: Program) -> Iterator[Hit]:
    """Find `/` on tensors of integers in code for versions in which it rounded."""
    if not program.is_old:
        return
    for node in program.all(ast.BinOp):
        if not isinstance(node.op, ast.Div):
            continue
        left, right = program.kinds.of(node.left), program.kinds.of(node.right)
        is_whole_right = Kind.WHOLE in right or (
            isinstance(node.right, ast.Constant) and type(node.right.value) is int
        )
        if Kind.WHOLE not in left or not is_whole_right:
            continue
        yield Hit(
            program.start(node),
            program.end(node),
            "`/` on tensors of integers gave integers until PyTorch 1.5, and has given fractions "
            "since 1.7; write `//` if this is an index",
            Fix((round_down(program, node),), is_safe=False),
        )


RULE = Rule(
    code="ARC107",
    name="integer-division",
    happens="`/` on tensors of integers gives fractions; it once dropped the remainder. The code "
    "may run and compute different numbers. `//` rounded towards zero until 1.12, and "
    "rounds down now.",
    since="PyTorch 1.5.0 (a warning), 1.6.0 (an error), 1.7.0 (fractions); 1.13.0 for `//`",
    cure='Write `//`, or `torch.div(a, b, rounding_mode="trunc")` if negative numbers occur.',
    source=f"{V1_5}, {V1_7} and {V1_13}",
    fires=(
        "import torch\nfrom torch.autograd import Variable\n\nx = Variable(torch.rand(9))\n"
        "values, place = torch.max(x, 0)\nrow = place / 3\n"
    ),
    silent=(
        "import torch\n\nx = torch.rand(9)\nvalues, place = torch.max(x, 0)\nrow = place // 3\n"
    ),
    fixed=(
        "import torch\nfrom torch.autograd import Variable\n\nx = Variable(torch.rand(9))\n"
        "values, place = torch.max(x, 0)\nrow = place // 3\n"
    ),
    find=find,
)
