"""ARC104: `size_average=` and `reduce=` of losses."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Edit, Fix
from ..finding import Hit
from ..program import Program
from ..rewrite import constant, has_stars, keyword, remove_argument
from ..rule import Rule
from ..torch_names import LOSS_FUNCTIONS, LOSSES
from .sources import V1_0


def find(program: Program) -> Iterator[Hit]:
    """Find losses of PyTorch with the old arguments."""
    names = [f"torch.nn.{name}" for name in LOSSES]
    names += [f"torch.nn.functional.{name}" for name in LOSS_FUNCTIONS]
    for name in names:
        for call in program.calls.get(name, []):
            average, reduce = keyword(call, "size_average"), keyword(call, "reduce")
            given = [each for each in (average, reduce) if each is not None]
            if not given:
                continue
            reduction = _reduction(average, reduce)
            yield Hit(
                program.start(given[0]),
                program.end(given[-1]),
                "`size_average` and `reduce` have been deprecated since PyTorch 0.4.1; write "
                f"`reduction={reduction or '…'}`",
                _fix(program, call, given, reduction),
            )


def _reduction(average: ast.keyword | None, reduce: ast.keyword | None) -> str | None:
    averages = True if average is None else constant(average.value)
    reduces = True if reduce is None else constant(reduce.value)
    if averages in (True, False, None) and reduces in (True, False, None):
        if reduces is False:
            return '"none"'
        return '"sum"' if averages is False else '"mean"'
    return None


def _fix(
    program: Program, call: ast.Call, given: list[ast.keyword], reduction: str | None
) -> Fix | None:
    if has_stars(call) or keyword(call, "reduction") is not None:
        return None
    if reduction is None:
        if len(given) > 1 or given[0].arg != "size_average":
            return None
        value = program.source(given[0].value)
        if not isinstance(given[0].value, (ast.Name, ast.Attribute, ast.Call)):
            value = f"({value})"
        reduction = f'"mean" if {value} else "sum"'
    quote = "'" if program.text.count("'") > program.text.count('"') else '"'
    first = given[0]
    edits = [
        Edit(program.start(first), program.end(first), f"reduction={reduction}".replace('"', quote))
    ]
    edits += [remove_argument(program, call, other) for other in given[1:]]
    return Fix(tuple(edits), is_safe=True)


RULE = Rule(
    code="ARC104",
    name="size-average",
    happens="The arguments are deprecated. They still work, with a warning.",
    since="PyTorch 0.4.1 (with `elementwise_mean`), 1.0.0 (with `mean`)",
    cure='Write `reduction="mean"`, `"sum"` or `"none"`.',
    source=V1_0,
    fires="from torch import nn\n\ncriterion = nn.MSELoss(size_average=False)\n",
    silent='from torch import nn\n\ncriterion = nn.MSELoss(reduction="sum")\n',
    fixed='from torch import nn\n\ncriterion = nn.MSELoss(reduction="sum")\n',
    find=find,
)
