"""Loaders that end at different times: whether any rank still has a batch.

Each rank notes in the store how many batches it has drawn, one message without an answer for each
batch. Who still has batches asks nothing. Who has none asks before each step, while the others
compute, and takes an empty batch as long as somebody has one.

::

    rank 0   has 0   has 1   has 2   ended at 3 ─────────── asks: all ended at 3 or before ─ stops
    rank 1   has 0   ended at 1 ─ asks: rank 0 has 1, 2 ─── asks: all ended at 3 or before ─ stops
"""

from __future__ import annotations

import json
import time
from typing import NamedTuple

from ..board import place_of_caller
from .turns import Turns

_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.05


class Progress(NamedTuple):
    """How far one rank has come.

    Attributes:
        iteration: the index of the iteration over the loader.
        count: batches drawn in it.
        ended: whether there are no more.
        before: how many it had in the iteration before this one.
    """

    iteration: int
    count: int
    ended: bool
    before: int

    def has(self, iteration: int, index: int) -> bool | None:
        """Return whether it had batch `index` of `iteration`; None if that is not known yet."""
        if self.iteration == iteration:
            return True if self.count > index else False if self.ended else None
        if self.iteration == iteration + 1:
            return self.before > index
        return False if self.iteration > iteration else None


_NOT_BEGUN = Progress(-1, 0, True, 0)


class RunningOut:
    """What one rank says and asks about one loader; alone it has nobody to ask."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._mine = _NOT_BEGUN

    def begin(self) -> None:
        """Note that an iteration begins."""
        self._note(Progress(self._turns.iteration, 0, False, self._mine.count))

    def drew(self) -> None:
        """Note that this rank has one more batch."""
        self._note(self._mine._replace(count=self._mine.count + 1))

    def ended(self) -> None:
        """Note that this rank has no more."""
        self._note(self._mine._replace(ended=True))

    def somebody_has(self, index: int) -> bool:
        """Return whether any other rank has batch `index`; wait until that is known.

        Raises:
            RankWaitError: a rank neither drew it nor ended in time; the message names it.
        """
        board, timeout_seconds = self._turns.board, self._turns.timeout_seconds
        if board is None:
            return False
        deadline = time.monotonic() + timeout_seconds
        others = [rank for rank in range(board.group.world_size) if rank != self._turns.rank]
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            unknown = []
            for other, text in zip(others, board.look(list(map(self._key, others))), strict=True):
                progress = _NOT_BEGUN if text is None else Progress(*json.loads(text))
                has = progress.has(self._mine.iteration, index)
                if has:
                    return True
                if has is None:
                    unknown.append(other)
            if not unknown:
                return False
            if time.monotonic() > deadline:
                what = "the next batch of a distributed loader, having none of its own,"
                raise board.late(unknown, timeout_seconds, what, place_of_caller())
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _note(self, progress: Progress) -> None:
        self._mine = progress
        if self._turns.board is not None:
            self._turns.board.post(self._key(self._turns.rank), json.dumps(progress).encode())

    def _key(self, rank: int) -> str:
        return f"{self._turns.name}/progress/{rank}"
