"""Which shares hold for which global batch of a loader, on every rank the same.

::

    batches drawn ahead by workers       │ agreed here: from 14 on, 2 : 1
    handed out 11 │ 12 13 │ 14 15 16 …
         1 : 1      1 : 1 │ 2 : 1
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..shares.shares import Shares

# The how-manieth iteration over the loader, and the how-manieth global batch of it, both from zero.
Position = tuple[int, int]


@dataclass
class Schedule:
    """The shares of one loader.

    Attributes:
        changes: from which global batch on which shares hold; the first from the beginning.
        next: the global batch that this rank draws next.
    """

    changes: list[tuple[Position, Shares]]
    next: Position = (0, 0)
    _used: int = field(default=0)

    @property
    def shares(self) -> Shares:
        """Those agreed on last."""
        return self.changes[-1][1]

    def begin(self, position: Position) -> None:
        """Note that an iteration begins, and where."""
        self.next = position
        self._used = position[1]

    def draw(self, position: Position) -> Shares:
        """Return the shares of a global batch that is being drawn."""
        self.next = (position[0], position[1] + 1)
        while len(self.changes) > 1 and self.changes[1][0] <= position:
            del self.changes[0]
        return self.changes[0][1]

    def change(self, position: Position, shares: Shares) -> None:
        """Let other shares hold from `position` on, which no rank has drawn yet."""
        self.changes.append((position, shares))

    def report(self) -> None:
        """Note that a batch has been used."""
        self._used += 1

    @property
    def ahead(self) -> int:
        """How many batches were drawn and not used yet, as far as can be told."""
        return max(0, self.next[1] - self._used)
