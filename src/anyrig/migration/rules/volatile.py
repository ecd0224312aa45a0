"""ARC102: `volatile=`, which no longer keeps PyTorch from recording a graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Edit, Fix
from ..finding import Hit
from ..lexer import split_tokens
from ..program import Program
from ..rewrite import constant, keyword
from ..rule import Rule
from ..training import called_name, trains
from ..tree import Function
from .sources import GUIDE_0_4
from .variable import VARIABLE, removed_statement, unwrapped

_BLOCKS = (ast.For, ast.While, ast.AsyncFor, ast.If, ast.With)
_INDENT = "    "


def find(program: Program) -> Iterator[Hit]:
    """Find `Variable(…, volatile=…)`, and `x.volatile`."""
    for call in program.calls.get(VARIABLE, []):
        volatile = keyword(call, "volatile")
        if volatile is None:
            continue
        edits = removed_statement(program, call) or unwrapped(program, call)
        guard = _guard(program, call, volatile.value)
        is_off = constant(volatile.value) is False
        yield Hit(
            program.start(call),
            program.end(call),
            "`volatile` has had no effect since PyTorch 0.4: the graph is recorded, and kept in "
            "memory; "
            "compute inside `with torch.no_grad():`",
            Fix((*edits, *guard), is_safe=is_off) if edits else None,
        )
    for node in program.all(ast.Attribute):
        is_set = isinstance(program.parents[node], ast.Assign) and isinstance(node.ctx, ast.Store)
        is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if node.attr == "volatile" and is_set and not is_own:
            yield Hit(
                program.start(node),
                program.end(node),
                "setting `volatile` has had no effect since PyTorch 0.4; compute inside "
                "`with torch.no_grad():`",
            )


def _guard(program: Program, call: ast.Call, value: ast.expr) -> tuple[Edit, ...]:
    """Return the edits that keep PyTorch from recording a graph where `volatile` did."""
    function = program.function(call)
    if constant(value) is True:
        return guard_evaluation(program, call)
    if function is None or not isinstance(value, ast.Name):
        return ()
    edits: list[Edit] = []
    for caller in _calls_with(program, function, value.id):
        edits += guard_evaluation(program, caller)
    return tuple(dict.fromkeys(edits))


def _calls_with(program: Program, function: Function, parameter: str) -> Iterator[ast.Call]:
    """Yield the calls of a function of this file that pass True for a parameter."""
    names = [each.arg for each in function.args.args]
    for call in program.all(ast.Call):
        if called_name(call) != function.name:
            continue
        given = keyword(call, parameter)
        place = names.index(parameter) if parameter in names else len(call.args)
        passed = given.value if given else call.args[place] if place < len(call.args) else None
        if constant(passed) is True:
            yield call


def guard_evaluation(program: Program, node: ast.AST) -> tuple[Edit, ...]:
    """Return edits that put the code around a node under `torch.no_grad()`.

    This is the whole function if nothing in it trains, otherwise the outermost loop around the node
    in which nothing trains. There are no edits if the node is in a lambda, or itself trains.
    """
    torch, imports = program.import_torch()
    function: Function | None = None
    block: ast.stmt | None = None
    for parent in program.ancestors(node):
        if isinstance(parent, ast.Lambda):
            return ()
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = None if trains(program, parent.body) else parent
            break
        if isinstance(parent, _BLOCKS) and not trains(program, [parent]):
            is_loop = isinstance(parent, (ast.For, ast.While))
            block = parent if is_loop or block is None else block
    if function is not None:
        return (
            () if _has_guard(program, function) else (*imports, _decorate(program, function, torch))
        )
    if block is None or any(_has_guard(program, each) for each in (block,)):
        return ()
    return (*imports, *_indent(program, block, torch))


def _decorate(program: Program, function: Function, torch: str) -> Edit:
    first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
    start = program.line_start(first)
    indent = _indentation(program, first)
    return Edit(start, start, f"{indent}@{torch}.no_grad(){program.newline}")


def _has_guard(program: Program, node: ast.stmt) -> bool:
    """Return whether a function or a block already computes without a graph."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return any("no_grad" in program.source(each) for each in node.decorator_list)
    around = [node, *program.ancestors(node)]
    return any(
        isinstance(each, ast.With)
        and any("no_grad" in program.source(item.context_expr) for item in each.items)
        for each in around
    )


def _indent(program: Program, block: ast.stmt, torch: str) -> Iterator[Edit]:
    """Yield the edits that put a block under a `with` statement."""
    assert block.end_lineno is not None
    first = block.lineno
    start = program.line_start(first)
    indent = _indentation(program, first)
    if program.text[start : program.start(block)].strip():
        return
    yield Edit(start, start, f"{indent}with {torch}.no_grad():{program.newline}{_INDENT}")
    end = program.line_start(block.end_lineno + 1)
    inside_string = {
        line
        for token in split_tokens(program.text, start, end)
        if token.kind == "string"
        for line in range(program.position(token.start)[0] + 1, program.position(token.end)[0] + 1)
    }
    for line in range(first + 1, block.end_lineno + 1):
        place = program.line_start(line)
        if line not in inside_string and program.text[place : program.line_start(line + 1)].strip():
            yield Edit(place, place, _INDENT)


def _indentation(program: Program, line: int) -> str:
    start = program.line_start(line)
    text = program.text[start : program.line_start(line + 1)]
    return text[: len(text) - len(text.lstrip(" \t"))]


RULE = Rule(
    code="ARC102",
    name="volatile",
    happens="PyTorch ignores `volatile`, with a warning. Evaluation records a graph as training "
    "does, and needs as much memory.",
    since="PyTorch 0.4.0",
    cure="Compute inside `with torch.no_grad():`, or decorate the function with it.",
    source=GUIDE_0_4,
    fires=(
        "import torch\nfrom torch.autograd import Variable\n\n\ndef evaluate(model, loader):\n"
        "    for x, y in loader:\n        x = Variable(x, volatile=True)\n        model(x)\n"
    ),
    silent=(
        "import torch\n\n\n@torch.no_grad()\ndef evaluate(model, loader):\n"
        "    for x, y in loader:\n        model(x)\n"
    ),
    fixed=(
        "import torch\nfrom torch.autograd import Variable\n\n\n@torch.no_grad()\n"
        "def evaluate(model, loader):\n"
        "    for x, y in loader:\n        model(x)\n"
    ),
    find=find,
)
