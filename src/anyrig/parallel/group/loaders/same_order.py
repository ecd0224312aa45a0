"""Whether the loaders of all ranks begin alike."""

from __future__ import annotations

from ..board import Board, place_of_caller


class SameOrder:
    """Compares the beginning of an iteration with rank 0's; ranks wait for rank 0 only."""

    def __init__(self, board: Board, name: str, timeout_seconds: float) -> None:
        self._board = board
        self._name = name
        self._timeout_seconds = timeout_seconds

    def compare(self, iteration: int, first: bytes) -> bytes | None:
        """Return what rank 0 begins with if that is not `first`, else None.

        Every rank calls this once in each iteration.

        Args:
            iteration: its index.
            first: what tells this rank's first global batch from others.

        Raises:
            RankWaitError: rank 0 did not begin the iteration in time.
        """
        group, key = self._board.group, f"{self._name}/first/{iteration}"
        if group.rank == 0:
            self._board.post(key, first)
            return None
        what, place = "the first batch of a distributed loader", place_of_caller()
        of_first_rank = self._board.collect(
            key, group.world_size - 1, self._timeout_seconds, what, 0, place
        )
        return None if of_first_rank == first else of_first_rank
