"""ARC120: sums and differences of masks, which counted while masks were bytes.

::

    both = ((a == b) + (c == d)) == 2        bytes: 0, 1 or 2       booleans: False or True
           └─ masks of a sum ─┘  └── a use where 2 and True differ

A sum is reported only where it is used as a number (`mask_uses.py`): an index, or `> 0`, is the
same for both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ..edit import Edit, Fix
from ..finding import Hit
from ..kind import Kind
from ..lexer import split_tokens
from ..program import Program
from ..rule import Rule
from .mask_uses import ARITHMETIC, MOST, OPERATORS, are_numbers, is_number, number
from .sources import V1_2

_BOOLEANS = "comparisons have given booleans since PyTorch 1.2"
_OR = f"{_BOOLEANS}, and their `+` is a logical or, which is never 2; to count as before"
_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


def find(program: Program) -> Iterator[Hit]:
    """Find sums of masks that are used as numbers, and differences of masks."""
    for node in program.all(ast.BinOp):
        parent = program.parents[node]
        if isinstance(parent, ast.BinOp) and _masks(program, parent) is not None:
            continue
        masks = _masks(program, node)
        if masks is None:
            continue
        operations = _operations(node)
        if ast.Sub in operations:
            if all(Kind.MASK in program.kinds.of(mask) for mask in masks):
                yield _difference(program, node, masks)
        elif (
            ast.Add in operations
            and _overlap(program, masks)
            and is_number(program, node, len(masks))
        ):
            yield _hit(program, node, f"{_OR}, write `.byte()` after each comparison", masks)
    for added in program.all(ast.AugAssign):
        target, masks = added.target, _masks(program, added.value)
        if not isinstance(added.op, ast.Add) or masks is None or not isinstance(target, ast.Name):
            continue
        if (
            Kind.MASK in program.kinds.of(target)
            and _overlap(program, [target, *masks])
            and are_numbers(program, target, MOST)
        ):
            # Not rewritten: as bytes, `~` and `1 -` elsewhere would mean something else.
            name = target.id
            yield _hit(program, added, f"{_OR}, write `{name} = {name}.byte() + …`", ())


def _difference(program: Program, node: ast.BinOp, masks: Sequence[ast.expr]) -> Hit:
    message = (
        f"{_BOOLEANS}, and their `-` raises RuntimeError; write `.byte()` after each comparison, "
        "where 0 - 1 is 255 as before, `.long()` for -1, or `^` for where they differ"
    )
    return _hit(program, node, message, masks, is_safe=program.is_old)


def _hit(
    program: Program,
    node: ast.BinOp | ast.AugAssign,
    message: str,
    masks: Sequence[ast.expr],
    *,
    is_safe: bool = False,
) -> Hit:
    """Return a hit, with a fix that makes the masks bytes; those known to be masks suffice."""
    certain = [mask for mask in masks if Kind.MASK in program.kinds.of(mask)]
    edits = tuple(edit for mask in certain for edit in _as_bytes(program, mask))
    fix = Fix(edits, is_safe) if edits else None
    return Hit(program.start(node), program.end(node), message, fix)


def _masks(program: Program, node: ast.expr) -> list[ast.expr] | None:
    """Return the comparisons of which a sum, difference or product is made.

    None if something else is in it, or one of its operations has no operand that certainly
    compares tensors.
    """
    if isinstance(node, ast.BinOp) and isinstance(node.op, ARITHMETIC):
        right = _masks(program, node.right)
        left = None if right is None else _masks(program, node.left)
        if left is None or right is None:
            return None
        masks = [*left, *right]
        is_certain = any(Kind.MASK in program.kinds.of(mask) for mask in masks)
        return masks if is_certain else None
    return [node] if _is_comparison(program, node) else None


def _operations(node: ast.expr) -> set[type[ast.operator]]:
    """Return what joins the masks of a sum, difference or product."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ARITHMETIC):
        return {type(node.op)} | _operations(node.left) | _operations(node.right)
    return set()


def _is_comparison(program: Program, node: ast.expr) -> bool:
    if isinstance(node, ast.Compare):
        return all(type(each) in OPERATORS for each in node.ops)
    return Kind.MASK in program.kinds.of(node)


def _overlap(program: Program, masks: Sequence[ast.expr]) -> bool:
    """Return whether two of the masks may hold at once, unlike `x == 1` and `x == 2`."""
    return not all(
        _exclude(program, one, other)
        for place, one in enumerate(masks)
        for other in masks[place + 1 :]
    )


def _exclude(program: Program, one: ast.expr, other: ast.expr) -> bool:
    tests = []
    for each in (one, other):
        if not isinstance(each, ast.Compare) or len(each.ops) > 1:
            return False
        bound = number(each.comparators[0])
        if bound is None:
            return False
        tests.append((program.source(each.left), OPERATORS[type(each.ops[0])], bound))
    (left, holds, bound), (right, other_holds, other_bound) = tests
    values = [bound, other_bound, (bound + other_bound) / 2, min(bound, other_bound) - 1]
    values.append(max(bound, other_bound) + 1)
    return left == right and not any(
        holds(value, bound) and other_holds(value, other_bound) for value in values
    )


def _as_bytes(program: Program, mask: ast.expr) -> tuple[Edit, ...]:
    """Return the edits that write `.byte()` after a mask, within an operation."""
    start, end = program.start(mask), program.end(mask)
    if isinstance(mask, _ATOMS):
        return (Edit(end, end, ".byte()"),)
    parent = program.parents[mask]
    assert isinstance(parent, (ast.BinOp, ast.AugAssign))
    is_left = isinstance(parent, ast.BinOp) and mask is parent.left
    stop = program.start(parent.right) if is_left else program.end(parent)  # type: ignore[union-attr]
    for token in split_tokens(program.text, end, stop):
        if token.text == ")":
            return (Edit(token.end, token.end, ".byte()"),)
        if token.kind not in ("space", "newline", "comment", "join"):
            break
    return Edit(start, start, "("), Edit(end, end, ").byte()")


RULE = Rule(
    code="ARC120",
    name="sum-of-masks",
    happens="`mask + (a == b)` counted while comparisons gave bytes. With booleans, `+` is a "
    "logical or, so `((a == b) + (c == d)) == 2` is never true, silently, and `.sum()` counts "
    "less; `-` raises RuntimeError. Sums are reported where they are used as numbers; in code for "
    "newer versions, only where a comparison with them cannot change.",
    since="PyTorch 1.2.0",
    cure="Write `.byte()` after each comparison: bytes add and wrap as before, and 0 - 1 is 255. "
    "Write `&` for both, `|` for either, and `.long()` where numbers above 255 or below 0 occur.",
    source=V1_2,
    fires=(
        "import torch\n\na, b = torch.ones(3), torch.zeros(3)\nboth = ((a == 1) + (b == 0)) == 2\n"
    ),
    silent=(
        "import torch\n\na, b = torch.ones(3), torch.zeros(3)\n"
        "either = a[((a == 1) + (b == 0)) > 0]\n"
    ),
    fixed=(
        "import torch\n\na, b = torch.ones(3), torch.zeros(3)\n"
        "both = ((a == 1).byte() + (b == 0).byte()) == 2\n"
    ),
    find=find,
)
