"""What the ranks of one distributed loader tell each other, by the store in which they met.

Who has which rows of a global batch follows from the shares, on which all agree. Which rank still
has batches is noted: one message without an answer for each batch. Who has batches asks nothing.
Who has none asks before each step, while the others compute::

    rank 0   has 0   has 1   has 2   ended at 3 ─────────── asks: all ended at 3 or before ─ stops
    rank 1   has 0   ended at 1 ─ asks: rank 0 has 1, 2 ─── asks: all ended at 3 or before ─ stops
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...shares.shares import Shares
from ..balance import Balance
from ..board import Board, place_of_caller

_ALONE = Shares((1.0,), "there is one rank")
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.05


class Progress(NamedTuple):
    """How many batches one rank has drawn in an iteration, and in the one before it."""

    iteration: int
    drawn: int
    ended: bool
    before: int

    def has(self, iteration: int, index: int) -> bool | None:
        """Return whether it had batch `index` of `iteration`; None if that is not known yet."""
        if self.iteration == iteration:
            return True if self.drawn > index else False if self.ended else None
        if self.iteration == iteration + 1:
            return self.before > index
        return False if self.iteration > iteration else None


_NOT_BEGUN = Progress(-1, 0, True, 0)


@dataclass
class Turns:
    """How far this rank is in one loader.

    Attributes:
        name: of the loader among those of the group.
        board: of the ranks; None where there is one.
        balance: of the ranks; None where there is one, or where the loader came divided.
        singles: whether a rank may have a single sample of several.
        divided: whether the loader came divided.
        longest: how many batches the rank with most of them has, where the loader came divided.
        rows_of_batches: how many rows each rank had of the batches handed out in this iteration.
    """

    name: str = "loader"
    rank: int = 0
    board: Board | None = None
    balance: Balance | None = None
    singles: bool = True
    divided: bool = False
    longest: int | None = None
    timeout_seconds: float = 600.0
    rows_of_batches: list[tuple[int, ...]] = field(default_factory=list, init=False)
    _progress: Progress = field(default=_NOT_BEGUN, init=False)

    @property
    def shares(self) -> Shares | None:
        """Those agreed on last; None where the loader came divided."""
        if self.balance is None:
            return None if self.divided else _ALONE
        return self.balance.shares

    def begin(self, epoch: int, *informed: Any) -> None:
        """Begin the next iteration, and tell the epoch to whatever has `set_epoch`."""
        if self.balance is not None:
            self.balance.begin()
        for each in informed:
            set_epoch = getattr(each, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
        self.rows_of_batches = []
        self._progress = Progress(self._progress.iteration + 1, 0, False, self._progress.drawn)

    def divide(self, index: int, rows: int) -> tuple[int, ...]:
        """Return how many rows each rank has of global batch `index`, which is being drawn."""
        if self.balance is None:
            return (rows,)
        shares = self.balance.draw((self.name, self._progress.iteration, index))
        return rows_of_ranks(shares, rows, self.singles)

    def use(self) -> None:
        """Note that a batch is handed out."""
        if self.balance is not None:
            self.balance.use()

    def first_of_rank_0(self, first: bytes) -> bytes:
        """Return what rank 0 begins this iteration with, of which `first` is this rank's.

        Every rank calls this once in each iteration, and waits for rank 0 only.
        """
        if self.board is None:
            return first
        key = f"{self.name}/first/{self._progress.iteration}"
        if self.rank == 0:
            self.board.post(key, first)
            return first
        readers = self.board.group.world_size - 1
        what, place = "the first batch of a distributed loader", place_of_caller()
        return self.board.collect(key, readers, self.timeout_seconds, what, 0, place)

    def drew(self) -> None:
        """Note that this rank has one more batch."""
        self._note(self._progress._replace(drawn=self._progress.drawn + 1))

    def ended(self) -> None:
        """Note that this rank has no more."""
        self._note(self._progress._replace(ended=True))

    def somebody_has(self, index: int) -> bool:
        """Return whether any other rank has batch `index`; wait until that is known.

        Raises:
            RankWaitError: a rank neither drew it nor ended in time; the message names it.
        """
        if self.board is None:
            return False
        deadline = time.monotonic() + self.timeout_seconds
        others = [rank for rank in range(self.board.group.world_size) if rank != self.rank]
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            said = self.board.look([self._key(other) for other in others])
            progress = [Progress(*json.loads(text)) if text else _NOT_BEGUN for text in said]
            known = [each.has(self._progress.iteration, index) for each in progress]
            if None not in known or True in known:
                return True in known
            if time.monotonic() > deadline:
                what = "the next batch of a distributed loader, having none of its own,"
                unknown = [other for other, has in zip(others, known, strict=True) if has is None]
                raise self.board.late(unknown, self.timeout_seconds, what, place_of_caller())
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _note(self, progress: Progress) -> None:
        self._progress = progress
        if self.board is not None:
            self.board.post(self._key(self.rank), json.dumps(progress).encode())

    def _key(self, rank: int) -> str:
        return f"{self.name}/progress/{rank}"


def rows_of_ranks(shares: Shares, rows: int, singles: bool = True) -> tuple[int, ...]:
    """Return how many of `rows` each rank gets; they sum to `rows`.

    ::

        10 rows, even      4 ranks   3 3 2 2       8 ranks   2 2 1 1 1 1 1 1
        10 rows, 3 : 1     2 ranks   8 2           3 rows, even, 4 ranks   1 1 1 0

    As `Shares.split`, but even shares differ by one row at most: it fills up the first devices as
    torch.chunk does, and a rank without rows has to be waited for all the same. Without `singles`,
    no rank has one row of several.
    """
    ranks = len(shares.weights)
    if len(set(shares.weights)) == 1 and not shares.sample_limits:
        each, left = divmod(rows, ranks)
        counts = tuple(each + (rank < left) for rank in range(ranks))
    else:
        counts = shares.split(rows)
    return counts if singles else shares.join_singles(counts)


def part_of_rank(rows: tuple[int, ...], rank: int) -> slice:
    """Return which rows of a global batch are those of `rank`: one after another, in order."""
    start = sum(rows[:rank])
    return slice(start, start + rows[rank])
