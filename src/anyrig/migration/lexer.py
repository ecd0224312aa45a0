"""Split the text of Python 2 or Python 3 into tokens, whether or not it parses.

Python's own `tokenize` rejects what only Python 2 allows, in some versions of Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_PREFIX = r"(?:[rR][bBfF]?|[bBfFuU][rR]?)?"
_TOKEN = re.compile(
    rf"""
    (?P<string>{_PREFIX}(?:'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"
        |'(?:[^\\'\r\n]|\\\r\n|\\.)*'|"(?:[^\\"\r\n]|\\\r\n|\\.)*"))
    |(?P<comment>\#[^\r\n]*)
    |(?P<join>\\(?:\r\n|\n|\r))
    |(?P<newline>\r\n|\n|\r)
    |(?P<space>[ \t\f]+)
    |(?P<number>(?:\d|\.\d)(?:[eE][+-]|[\w.])*)
    |(?P<name>[^\W\d]\w*)
    |(?P<operator><>|\*\*=|//=|>>=|<<=|[-+*/%&|^=<>!]=|>>|<<|\*\*|//|->|:=|.)
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A piece of text: its kind, its place, and the text itself.

    Kinds are string, comment, join (a backslash at the end of a line), newline, space, number, name
    and operator.
    """

    kind: str
    start: int
    end: int
    text: str


def split_tokens(text: str, start: int = 0, end: int | None = None) -> Iterator[Token]:
    """Yield the tokens of a text, or of a part of it; together they are the whole part."""
    for match in _TOKEN.finditer(text, start, len(text) if end is None else end):
        yield Token(str(match.lastgroup), match.start(), match.end(), match[0])


def split_statements(tokens: list[Token]) -> Iterator[list[Token]]:
    """Yield the simple statements and the heads of compound ones, each without space around it.

    A statement ends at a newline, a semicolon or a colon outside all brackets.
    """
    depth = 0
    statement: list[Token] = []
    for token in tokens:
        if token.text in ("(", "[", "{"):
            depth += 1
        elif token.text in (")", "]", "}"):
            depth = max(0, depth - 1)
        ends = depth == 0 and (token.kind == "newline" or token.text in (";", ":"))
        if ends:
            if statement:
                yield statement
            statement = []
        elif token.kind not in ("space", "comment", "join", "newline"):
            statement.append(token)
    if statement:
        yield statement
