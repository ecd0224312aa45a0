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
from dataclasses import dataclass

from ..board import Board, place_of_caller

_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class Progress:
    """How far one rank has come.

    Attributes:
        iteration: the how-manieth over the loader.
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


class RunningOut:
    """What one rank says and asks about one loader."""

    def __init__(self, board: Board, name: str, timeout_seconds: float) -> None:
        self._board = board
        self._name = name
        self._timeout_seconds = timeout_seconds
        self._mine = Progress(0, 0, True, 0)

    def begin(self, iteration: int) -> None:
        """Note that an iteration begins."""
        self._note(Progress(iteration, 0, False, self._mine.count))

    def drew(self) -> None:
        """Note that this rank has one more batch."""
        mine = self._mine
        self._note(Progress(mine.iteration, mine.count + 1, False, mine.before))

    def ended(self) -> None:
        """Note that this rank has no more."""
        mine = self._mine
        self._note(Progress(mine.iteration, mine.count, True, mine.before))

    def somebody_has(self, index: int) -> bool:
        """Return whether any rank has batch `index`; wait until that is known.

        Raises:
            RankWaitError: a rank neither drew it nor ended in time; the message names it.
        """
        deadline = time.monotonic() + self._timeout_seconds
        others = [r for r in range(self._board.group.world_size) if r != self._board.group.rank]
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            said = self._board.look([f"{self._name}/{other}" for other in others])
            progress = [None if each is None else Progress(*json.loads(each)) for each in said]
            known = [
                None if each is None else each.has(self._mine.iteration, index) for each in progress
            ]
            if any(known):
                return True
            unknown = [other for other, has in zip(others, known, strict=True) if has is None]
            if not unknown:
                return False
            if time.monotonic() > deadline:
                what = "the next batch of a distributed loader, having none of its own,"
                raise self._board.late(unknown, self._timeout_seconds, what, place_of_caller())
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _note(self, progress: Progress) -> None:
        self._mine = progress
        said = [progress.iteration, progress.count, progress.ended, progress.before]
        self._board.post(f"{self._name}/{self._board.group.rank}", json.dumps(said).encode())
