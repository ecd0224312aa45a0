"""The global batches of one distributed loader: how far this rank is, and who has which rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...shares.shares import Shares
from ..balance import Balance
from ..board import Board, place_of_caller

ALONE = Shares((1.0,), "there is one rank")


@dataclass
class Turns:
    """What one rank knows of one loader.

    Attributes:
        name: of the loader among those of the group.
        rank: this one.
        board: of the ranks; None where there is one.
        balance: of the ranks; None where there is one, or where the loader came divided.
        singles: whether a rank may have a single sample of several.
        divided: whether the loader came divided.
        timeout_seconds: how long to wait for other ranks.
        iteration: its index; -1 before the first.
    """

    name: str = "loader"
    rank: int = 0
    board: Board | None = None
    balance: Balance | None = None
    singles: bool = True
    divided: bool = False
    timeout_seconds: float = 600.0
    iteration: int = field(default=-1, init=False)

    @property
    def shares(self) -> Shares | None:
        """Those agreed on last; None where the loader came divided."""
        if self.divided:
            return None
        return ALONE if self.balance is None else self.balance.shares

    def begin(self, epoch: int, *informed: Any) -> None:
        """Begin the next iteration, and tell the epoch to whatever has `set_epoch`."""
        self.iteration += 1
        if self.balance is not None:
            self.balance.begin()
        for each in informed:
            set_epoch = getattr(each, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)

    def divide(self, index: int, rows: int) -> tuple[int, ...]:
        """Return how many rows each rank has of global batch `index`, which is being drawn."""
        if self.balance is None:
            return (rows,)
        shares = self.balance.draw((self.name, self.iteration, index))
        return rows_of_ranks(shares, rows, self.singles)

    def use(self) -> None:
        """Note that a batch is handed out."""
        if self.balance is not None:
            self.balance.use()

    def compare_first(self, first: bytes) -> bytes | None:
        """Return what rank 0 begins this iteration with if that is not `first`, else None.

        Every rank calls this once in each iteration, and waits for rank 0 only.

        Args:
            first: what tells this rank's first global batch from others.

        Raises:
            RankWaitError: rank 0 did not begin the iteration in time.
        """
        if self.board is None:
            return None
        key = f"{self.name}/first/{self.iteration}"
        if self.rank == 0:
            self.board.post(key, first)
            return None
        readers = self.board.group.world_size - 1
        what, place = "the first batch of a distributed loader", place_of_caller()
        of_first_rank = self.board.collect(key, readers, self.timeout_seconds, what, 0, place)
        return None if of_first_rank == first else of_first_rank


def rows_of_ranks(shares: Shares, rows: int, singles: bool = True) -> tuple[int, ...]:
    """Return how many of `rows` each rank gets; they sum to `rows`.

    ::

        10 rows, even      4 ranks   3 3 2 2       8 ranks   2 2 1 1 1 1 1 1
        10 rows, 3 : 1     2 ranks   8 2           3 rows, even, 4 ranks   1 1 1 0

    Even shares differ by one row at most, where `Shares.split` does as torch.chunk does and lets
    the last ones go without: a rank without rows has to be waited for all the same. Others are
    those of `Shares.split`. Without `singles`, no rank has one row of several.
    """
    ranks = len(shares.weights)
    if len(set(shares.weights)) == 1 and not shares.row_limits:
        each, left = divmod(rows, ranks)
        counts = tuple(each + (rank < left) for rank in range(ranks))
    else:
        counts = shares.split(rows)
    return counts if singles else shares.join_singles(counts)


def part_of_rank(rows: tuple[int, ...], rank: int) -> slice:
    """Return which rows of a global batch are those of `rank`: one after another, in order."""
    start = sum(rows[:rank])
    return slice(start, start + rows[rank])
