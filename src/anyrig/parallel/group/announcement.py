"""What a rank is about to do together with the others, as one number that it sends to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

_COUNT_BITS = 40


class Phase(IntEnum):
    """Where in a step ranks meet."""

    FORWARD = 1
    BACKWARD = 2


@dataclass(frozen=True)
class Announcement:
    """A point of the program at which all ranks meet.

    Attributes:
        phase: of the step.
        model: the number of the spread model, in the order in which the ranks made them.
        forward: which of the model's forwards it is or belongs to, of those in which ranks meet;
            0 for one in which they do not.
        learns: whether gradients are enabled.
    """

    phase: Phase
    model: int
    forward: int
    learns: bool

    def encode(self) -> int:
        """Return a positive number."""
        head = (self.model << 2 | self.phase) << 1 | self.learns
        return head << _COUNT_BITS | self.forward

    @classmethod
    def decode(cls, number: int) -> Announcement:
        """Return what `encode` made a number of."""
        head, forward = divmod(number, 1 << _COUNT_BITS)
        return cls(Phase(head >> 1 & 3), head >> 3, forward, bool(head & 1))

    def __str__(self) -> str:
        which = f"forward {self.forward}" if self.forward else "a forward"
        without = "" if self.learns else " without gradients"
        what = which if self.phase is Phase.FORWARD else f"the backward pass of {which}"
        return f"{what}{without} of spread model {self.model}"


def describe_mismatch(numbers: Sequence[int]) -> str | None:
    """Return what the ranks announced where they did not announce the same; else None.

    Args:
        numbers: of each rank, zero for one that announced nothing.
    """
    if len({number for number in numbers if number}) < 2:
        return None
    ranks: dict[int, list[int]] = {}
    for rank, number in enumerate(numbers):
        if number:
            ranks.setdefault(number, []).append(rank)
    return ", while ".join(
        f"rank{'s' if len(those) > 1 else ''} {', '.join(map(str, those))} "
        f"came to {Announcement.decode(number)}"
        for number, those in ranks.items()
    )
