"""The exception that ended a group of ranks, from the launcher's account."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..processes.launcher import GroupResult
    from ..rehearsal.facts import ProgramError


def error_of_group(result: GroupResult) -> ProgramError | None:
    """Return the exception of the rank that caused a group's failure; None if there was none."""
    from ..rehearsal.facts import ProgramError

    first = None if result.failure is None else result.failure.first
    if first is None or first.traceback is None or first.last_error is None:
        return None
    kind, _, text = first.last_error.partition(": ")
    place = first.place
    line = None if place is None else Path(place.partition(" in ")[0]).name
    return ProgramError(kind.rpartition(".")[2], text, line)
