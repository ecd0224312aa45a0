"""Which private names the installed PyTorch does not have, and the refusal of a room without them.

In a tested version, a missing name is a fault of anyrig that its tests find. So each room looks for
its names only in a newer PyTorch, once, where its work begins.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import (
    AnyrigError,
    CheckpointError,
    HazardError,
    LaunchError,
    MemoryTrackingError,
    ReportError,
    SpreadError,
    VerificationError,
    VirtualRigError,
)
from .name import PrivateName
from .rooms import ROOMS
from .versions import is_newer_than_tested, range_for_pip

# The error that each room raises without its names.
_ERRORS: dict[str, type[AnyrigError]] = {
    "checkpoint": CheckpointError,
    "hazards": HazardError,
    "memory": MemoryTrackingError,
    "parallel": SpreadError,
    "processes": LaunchError,
    "rehearsal": ReportError,
    "verification": VerificationError,
    "virtual": VirtualRigError,
}

# A room as messages call it.
_TITLES = {"virtual": "virtual GPUs", "processes": "anyrig run"}
_MOST_NAMED = 3


@dataclass(frozen=True)
class MissingNames:
    """The names of a room: how many it uses, and those that this PyTorch does not have."""

    room: str
    used: int
    missing: tuple[PrivateName, ...]


def find_missing(names: Iterable[PrivateName]) -> list[PrivateName]:
    """Return those of `names` that the installed PyTorch should have, and does not have."""
    return [name for name in names if name.is_expected and not name.exists]


def missing_in_room(room: str) -> MissingNames:
    """Look for all private names that `room` uses in this version and build of PyTorch."""
    expected = [name for name in ROOMS[room] if name.is_expected]
    return MissingNames(room, len(expected), tuple(find_missing(expected)))


def refuse_missing(room: str) -> None:
    """Refuse a PyTorch that is newer than the tested versions and has not all names of `room`.

    Raises:
        AnyrigError: the room's own error, with the missing names and what breaks without them.
    """
    import torch

    version = str(torch.__version__)
    missing = _missing_in_version(room, version) if is_newer_than_tested() else ()
    if missing:
        raise _ERRORS.get(room, AnyrigError)(describe_missing(room, version, missing))


@functools.cache
def _missing_in_version(room: str, version: str) -> tuple[PrivateName, ...]:
    """Look once for each version: only tests have several in a process."""
    return missing_in_room(room).missing


def describe_missing(room: str, version: str, missing: Sequence[PrivateName]) -> str:
    """Return the refusal of `room` in a PyTorch that does not have the names `missing`."""
    named = "; ".join(f"{one.name}, for {one.breaks}" for one in missing[:_MOST_NAMED])
    more = f"; and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return (
        f"{_TITLES.get(room, f'anyrig.{room}')} cannot work with PyTorch {version}, which does not "
        f"have {named}{more}; install a tested version: pip install '{range_for_pip()}'"
    )
