"""The line of the program that is running, as a place of a hazard."""

from __future__ import annotations

from ..observe.source_line import current_line
from .hazard import Place


def place_here(role: str) -> Place:
    """Return the innermost running line outside PyTorch and anyrig, with its role in a hazard."""
    line = current_line()
    return Place(role, None) if line is None else Place(role, line.file, line.number)
