"""Whether all ranks draw the samples of a loader in one order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....errors import RankMismatchError
from ..board import Board, place_of_caller

_SHOWN = 80


class SameOrder:
    """Compares the first global batch of an iteration with rank 0's; ranks wait for rank 0 only."""

    def __init__(self, board: Board, name: str, timeout_seconds: float) -> None:
        self._board = board
        self._name = name
        self._timeout_seconds = timeout_seconds

    def check(self, iteration: int, first: Sequence[Any]) -> None:
        """Raise RankMismatchError unless rank 0 begins with the same samples."""
        group = self._board.group
        said, key = repr(first).encode(), f"{self._name}/first/{iteration}"
        if group.rank == 0:
            self._board.post(key, said)
            return
        what, place = "the first batch of a distributed loader", place_of_caller()
        heard = self._board.collect(
            key, group.world_size - 1, self._timeout_seconds, what, 0, place
        )
        if heard != said:
            raise RankMismatchError(
                f"the sampler of rank {group.rank} begins with {_shorten(said)}, that of rank 0 "
                f"with {_shorten(heard)}, and all must have one order. anyrig.distribute seeds "
                "PyTorch's, Python's and NumPy's random numbers and a sampler's attribute "
                "`generator`; seed what else this sampler draws from, and give it the same data"
            )


def _shorten(text: bytes) -> str:
    return text.decode() if len(text) < _SHOWN else f"{text[:_SHOWN].decode()} …"
