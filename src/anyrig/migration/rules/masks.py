"""ARC106: masks of bytes, and arithmetic on masks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Edit, Fix
from ..finding import Hit
from ..kind import Kind
from ..program import Program
from ..rewrite import constant, replace
from ..rule import Rule
from .sources import V1_2, thread

_TAKE_MASKS = ("masked_fill", "masked_fill_", "masked_select", "masked_scatter", "masked_scatter_")


def find(program: Program) -> Iterator[Hit]:
    """Find `1 - mask`, and masks that are made of bytes."""
    for node in program.all(ast.BinOp):
        kind = program.kinds.of(node.right)
        if isinstance(node.op, ast.Sub) and constant(node.left) == 1 and Kind.MASK in kind:
            is_simple = isinstance(node.right, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
            inner = program.source(node.right)
            new = f"~{inner}" if is_simple else f"~({inner})"
            yield Hit(
                program.start(node),
                program.end(node),
                "comparisons have given booleans since PyTorch 1.2, and `1 - mask` raises "
                "RuntimeError; write `~mask`",
                Fix((_in_brackets(program, node, new),), is_safe=True),
            )
    for name in _TAKE_MASKS:
        for call in program.method_calls.get(name, []):
            if call.args:
                yield from _byte_mask(
                    program, call.args[0], "has raised RuntimeError since PyTorch 2.1"
                )
    for subscript in program.all(ast.Subscript):
        is_set = isinstance(subscript.ctx, ast.Store)
        more = ", and raises RuntimeError where it sets a number" if is_set else ""
        yield from _byte_mask(
            program, subscript.slice, f"has been deprecated as an index since PyTorch 1.2{more}"
        )


def _in_brackets(program: Program, node: ast.BinOp, new: str) -> Edit:
    parent = program.parents[node]
    binds_tighter = isinstance(parent, ast.Attribute) or (
        isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Pow)
    )
    is_bare = program.text[program.start(node) - 1] != "("
    return replace(program, node, f"({new})" if binds_tighter and is_bare else new)


def _byte_mask(program: Program, mask: ast.expr, consequence: str) -> Iterator[Hit]:
    """Find a mask that the expression itself turns into bytes."""
    if not isinstance(mask, ast.Call) or not isinstance(mask.func, ast.Attribute):
        return
    function = mask.func
    is_type = function.attr == "type" and len(mask.args) == 1
    type_name = (program.names.dotted(mask.args[0]) or "") if is_type else ""
    if function.attr == "byte" and not mask.args:
        pass
    elif not type_name.endswith((".ByteTensor", ".uint8")):
        return
    name_start = program.end(function) - len(function.attr)
    yield Hit(
        program.start(mask),
        program.end(mask),
        f"a mask of bytes {consequence}; write `.bool()`",
        Fix((Edit(name_start, program.end(mask), "bool()"),), is_safe=True),
    )


RULE = Rule(
    code="ARC106",
    name="byte-mask",
    happens="Comparisons return `torch.bool`, no longer `torch.uint8`. `1 - mask` and "
    "`x.masked_fill(mask.byte(), 0)` raise RuntimeError, and indexing with bytes is deprecated.",
    since="PyTorch 1.2.0; 2.1.0 for `masked_fill`, `masked_select` and `masked_scatter`",
    cure="Invert a mask with `~`, and turn numbers into a mask with `.bool()`.",
    source=f"{V1_2} and {thread(97999)}",
    fires="import torch\n\nmask = torch.ones(3) > 0\nother = 1 - mask\n",
    silent="import torch\n\nmask = (torch.ones(3) > 0).float()\nother = 1 - mask\n",
    fixed="import torch\n\nmask = torch.ones(3) > 0\nother = ~mask\n",
    find=find,
)
