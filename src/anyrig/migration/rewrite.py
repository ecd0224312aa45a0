"""The edits of which fixes consist: unwrap a call, drop an argument, replace an expression."""

from __future__ import annotations

import ast

from .edit import Edit
from .lexer import split_tokens
from .program import Program

_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.List, ast.Dict, ast.ListComp)


def replace(program: Program, node: ast.expr | ast.stmt | ast.keyword, text: str) -> Edit:
    """Return the edit that replaces a node by a text."""
    return Edit(program.start(node), program.end(node), text)


def insert_after(program: Program, node: ast.expr | ast.stmt, text: str) -> Edit:
    """Return the edit that inserts a text after a node."""
    return Edit(program.end(node), program.end(node), text)


def unwrap(program: Program, call: ast.expr, inner: ast.expr, suffix: str) -> tuple[Edit, ...]:
    """Return the edits that replace a call, or an index, by the expression within, with a suffix.

    The suffix is such as ``.detach()``.
    """
    start, end = program.start(call), program.end(call)
    inner_start, inner_end = program.start(inner), program.end(inner)
    parent = program.parents.get(call)
    is_operand = isinstance(
        parent, (ast.Attribute, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Starred, ast.Await)
    ) or (isinstance(parent, (ast.Subscript, ast.Call)) and call is _operand(parent))
    is_atom = isinstance(inner, (*_ATOMS, ast.Constant))
    # Without the bracket that the head opens, the lines would be statements of their own.
    spans_lines = start < inner_start and any(mark in program.text[start:end] for mark in "\r\n")
    if spans_lines or not (is_atom or (not suffix and not is_operand)):
        return Edit(start, inner_start, "("), Edit(inner_end, end, f"){suffix}")
    return Edit(start, inner_start), Edit(inner_end, end, suffix)


def _operand(parent: ast.Subscript | ast.Call) -> ast.expr:
    return parent.value if isinstance(parent, ast.Subscript) else parent.func


def remove_argument(program: Program, call: ast.Call, argument: ast.expr | ast.keyword) -> Edit:
    """Return the edit that drops an argument and its comma."""
    start, end = program.start(argument), program.end(argument)
    before = [each for each in arguments(program, call) if program.start(each) < start]
    after = [each for each in arguments(program, call) if program.start(each) > start]
    if before:
        gap_start = program.end(before[-1])
        comma = next(
            token for token in split_tokens(program.text, gap_start, start) if token.text == ","
        )
        start = comma.start
    elif after:
        end = program.start(after[0])
    else:
        tail = program.text[end : program.end(call) - 1]
        end += len(tail) if not tail.strip(" ,") else 0
    return Edit(start, end)


def arguments(program: Program, call: ast.Call) -> list[ast.expr | ast.keyword]:
    """Return the arguments of a call in the order of the text."""
    return sorted([*call.args, *call.keywords], key=program.start)


def add_argument(program: Program, call: ast.Call, text: str) -> Edit | None:
    """Return the edit that adds a last argument; None if the call's end is too unusual."""
    closing = program.end(call) - 1
    given = arguments(program, call)
    if not given:
        return Edit(closing, closing, text)
    last = program.end(given[-1])
    tail = [token for token in split_tokens(program.text, last, closing) if token.kind != "space"]
    kinds = {token.text if token.kind == "operator" else token.kind for token in tail}
    if not kinds:
        return Edit(last, last, f", {text}")
    if kinds == {","} and len(tail) == 1:
        return Edit(last, last, f", {text}")
    if kinds <= {",", "newline", ")"} and "," not in kinds and ")" not in kinds:
        return Edit(last, last, f", {text}")
    if kinds == {",", "newline"} and tail[0].text == ",":
        return Edit(last, last, f", {text}")
    if kinds == {")"}:
        return Edit(closing, closing, f", {text}")
    return None


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    """Return a keyword argument of a call."""
    return next((each for each in call.keywords if each.arg == name), None)


def constant(node: ast.expr | None) -> object:
    """Return the value of a constant; `...` for any other expression."""
    return node.value if isinstance(node, ast.Constant) else ...


def has_stars(call: ast.Call) -> bool:
    """Return whether a call has ``*args`` or ``**kwargs``, whose content the text does not show."""
    return any(isinstance(each, ast.Starred) for each in call.args) or any(
        each.arg is None for each in call.keywords
    )


def remove_line(program: Program, statement: ast.stmt) -> Edit | None:
    """Return the edit that deletes a statement with its line; None if it shares the line."""
    assert statement.end_lineno is not None
    start, end = program.line_start(statement.lineno), program.line_start(statement.end_lineno + 1)
    before = program.text[start : program.start(statement)]
    after = program.text[program.end(statement) : end]
    if before.strip() or after.strip():
        return None
    parent = program.parents[statement]
    if isinstance(parent, ast.Module):
        return Edit(start, end)  # which may be empty
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parent, field, [])
        if isinstance(block, list) and len(block) == 1 and block[0] is statement:
            return replace(program, statement, "pass")
    return Edit(start, end)


def round_down(program: Program, division: ast.BinOp) -> Edit:
    """Return the edit that writes ``//`` for the ``/`` of a division."""
    gap = program.end(division.left), program.start(division.right)
    slash = next(token for token in split_tokens(program.text, *gap) if token.text == "/")
    return Edit(slash.start, slash.end, "//")
