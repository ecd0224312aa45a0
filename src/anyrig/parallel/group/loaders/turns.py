"""Which iteration over a distributed loader this is, and whose shares its batches have."""

from __future__ import annotations

from ...shares.shares import Shares
from ..balance import Balance
from .division import rows_of_ranks

ALONE = Shares((1.0,), "there is one rank")


class Turns:
    """Counts the iterations over one loader on one rank.

    Args:
        name: of the loader among those of the group.
        balance: of the ranks; None where there is one, or where the loader came divided.
        singles: whether a rank may have a single sample of several.

    Attributes:
        name: see above.
        iteration: its index; -1 before the first.
    """

    def __init__(self, name: str, balance: Balance | None, singles: bool = True) -> None:
        self.name = name
        self.iteration = -1
        self._balance = balance
        self._singles = singles

    @property
    def shares(self) -> Shares:
        """Those agreed on last."""
        return ALONE if self._balance is None else self._balance.shares

    def begin(self) -> None:
        """Begin the next iteration."""
        self.iteration += 1
        if self._balance is not None:
            self._balance.begin()

    def draw(self, index: int) -> Shares:
        """Return the shares of global batch `index` of this iteration, which is being drawn."""
        if self._balance is None:
            return ALONE
        return self._balance.draw((self.name, self.iteration, index))

    def divide(self, index: int, rows: int) -> tuple[int, ...]:
        """Return how many rows each rank has of global batch `index`, which is being drawn."""
        return rows_of_ranks(self.draw(index), rows, self._singles)

    def use(self) -> None:
        """Note that a batch is handed out."""
        if self._balance is not None:
            self._balance.use()
