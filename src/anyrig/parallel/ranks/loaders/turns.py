"""The ranks' positions in one distributed loader, exchanged through the store of their group.

The shares, which are the same on every rank, decide who has which samples of a global batch. Each
rank posts how many batches it has drawn: one message per batch, without an answer. A rank with
batches left asks nothing. A rank without batches asks before each step, while the others compute::

    rank 0   has 0   has 1   has 2   ended at 3 ─────────── asks: all ended at 3 or before ─ stops
    rank 1   has 0   ended at 1 ─ asks: rank 0 has 1, 2 ─── asks: all ended at 3 or before ─ stops
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ....processes.group.board import Board
from ....processes.group.caller_place import place_of_caller
from ...engines.exact.logical_shards import indices_of_rank
from ...shares.shares import Shares
from ..balance import Balance

_ALONE = Shares((1.0,), "there is one rank")


class Progress(NamedTuple):
    """How many batches one rank has drawn in an iteration, and in the iteration before."""

    iteration: int = -1
    drawn: int = 0
    ended: bool = True
    before: int = 0

    def has(self, iteration: int, index: int) -> bool | None:
        """Return whether the rank had batch `index` of `iteration`; None if that is unknown yet."""
        if self.iteration == iteration:
            return True if self.drawn > index else False if self.ended else None
        if self.iteration == iteration + 1:
            return self.before > index
        return False if self.iteration > iteration else None


@dataclass
class Turns:
    """This rank's position in one loader."""

    name: str = "loader"  # unique in the group
    rank: int = 0
    board: Board | None = None  # None in a process that is the only rank
    balance: Balance | None = None  # None for a single rank, or if `divided`
    singles: bool = True  # whether a rank may have one sample of several
    divided: bool = False  # whether each rank's loader yields that rank's own batches
    longest: int | None = None  # the length of the longest loader; None if one has no length
    timeout_seconds: float = 600.0
    # The number of this rank's part of a global batch; the ranks of one pipeline have the same
    # part. None means the rank's own number.
    shared_part: int | None = None
    logical_shards: int | None = None  # into which each global batch is divided
    # How many samples each rank had in each batch of this iteration.
    samples_of_batches: list[tuple[int, ...]] = field(default_factory=list, init=False)
    _progress: Progress = field(default=Progress(), init=False)

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return 1 if self.board is None else self.board.group.world_size

    @property
    def part(self) -> int:
        """The number of this rank's part of a global batch."""
        return self.rank if self.shared_part is None else self.shared_part

    @property
    def shares(self) -> Shares | None:
        """The current shares of the ranks; None if `divided`."""
        if self.balance is None:
            return None if self.divided else _ALONE
        return self.balance.shares

    def begin(self, epoch: int, *parts: Any) -> None:
        """Begin the next iteration, and call ``set_epoch(epoch)`` of each part that has it."""
        if self.balance is not None:
            self.balance.begin()
        for part in parts:
            set_epoch = getattr(part, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
        self.samples_of_batches = []
        self._progress = Progress(self._progress.iteration + 1, 0, False, self._progress.drawn)

    def divide(self, index: int, count: int) -> tuple[int, ...]:
        """Return how many of the `count` samples of global batch `index` each rank gets."""
        if self.balance is None:
            return (count,)
        shares = self.balance.draw((self.name, self._progress.iteration, index))
        return split_samples(shares, count, self.singles)

    def own(self, samples: Sequence[Any], counts: tuple[int, ...]) -> list[Any]:
        """Return this rank's samples of a global batch, of which each rank has `counts`."""
        if self.logical_shards is None:
            return list(samples[part_of_rank(counts, self.part)])
        shards = self.logical_shards
        return [samples[i] for i in indices_of_rank(len(samples), shards, self.rank, self.ranks)]

    def use(self, counts: tuple[int, ...]) -> None:
        """Note that the loader yields a batch of which each rank has `counts` samples."""
        self.samples_of_batches.append(counts)
        if self.balance is not None:
            self.balance.use()

    def first_of_rank_0(self, first: bytes) -> bytes:
        """Return the first batch of rank 0, as bytes; `first` is this rank's.

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

    def note(self, drawn: int = 0, ended: bool = False) -> None:
        """Post that this rank has drawn `drawn` more batches, and whether its loader has ended."""
        self._progress = self._progress._replace(drawn=self._progress.drawn + drawn, ended=ended)
        if self.board is not None:
            self.board.post(self._key(self.rank), json.dumps(self._progress).encode())

    def other_rank_has(self, index: int) -> bool:
        """Return whether another rank has batch `index`; wait until that is known.

        Raise RankWaitError, which names a rank that neither drew the batch nor ended in time.
        """
        if self.board is None:
            return False
        board = self.board
        others = [rank for rank in range(board.group.world_size) if rank != self.rank]
        known: dict[int, bool | None] = {}

        def is_known() -> bool:
            texts = board.look([self._key(other) for other in others])
            for other, text in zip(others, texts, strict=True):
                progress = Progress(*json.loads(text)) if text else Progress()
                known[other] = progress.has(self._progress.iteration, index)
            return True in known.values() or None not in known.values()

        board.wait_until(
            is_known,
            lambda: [other for other, has in known.items() if has is None],
            self.timeout_seconds,
            "the next batch of a distributed loader, having none of its own,",
            place_of_caller(),
        )
        return True in known.values()

    def _key(self, rank: int) -> str:
        return f"{self.name}/progress/{rank}"


def split_samples(shares: Shares, count: int, singles: bool = True) -> tuple[int, ...]:
    """Return how many of `count` samples each rank gets; the sum is `count`.

    ::

        10, even      4 ranks   3 3 2 2       8 ranks   2 2 1 1 1 1 1 1
        10, 3 : 1     2 ranks   8 2           3, even, 4 ranks   1 1 1 0

    Unlike `Shares.split`, this function divides equal shares into counts that differ by one at
    most. `Shares.split` fills the first devices, as torch.chunk does, but a rank without samples
    would compute, too. Without `singles`, no rank gets one sample of several.
    """
    ranks = len(shares.weights)
    if len(set(shares.weights)) == 1 and not shares.sample_limits:
        each, left = divmod(count, ranks)
        counts = tuple(each + (rank < left) for rank in range(ranks))
    else:
        counts = shares.split(count)
    return counts if singles else shares.join_singles(counts)


def part_of_rank(counts: tuple[int, ...], rank: int) -> slice:
    """Return which samples of a global batch `rank` has; the parts of the ranks are in order."""
    start = sum(counts[:rank])
    return slice(start, start + counts[rank])
