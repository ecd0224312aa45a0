"""Whether this PyTorch has the private names that anyrig uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ...private_names import (
    ROOMS,
    MissingNames,
    is_newer_than_tested,
    missing_in_room,
    range_for_pip,
)
from .finding import Finding, Level, doubtful, good

_CHECK = "PyTorch"

# No run starts without the names of these rooms. A program may do without the other rooms.
_USED_BY_EVERY_RUN = ("processes",)


@lru_cache(maxsize=1)
def survey_names() -> tuple[MissingNames, ...]:
    """Look for the private names of every room."""
    return tuple(missing_in_room(room) for room in ROOMS)


def check_torch_names(rooms: Sequence[MissingNames]) -> Iterator[Finding]:
    """Yield a finding for each room that misses names, or one finding if none does."""
    import torch

    version = str(torch.__version__)
    advice = f"install a tested version: pip install '{range_for_pip()}'"
    lacking = [room for room in rooms if room.missing]
    for room in lacking:
        level = Level.BAD if room.room in _USED_BY_EVERY_RUN else Level.DOUBTFUL
        names = "; ".join(f"{one.name}, for {one.breaks}" for one in room.missing)
        text = (
            f"{version} does not have {len(room.missing)} of the {room.used} private names that "
            f"anyrig.{room.room} uses: {names}"
        )
        yield Finding(_CHECK, level, text, advice)
    if lacking:
        return
    text = f"{version} has the {sum(room.used for room in rooms)} private names that anyrig uses"
    if is_newer_than_tested():
        yield doubtful(_CHECK, f"{text}, but is newer than the tested versions", advice)
    else:
        yield good(_CHECK, text)
