"""The line of the program that is running, as a place of a hazard."""

from __future__ import annotations

import sys
from types import FrameType

from ...memory.source_line import is_library_code
from .hazard import Place


def place_here(role: str, frame: FrameType | None = None) -> Place:
    """Return the innermost running line outside PyTorch and anyrig.

    Args:
        role: the line's part in a hazard.
        frame: where to begin; None for the caller.
    """
    frame = frame or sys._getframe(1)
    while frame is not None and is_library_code(frame.f_code):
        frame = frame.f_back
    return (
        Place(role, None)
        if frame is None
        else Place(role, frame.f_code.co_filename, frame.f_lineno)
    )
