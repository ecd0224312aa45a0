"""What the ranks of a group tell each other while they save or load."""

from __future__ import annotations

import json
from typing import Any

from ..errors import OtherRankError, RankMismatchError
from ..processes.group.board import Board, board_of
from ..processes.group.membership import join_group
from ..processes.time_limit import limit_or_default


class Ranks:
    """The ranks that save or load together; there may be one, without a group.

    Attributes:
        rank: of this process.
        count: of ranks.
        timeout_seconds: how long this rank waits for others.

    Args:
        what: the call, such as ``"anyrig.save()"``, for errors.
        timeout_seconds: how long to wait for other ranks; None for the launcher's limit.
    """

    def __init__(self, what: str, timeout_seconds: float | None) -> None:
        group = join_group()
        self._what = what
        self._board: Board | None = None if group is None else board_of(group)
        self.timeout_seconds = limit_or_default(timeout_seconds)
        self.rank, self.count = (0, 1) if group is None else (group.rank, group.world_size)

    def agree(self, facts: dict[str, Any], error: BaseException | None) -> None:
        """Wait until every rank has come here; raise on every rank if one of them has an error.

        Args:
            facts: must be the same on every rank, such as the path.
            error: what this rank has run into.

        Raises:
            BaseException: `error`, on the rank that has one.
            OtherRankError: another rank has an error.
            RankMismatchError: the ranks have different facts.
            RankWaitError: a rank did not come in time; the message names the rank.
        """
        problem = None if error is None else f"{type(error).__name__}: {error}"
        of_ranks = self._exchange({"facts": facts, "problem": problem})
        if error is not None:
            raise error
        for rank, other in enumerate(of_ranks):
            if other["problem"] is not None:
                raise OtherRankError(f"rank {rank} failed in {self._what}: {other['problem']}")
        for rank, other in enumerate(of_ranks):
            for name, value in other["facts"].items():
                expected = of_ranks[0]["facts"].get(name)
                if value != expected:
                    raise RankMismatchError(
                        f"rank 0 calls {self._what} with {name} {expected!r}, rank {rank} with "
                        f"{value!r}; pass the same on every rank"
                    )

    def gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in order of ranks."""
        texts: list[str] = self._exchange(text)
        return texts

    def _exchange(self, value: Any) -> list[Any]:
        if self._board is None:
            return [value]
        texts = self._board.exchange(
            "checkpoint", json.dumps(value).encode(), self.timeout_seconds, self._what
        )
        return [json.loads(text) for text in texts]
