"""Which iteration over a distributed loader this is, and whose shares its batches have."""

from __future__ import annotations

from ..shares.shares import Shares
from .balance import Balance


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

    @property
    def shares(self) -> Shares:
        """Those agreed on last."""
        return ALONE if self._balance is None else self._balance.shares

    def begin(self) -> None:
        """Begin the next iteration."""
        self.iteration += 1
        if self._balance is not None:
            self._balance.begin()

    def draw(self) -> Shares:
        """Return the shares of the global batch that is being drawn."""
        return ALONE if self._balance is None else self._balance.draw()

    def use(self) -> None:
        """Note that a batch is handed out."""
        if self._balance is not None:
            self._balance.use()


ALONE = Shares((1.0,), "there is one rank")
