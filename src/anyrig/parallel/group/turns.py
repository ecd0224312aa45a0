"""Which iteration over a distributed loader this is, and whose shares its batches have."""

from __future__ import annotations

from ..shares.shares import Shares
from .balance import Balance
from .schedule import Schedule


class Turns:
    """Counts the iterations over one loader on one rank.

    Attributes:
        name: of the loader among those of the group.
        iteration: the how-manieth, from zero; -1 before the first.
    """

    def __init__(self, name: str, balance: Balance | None) -> None:
        self.name = name
        self.iteration = -1
        self._balance = balance
        self._schedule = Schedule([((0, 0), ALONE)]) if balance is None else balance.add_schedule()

    @property
    def shares(self) -> Shares:
        """Those agreed on last."""
        return self._schedule.shares

    def begin(self, skip_batches: int) -> None:
        """Begin the next iteration, at a global batch of it."""
        self.iteration += 1
        self._schedule.begin((self.iteration, skip_batches))

    def share_of(self, index: int) -> Shares:
        """Return the shares of global batch `index` of this iteration, which is being drawn."""
        return self._schedule.draw((self.iteration, index))

    def use(self) -> None:
        """Note that a batch is handed out."""
        if self._balance is not None:
            self._balance.use(self._schedule)


ALONE = Shares((1.0,), "there is one rank")
