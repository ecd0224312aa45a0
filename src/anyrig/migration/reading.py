"""Read the text of a file as a program, even if only Python 2 parses it."""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from .edit import Edit, apply_edits
from .program import Program
from .python2 import Repair, expand_tabs, find_repairs

# What a file without PyTorch must contain to be worth parsing: traces of Python 2, or the beginning
# of CUDA_VISIBLE_DEVICES.
_TRACES = re.compile(
    r"^[ \t]*(print[ \t]+[^(=\s]|exec[ \t]+[^(=\s]|raise[ \t]+\w+[ \t]*,"
    r"|except\b[^:\n]*,[ \t]*\w+[ \t]*:)"
    r"|\b(xrange|raw_input|iteritems|itervalues|iterkeys)\b|\basync[ \t]*=|CUDA_VIS",
    re.MULTILINE,
)
_IMPORTED = re.compile(r"^[ \t]*from[ \t]+(\w+)[\w.]*[ \t]+import\b", re.MULTILINE)


@dataclass(frozen=True)
class Reading:
    """A text as a program.

    Attributes:
        program: the program, in Python 3.
        repairs: what had to change before the text parsed; empty for Python 3.
        edits: the changes, those of indentation included.
    """

    program: Program
    repairs: tuple[Repair, ...]
    edits: tuple[Edit, ...]

    def original(self, offset: int) -> int:
        """Return where a place in the program's text is in the file's text."""
        starts = self._starts
        index = bisect_right(starts, offset) - 1
        if index < 0:
            return offset
        edit, beyond = self.edits[index], offset - starts[index]
        if beyond < len(edit.text):
            return min(edit.start + beyond, edit.end)
        return edit.end + beyond - len(edit.text)

    @cached_property
    def _starts(self) -> list[int]:
        """Where the text of each edit begins in the program's text."""
        starts, moved = [], 0
        for edit in self.edits:
            starts.append(edit.start + moved)
            moved += len(edit.text) - (edit.end - edit.start)
        return starts


def may_matter(text: str, siblings: frozenset[str] = frozenset()) -> bool:
    """Return quickly whether a text can hold anything that a rule finds.

    Args:
        text: the text.
        siblings: the modules next to a package's ``__init__.py``.
    """
    if "torch" in text or _TRACES.search(text) is not None:
        return True
    return bool(siblings) and any(name in siblings for name in _IMPORTED.findall(text))


def read_program(
    text: str,
    *,
    is_package: bool = False,
    is_old: bool | None = None,
    siblings: frozenset[str] = frozenset(),
) -> Reading:
    """Parse a text, as Python 3 or, failing that, as Python 2.

    Args:
        text: the text.
        is_package: whether it is an ``__init__.py``.
        is_old: whether it was written for PyTorch 0.3 or older; None to decide by the text.
        siblings: the modules next to a package's ``__init__.py``.

    Raises:
        SyntaxError: the text parses as neither; the error is that of Python 3.
    """
    try:
        tree = parse(text)
    except SyntaxError as error:
        repairs = find_repairs(text)
        edits = tuple(sorted({edit for repair in repairs for edit in repair.edits}))
        for more in ((), expand_tabs(text)):
            together = tuple(sorted({*edits, *more}))
            if not together:
                continue
            readable = apply_edits(text, together)
            try:
                tree = parse(readable)
            except SyntaxError:
                continue
            program = Program(readable, tree, is_package=is_package, is_old=True, siblings=siblings)
            return Reading(program, repairs, together)
        raise error
    program = Program(text, tree, is_package=is_package, is_old=is_old, siblings=siblings)
    return Reading(program, (), ())


def parse(text: str) -> ast.Module:
    """Parse a text without its warnings.

    Raises:
        SyntaxError: the text does not parse, or is nested too deeply.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (ValueError, RecursionError, MemoryError) as error:  # null bytes, deep nesting
            raise SyntaxError(str(error) or "too deeply nested") from None
