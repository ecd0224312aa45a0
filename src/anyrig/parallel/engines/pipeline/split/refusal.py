"""Why a part of a module cannot be divided, and where in the user's code."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from .... import torch_versions

_HERE = str(Path(__file__).parent)
# Prefixes of the files whose frames do not belong to the recorded module.
_NOT_OF_CALLER = (_HERE, torch_versions.__file__, str(Path(torch.__file__).parent), "<")


@dataclass(frozen=True)
class Place:
    """A line of code; line 0 if unknown."""

    file: str
    line: int

    def __str__(self) -> str:
        if not self.line:
            return "unknown code"
        text = linecache.getline(self.file, self.line).strip()
        return f'{self.file}, line {self.line}: "{text}"'


class CannotTraceError(Exception):
    """The operations of a module depend on values that are known during a call only.

    Attributes:
        place: the line of the user's code; None takes it from the traceback.
    """

    def __init__(self, message: str, place: Place | None = None) -> None:
        super().__init__(message)
        self.place = place


def is_of_caller(file: str) -> bool:
    """Return whether a file belongs neither to PyTorch nor to this package."""
    return not file.startswith(_NOT_OF_CALLER)


def is_of_this_package(frame: FrameType) -> bool:
    """Return whether a frame runs code of this package."""
    return frame.f_code.co_filename.startswith(_HERE)


def find_caller(frame: FrameType | None = None) -> Place:
    """Return the innermost line of the caller's code: outside PyTorch and this package.

    Args:
        frame: where to begin; the frame of the call of this function if None.
    """
    frame = frame or sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_of_caller(file):
            return Place(file, frame.f_lineno)
        frame = frame.f_back
    return Place("", 0)


def explain_failure(error: BaseException) -> str:
    """Return what stopped the tracing of a module, and where."""
    place = error.place if isinstance(error, CannotTraceError) else None
    trace = error.__traceback__
    if place is None:
        place = Place("", 0)
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if is_of_caller(file):
                place = Place(file, trace.tb_lineno)
            trace = trace.tb_next
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if not isinstance(error, CannotTraceError):
        text = f"an operation does not work on values that are not known yet ({text})"
    return f"{text}, in {place}"
