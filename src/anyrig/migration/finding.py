"""What a rule found, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .edit import Fix


@dataclass(frozen=True)
class Hit:
    """A place in a text that a rule objects to.

    Attributes:
        start: the first character of the place.
        end: the character after its last.
        message: what happens there, and what to do.
        fix: how to rewrite it; None if a person must decide.
    """

    start: int
    end: int
    message: str
    fix: Fix | None = None


@dataclass(frozen=True)
class Finding:
    """A hit of a rule in a file.

    Attributes:
        path: the file.
        code: the rule, such as ``"ARC101"``.
        message: what happens there, and what to do.
        line: the line of its first character, from 1.
        column: the column of its first character, from 1.
        end_line: the line of its end.
        end_column: the column after its last character.
        fix: ``"safe"``, ``"unsafe"``, or None if `anyrig check` cannot rewrite it.
    """

    path: Path
    code: str
    message: str
    line: int
    column: int
    end_line: int
    end_column: int
    fix: str | None
