"""What a rank sends to the others when it reaches a point where all ranks meet."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class Phase(IntEnum):
    """The half of a step in which ranks meet."""

    FORWARD = 1
    BACKWARD = 2


class Announcement(NamedTuple):
    """The state of one rank at a meeting, as numbers that fit into a tensor.

    Attributes:
        takes_part: 0 if the rank's loop in `join` has ended; all other fields are 0 then.
        samples: how many samples the rank has.
        phase: see `Phase`.
        model: the number of the spread model; the ranks create models in the same order.
        forward: the number of the forward among those in which ranks meet; 0 for any other.
        learns: whether gradients are enabled.
        with_loss: whether the forward computes a loss.
        reduces: whether the backward pass of this forward reduces gradients.
        is_armed: see `Exchange`.
    """

    takes_part: int = 0
    samples: int = 0
    phase: int = 0
    model: int = 0
    forward: int = 0
    learns: int = 0
    with_loss: int = 0
    reduces: int = 0
    is_armed: int = 0

    @property
    def point(self) -> tuple[int, ...]:
        """The fields that must be equal on all ranks that take part."""
        return self.phase, self.model, self.forward, self.learns

    def __str__(self) -> str:
        which = f"forward {self.forward}" if self.forward else "a forward"
        without = "" if self.learns else " without gradients"
        what = which if self.phase == Phase.FORWARD else f"the backward pass of {which}"
        return f"{what}{without} of spread model {self.model}"


def describe_mismatch(announced: Sequence[Announcement]) -> str | None:
    """Return which ranks announced which point if these differ; else None.

    Args:
        announced: one announcement for each rank.
    """
    ranks: dict[tuple[int, ...], list[int]] = {}
    for rank, each in enumerate(announced):
        if each.takes_part:
            ranks.setdefault(each.point, []).append(rank)
    if len(ranks) < 2:
        return None
    return ", while ".join(
        f"rank{'s' if len(same) > 1 else ''} {', '.join(map(str, same))} came to "
        f"{announced[same[0]]}"
        for same in ranks.values()
    )
