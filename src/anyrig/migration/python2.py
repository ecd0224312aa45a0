"""Make Python 2 readable: find what only Python 2 parses, and say how Python 3 writes it.

No edit adds or removes a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from .edit import Edit
from .lexer import Token, split_statements, split_tokens

PRINT, ASYNC, SYNTAX = "ARC001", "ARC002", "ARC003"

# Functions of PyTorch whose argument `async` became `non_blocking`.
_COPIES = {"cuda", "copy_", "type", "to", "cpu"}
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Repair:
    """What only Python 2 parses, and how Python 3 writes it.

    Attributes:
        code: the rule that reports it.
        start: the first character of the place.
        end: the character after its last.
        message: what happens there.
        edits: the changes.
        is_safe: whether the edits keep the meaning.
    """

    code: str
    start: int
    end: int
    message: str
    edits: tuple[Edit, ...]
    is_safe: bool = True


def find_repairs(text: str) -> tuple[Repair, ...]:
    """Return the repairs of a text that does not parse, in order."""
    tokens = list(split_tokens(text))
    found = [*_in_tokens([token for token in tokens if token.kind != "space"])]
    statements = [*split_statements(tokens)]
    has_statement = not any(map(_makes_print_a_function, statements))
    for statement in statements:
        if has_statement or statement[0].text != "print":
            found += _in_statement(statement, text)
    return tuple(sorted(found, key=lambda repair: repair.start))


def _makes_print_a_function(statement: list[Token]) -> bool:
    words = [token.text for token in statement]
    return words[:2] == ["from", "__future__"] and "print_function" in words


def expand_tabs(text: str) -> tuple[Edit, ...]:
    """Return edits that replace tabs in indentation by the eight columns of Python 2."""
    edits = []
    is_start = True
    for token in split_tokens(text):
        if is_start and token.kind == "space" and "\t" in token.text:
            edits.append(Edit(token.start, token.end, token.text.expandtabs(8)))
        is_start = token.kind == "newline"
    return tuple(edits)


def _in_tokens(tokens: list[Token]) -> Iterator[Repair]:
    callees: list[str] = []
    before = Token("newline", 0, 0, "\n")
    backtick: Token | None = None
    for token, after in pairwise([*tokens, before]):
        start, end = token.start, token.end
        if token.text in _BRACKETS:
            callees.append(before.text if before.kind == "name" else "")
        elif token.text in _BRACKETS.values() and callees:
            callees.pop()
        elif token.text == "async" and after.text not in ("def", "for", "with"):
            is_copy = after.text == "=" and bool(callees) and callees[-1] in _COPIES
            new = "non_blocking" if is_copy else "async_"
            yield Repair(
                ASYNC,
                start,
                end,
                "`async` has been a keyword since Python 3.7, so this file does not parse; write "
                f"`{new}`" + (", its name since PyTorch 0.4" if is_copy else ""),
                (Edit(start, end, new),),
                is_copy,
            )
        elif token.text == "<>":
            yield _syntax(token, "`<>`", "`!=`", Edit(start, end, "!="))
        elif token.text == "`":
            if backtick is None:
                backtick = token
            else:
                edits = (Edit(backtick.start, backtick.end, "repr("), Edit(start, end, ")"))
                yield _syntax(backtick, "backticks", "`repr()`", *edits)
                backtick = None
        elif token.kind == "number":
            digits = token.text.rstrip("lL")
            is_octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit() and int(digits)
            new = f"0o{digits.lstrip('0')}" if is_octal else digits
            if new != token.text:
                yield _syntax(token, f"`{token.text}`", f"`{new}`", Edit(start, end, new))
        elif token.kind == "string" and token.text[:2].lower() == "ur":
            yield _syntax(token, "the prefix `ur`", "`r`", Edit(start, start + 1))
        if token.kind not in ("comment", "join"):
            before = token


def _syntax(token: Token, old: str, new: str, *edits: Edit) -> Repair:
    message = f"{old} is Python 2; write {new}"
    return Repair(SYNTAX, token.start, token.end, message, edits)


def _in_statement(statement: list[Token], text: str) -> Iterator[Repair]:
    first, rest = statement[0], statement[1:]
    if first.kind != "name":
        return
    if first.text == "print":
        edits = _print_edits(first, rest, text)
        if edits:
            message = "`print` is a function in Python 3; write `print(…)`"
            yield Repair(PRINT, first.start, first.end, message, edits)
    elif first.text == "exec" and rest and rest[0].text != "(" and not _is_assigned(rest):
        word = [token for token in rest if token.text == "in"]
        edits = (_open(first, rest), *(_replace(token, rest, ", ", text) for token in word[:1]))
        edits = (*edits, Edit(rest[-1].end, rest[-1].end, ")"))
        yield _syntax(first, "the statement `exec`", "`exec(…)`", *edits)
    elif first.text == "except":
        commas = _top_commas(rest)
        is_name = len(commas) == 1 and commas[0] == len(rest) - 2 and rest[-1].kind == "name"
        # A capitalised name names a class: Python 3.14 then catches both classes.
        if is_name and not rest[-1].text[0].isupper():
            edit = _replace(rest[commas[0]], rest, " as ", text)
            yield _syntax(first, "`except …, name`", "`except … as name`", edit)
    elif first.text == "raise" and (commas := _top_commas(rest)):
        comma = rest[commas[0]]
        end = rest[-1].end
        edits = (_replace(comma, rest, "(", text),)
        if len(commas) == 2:
            edits = (*edits, _replace(rest[commas[1]], rest, ").with_traceback(", text))
        edits = (*edits, Edit(end, end, ")"))
        yield _syntax(first, "`raise …, message`", "`raise …(message)`", *edits)


def _print_edits(first: Token, rest: list[Token], text: str) -> tuple[Edit, ...]:
    if not rest:
        return (Edit(first.end, first.end, "()"),)
    if _is_assigned(rest) or rest[0].text in (".", ",", ")", "]", "in", "is"):
        return ()
    if rest[0].text == "(" and _closing(rest, 0) == len(rest) - 1:
        return ()
    end = rest[-1].end
    if rest[0].text == ">>":
        commas = _top_commas(rest)
        target_end = rest[commas[0] - 1].end if commas else end
        target = text[rest[1].start : target_end]
        if not commas:
            return (Edit(first.end, end, f"(file={target})"),)
        values = rest[commas[0] + 1].start
        if rest[-1].text == ",":
            return (
                Edit(first.end, values, "("),
                Edit(rest[-1].start, end, f', end=" ", file={target})'),
            )
        return Edit(first.end, values, "("), Edit(end, end, f", file={target})")
    if rest[-1].text == ",":
        return _open(first, rest), Edit(rest[-1].start, end, ', end=" ")')
    return _open(first, rest), Edit(end, end, ")")


def _open(first: Token, rest: list[Token]) -> Edit:
    """Replace the space between a keyword and what follows with a bracket."""
    return Edit(first.end, rest[0].start, "(")


def _replace(token: Token, rest: list[Token], new: str, text: str) -> Edit:
    """Replace a token and the space around it."""
    end = token.end
    while end < rest[-1].end and text[end] in " \t":
        end += 1
    start = token.start
    while text[start - 1] in " \t":
        start -= 1
    return Edit(start, end, new)


def _is_assigned(rest: list[Token]) -> bool:
    return rest[0].kind == "operator" and rest[0].text.endswith("=")


def _closing(tokens: list[Token], opening: int) -> int:
    depth = 0
    for index in range(opening, len(tokens)):
        if tokens[index].text in _BRACKETS:
            depth += 1
        elif tokens[index].text in _BRACKETS.values():
            depth -= 1
            if depth == 0:
                return index
    return -1


def _top_commas(tokens: list[Token]) -> list[int]:
    depth, found = 0, []
    for index, token in enumerate(tokens):
        if token.text in _BRACKETS:
            depth += 1
        elif token.text in _BRACKETS.values():
            depth -= 1
        elif token.text == "," and depth == 0:
            found.append(index)
    return found
