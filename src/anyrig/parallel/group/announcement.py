"""What a rank is about to do together with the others, as the numbers that it sends to them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class Phase(IntEnum):
    """Where in a step ranks meet."""

    FORWARD = 1
    BACKWARD = 2


class Announcement(NamedTuple):
    """A point of the program at which all ranks meet, and what the rank has there.

    Attributes:
        takes_part: 0 for a rank that has left, as `join` has it; all else is 0 then.
        rows: of this rank.
        phase: of the step; see `Phase`.
        model: the number of the spread model, in the order in which the ranks made them.
        forward: which of the model's forwards it is or belongs to, of those in which ranks meet;
            0 for one in which they do not.
        learns: whether gradients are enabled.
        with_loss: whether the forward computes a loss.
        reduces: whether its backward reduces gradients.
        is_armed: see `Exchange`.
    """

    takes_part: int = 0
    rows: int = 0
    phase: int = 0
    model: int = 0
    forward: int = 0
    learns: int = 0
    with_loss: int = 0
    reduces: int = 0
    is_armed: int = 0

    @property
    def point(self) -> tuple[int, ...]:
        """The point of the program, as numbers."""
        return self.phase, self.model, self.forward, self.learns

    def __str__(self) -> str:
        """Return the point of the program."""
        which = f"forward {self.forward}" if self.forward else "a forward"
        without = "" if self.learns else " without gradients"
        what = which if self.phase == Phase.FORWARD else f"the backward pass of {which}"
        return f"{what}{without} of spread model {self.model}"


def describe_mismatch(announced: Sequence[Announcement]) -> str | None:
    """Return what the ranks announced where they are not at the same point; else None.

    Args:
        announced: by each rank.
    """
    if len({each.point for each in announced if each.takes_part}) < 2:
        return None
    ranks: dict[str, list[str]] = {}
    for rank, each in enumerate(announced):
        if each.takes_part:
            ranks.setdefault(str(each), []).append(str(rank))
    return ", while ".join(
        f"rank{'s' if len(those) > 1 else ''} {', '.join(those)} came to {point}"
        for point, those in ranks.items()
    )
