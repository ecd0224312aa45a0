"""What the ranks of a group exchange while they save or load."""

from __future__ import annotations

import json
from typing import Any

from ..errors import OtherRankError, RankMismatchError, RankWaitError
from ..processes.group.board import Board, board_of
from ..processes.group.caller_place import place_of_caller
from ..processes.group.membership import join_group
from ..processes.time_limit import limit_or_default

# The kind under which each rank counts its calls.
_CALLS = "checkpoint call"


class Ranks:
    """The ranks that save or load together; there may be one, without a group.

    Attributes:
        rank: the rank of this process.
        count: the number of ranks.
        number: the number of this object, the same on every rank: all ranks make these objects in
            the same order.
        timeout_seconds: how long this rank waits for others.

    Args:
        what: the call, such as ``"anyrig.save()"``, for errors.
        timeout_seconds: how long to wait for other ranks; None for the launcher's limit.
    """

    def __init__(self, what: str, timeout_seconds: float | None) -> None:
        group = join_group()
        self._what = what
        self._steps = 0
        self._out_of_step: RankMismatchError | None = None
        self._board: Board | None = None if group is None else board_of(group)
        self.number = 0 if self._board is None else self._board.number(_CALLS)
        self._place = place_of_caller()
        self.timeout_seconds = limit_or_default(timeout_seconds)
        self.rank, self.count = (0, 1) if group is None else (group.rank, group.world_size)

    def agree(
        self, facts: dict[str, Any], error: BaseException | None, text: str = ""
    ) -> list[str]:
        """Wait until every rank has made this call; raise on every rank if any rank has an error.

        Args:
            facts: must be the same on every rank, such as the path.
            error: the error of this rank, or None.
            text: a text for the other ranks.

        Returns:
            The texts of all ranks, in order of ranks.

        Raises:
            BaseException: `error`, on the rank that has one.
            OtherRankError: another rank has an error.
            RankMismatchError: the ranks have different facts, or are in different calls.
            RankWaitError: a rank did not arrive in time; the message names the rank.
        """
        own: dict[str, Any] = {"facts": facts, "problem": describe_problem(error), "text": text}
        # Some errors follow from another rank's error, and that error is the one to report.
        own["follows"] = isinstance(error, (OtherRankError, RankWaitError))
        try:
            of_ranks = self._exchange(own)
        except (RankWaitError, RankMismatchError):
            if error is not None:
                raise error from None
            raise
        if error is not None:
            raise error
        failed = [(rank, other) for rank, other in enumerate(of_ranks) if other["problem"]]
        for rank, other in sorted(failed, key=lambda each: bool(each[1]["follows"])):
            raise self.failure_of(rank, other["problem"])
        for rank, other in enumerate(of_ranks):
            for name, value in other["facts"].items():
                expected = of_ranks[0]["facts"].get(name)
                if value != expected:
                    raise RankMismatchError(
                        f"rank 0 calls {self._what} with {name} {expected!r}, rank {rank} with "
                        f"{value!r}; pass the same on every rank"
                    )
        return [other["text"] for other in of_ranks]

    def gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in order of ranks.

        Raises:
            RankMismatchError: the ranks are in different calls.
            RankWaitError: a rank did not arrive in time; the message names the rank.
        """
        texts: list[str] = self._exchange(text)
        return texts

    def failure_of(self, rank: int, problem: str) -> OtherRankError:
        """Return the error for the problem of another rank."""
        return OtherRankError(f"rank {rank} failed in {self._what}: {problem}")

    def post(self, key: str, value: Any) -> None:
        """Write a value for `collect` on another rank. Any thread may call this."""
        assert self._board is not None
        self._board.post(f"checkpoint/{key}/{self.rank}", json.dumps(value).encode())

    def collect(self, key: str, rank: int) -> Any:
        """Return the value that another rank posts, and remove it. Any thread may call this.

        Raises:
            RankWaitError: the rank did not post in time; the message names the rank.
        """
        assert self._board is not None
        posted = self._board.collect(
            f"checkpoint/{key}/{rank}", 1, self.timeout_seconds, self._what, rank, self._place
        )
        return json.loads(posted)

    def look(self, key: str) -> dict[int, Any]:
        """Return what each rank has posted so far, by rank, and remove nothing."""
        if self._board is None:
            return {}
        found = self._board.look([f"checkpoint/{key}/{rank}" for rank in range(self.count)])
        return {rank: json.loads(each) for rank, each in enumerate(found) if each is not None}

    def _exchange(self, value: Any) -> list[Any]:
        if self._board is None:
            return [value]
        if self._out_of_step is not None:
            raise self._out_of_step
        self._steps += 1
        message = json.dumps([self._what, self.number, self._steps, value]).encode()
        posted = self._board.exchange("checkpoint", message, self.timeout_seconds, self._what)
        told = [json.loads(text) for text in posted]
        self._require_same_step([(what, number, step) for what, number, step, _ in told])
        return [value for *_, value in told]

    def _require_same_step(self, places: list[tuple[str, int, int]]) -> None:
        """Raise if the ranks are in different calls, for example after a call of one rank alone.

        All ranks raise, and give their next calls the same number, so that they are in step again.
        """
        other = next((rank for rank, place in enumerate(places) if place != places[0]), None)
        if other is None:
            return
        assert self._board is not None
        self._board.advance(_CALLS, max(number for _, number, _ in places))
        here, there = (
            f"{what}, call {number} of a checkpoint, step {step}"
            for what, number, step in (places[0], places[other])
        )
        self._out_of_step = RankMismatchError(
            f"the ranks are out of step: rank 0 is in {here}; rank {other} in {there}. An earlier "
            "call timed out or failed on some of the ranks only. This call has done nothing; "
            "repeat it on every rank"
        )
        raise self._out_of_step


def describe_problem(error: BaseException | None) -> str | None:
    """Return an error as text for other ranks; None without an error."""
    return None if error is None else f"{type(error).__name__}: {error}"
