"""How many rows each rank has in one forward: what gradients are weighted by.

::

    rank 0   7 rows ──┐                           ┌──▶ its gradients * 7 * 3 / 15
    rank 1   5 rows ──┼── from each to all ───────┼──▶                 * 5 * 3 / 15
    rank 2   3 rows ──┘                           └──▶                 * 3 * 3 / 15

Then the mean over the ranks, which is what DDP and FSDP2 take, is the mean over the rows.

Ranks meet where they come to the devices' collectives, and say beside the rows what they are about
to do: when a backward pass begins, and before a forward that has collectives of its own. So a
forward that is never followed by a backward may run on one rank alone; and where ranks come to
different collectives, all of them raise before these mix.
"""

from __future__ import annotations

from typing import Any

import torch

from ...errors import RankMismatchError
from .announcement import Announcement, Phase, describe_mismatch
from .board import MEETING, UNEVEN_BATCHES, place_of_caller
from .channel import tell_all
from .host_wait import wait_for_hosts
from .membership import Context
from .step_time import StepTime

_BESIDE = 3  # numbers of a loss, whose bits travel as those of whole numbers


class Exchange:
    """The rows of all ranks in one forward, told over the hosts; nobody waits but who asks.

    Args:
        context: of the group; its carrier takes the numbers.
        model: the number of the spread model.
        rows: of this rank; None if it takes no part any more, as `join` has it.
        with_loss: whether this forward computes a loss; all ranks alike.
        reduces: whether its backward reduces gradients; all ranks alike.
        forward: which forward of the model this is, of those in which ranks meet; else 0.

    Attributes:
        is_armed: whether this rank's engine will reduce the gradients of whichever backward pass
            comes next.
        time: that of this rank's own work, in which waiting does not count.
        beside: what each rank gave to `start`, a row of float64 a rank.
        before: the forwards of spread modules whose outputs this one was given.
        has_mixed_input: whether an input was computed from these and from something else.
        leads_to_global_loss: whether the loss of all ranks was computed from the outputs.
    """

    def __init__(
        self,
        context: Context,
        model: int,
        rows: int | None,
        *,
        with_loss: bool = False,
        reduces: bool = True,
        forward: int = 0,
    ) -> None:
        self.rows = rows
        self.time: StepTime | None = None
        self.before: list[Exchange] = []
        self.has_mixed_input = False
        self.is_armed = False
        self.beside: torch.Tensor | None = None
        self.leads_to_global_loss = False
        self._context = context
        self._model = model
        self._forward = forward
        self._with_loss, self._reduces = with_loss, reduces
        self._number = 0
        self._own = Announcement()
        self._numbers: torch.Tensor | None = None
        self._work: Any = None
        self._told: list[Announcement] | None = None

    def start(self, phase: Phase, learns: bool = True, beside: torch.Tensor | None = None) -> None:
        """Say to the other ranks that this one has come so far.

        Args:
            phase: how far.
            learns: whether gradients are enabled.
            beside: three numbers in float64 on the CPU, which all ranks get from each.
        """
        context = self._context
        point = (phase, self._model, self._forward, learns)
        flags = (self._with_loss, self._reduces, self.is_armed)
        self._own = Announcement(self.rows is not None, self.rows or 0, *point, *flags)
        context.counts[MEETING] += 1
        self._number = context.counts[MEETING]
        sent = Announcement() if self.rows is None else self._own
        numbers = torch.tensor([*sent, *[0] * _BESIDE], dtype=torch.int64, device="cpu")
        if beside is not None:
            numbers[-_BESIDE:] = beside.view(torch.int64)
        self._numbers, self._work = tell_all(numbers, context.carrier)

    def finish(self) -> None:
        """Wait for the other ranks to come as far.

        Raises:
            RankWaitError: some rank did not come in time; the message names it.
            RankMismatchError: the ranks came to different calls.
        """
        if self._work is None:
            return
        assert self._numbers is not None
        if self.time is not None:
            self.time.toggle()
        wait_for_hosts(self._work, str(self._own), self._number)
        if self.time is not None:
            self.time.toggle()
        self._told = [Announcement(*row) for row in self._numbers[:, :-_BESIDE].tolist()]
        self.beside = self._numbers[:, -_BESIDE:].contiguous().view(torch.float64)
        self._work = None
        mismatch = describe_mismatch(self._told)
        if mismatch is not None:
            raise RankMismatchError(
                f"{mismatch}; rank {self._context.group.rank} is at {place_of_caller()}. Their "
                "collectives would mix. Let all ranks call spread models alike; on one rank alone, "
                f"call model.module under torch.no_grad(), unless it is in shards. {UNEVEN_BATCHES}"
            )

    def meet(self, phase: Phase) -> None:
        """Come to a point of the step together with all other ranks."""
        self.start(phase)
        self.finish()

    def _all(self) -> list[Announcement]:
        if self._told is None:
            if self._work is None:
                self.start(Phase.BACKWARD)
            self.finish()
        assert self._told is not None
        return self._told

    @property
    def has_started(self) -> bool:
        """Whether this rank has said to the others how far it has come."""
        return self._number > 0

    @property
    def meets_in_forward(self) -> bool:
        """Whether ranks meet in the forward already."""
        return self._forward > 0

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._context.group.world_size

    @property
    def rows_by_rank(self) -> list[int]:
        """The rows of each rank; zero for those that have left."""
        return [told.rows for told in self._all()]

    @property
    def active_ranks(self) -> list[int]:
        """The ranks that have not left."""
        return [rank for rank, told in enumerate(self._all()) if told.takes_part]

    @property
    def with_loss(self) -> bool:
        """Whether the others compute a loss in this forward."""
        return any(told.with_loss for told in self._all())

    @property
    def reduces(self) -> bool:
        """Whether the backward of this forward reduces gradients on some rank, so on all."""
        return any(told.reduces or told.is_armed for told in self._all())

    @property
    def weight(self) -> float:
        """What this rank's gradients are multiplied by before the mean over all ranks."""
        rows = self.rows_by_rank
        everything = sum(rows)
        return (self.rows or 0) * len(rows) / everything if everything else 0.0

    @property
    def first_with_rows(self) -> int:
        """The first rank that has rows; 0 if none has."""
        return next((rank for rank, rows in enumerate(self.rows_by_rank) if rows), 0)
