"""Find the line of the program that is running."""

from __future__ import annotations

import linecache
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

import torch

# Prefixes of the names of files that are not part of the program.
LIBRARIES = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),
    threading.__file__,  # the outermost frames of every thread
)


@dataclass(frozen=True)
class SourceLine:
    """A line of a program."""

    file: str
    number: int
    function: str

    @property
    def text(self) -> str:
        """The line's text without indentation; empty if the source cannot be read."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.number} in {self.function}"


@cache
def is_library_code(code: CodeType) -> bool:
    """Return whether code is part of PyTorch, anyrig or `threading`, or was generated."""
    return code.co_filename.startswith(LIBRARIES) or code.co_filename.startswith("<")


def current_line(frame: FrameType | None = None) -> SourceLine | None:
    """Return the innermost running line outside PyTorch and anyrig, or None.

    The C++ thread of a backward pass on a GPU runs no such line.
    """
    frame = frame or sys._getframe(1)
    while frame is not None and is_library_code(frame.f_code):
        frame = frame.f_back
    if frame is None:
        return None
    return SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
