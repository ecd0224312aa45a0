"""How many rows each rank has in one forward: what gradients are weighted by.

::

    rank 0   7 rows ──┐                           ┌──▶ its gradients * 7 * 3 / 15
    rank 1   5 rows ──┼── a vector, all-reduced ──┼──▶                 * 5 * 3 / 15
    rank 2   3 rows ──┘   while all compute       └──▶                 * 3 * 3 / 15

Then the mean over the ranks, which is what DDP and FSDP2 take, is the mean over the rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .channel import Channel
from .step_time import StepTime

_FLAGS = 2


class Exchange:
    """The rows of all ranks in one forward, told over the hosts; nobody waits but who asks.

    Args:
        channel: what carries it.
        rows: of this rank; None if it takes no part any more, as `join` has it.
        with_loss: whether this forward computes a loss; all ranks alike.
        reduces: whether its backward reduces gradients; all ranks alike.
        time: that of this rank's own work, in which waiting does not count.

    Attributes:
        before: the forwards of spread modules whose outputs this one was given.
        has_mixed_input: whether an input was computed from these and from something else.
        leads_to_global_loss: whether the loss of all ranks was computed from the outputs.
    """

    __slots__ = (
        "_channel",
        "_counts",
        "_flags",
        "_told",
        "_work",
        "before",
        "has_mixed_input",
        "leads_to_global_loss",
        "rows",
        "time",
    )

    def __init__(
        self,
        channel: Channel,
        rows: int | None,
        *,
        with_loss: bool = False,
        reduces: bool = True,
        time: StepTime | None = None,
    ) -> None:
        self.rows = rows
        self.time = time
        self.before: list[Exchange] = []
        self.has_mixed_input = False
        self.leads_to_global_loss = False
        self._channel = channel
        self._flags = (with_loss, reduces)
        self._counts: torch.Tensor | None = None
        self._work: Any = None
        self._told: list[int] | None = None

    def start(self) -> None:
        """Tell the others."""
        channel = self._channel
        # A slot a rank, which is one more than its rows: zero says that it has left.
        counts = [0] * (channel.world_size + _FLAGS)
        if self.rows is not None:
            counts[channel.rank] = self.rows + 1
            counts[-2:] = self._flags
        self._counts = torch.tensor(counts, dtype=torch.int64, device="cpu")
        self._work = dist.all_reduce(self._counts, group=channel.carrier, async_op=True)

    def _wait(self) -> list[int]:
        if self._told is None:
            if self._counts is None:
                self.start()
            assert self._counts is not None
            if self.time is not None:
                self.time.pause()
            self._work.wait()
            if self.time is not None:
                self.time.resume()
            self._told, self._work = self._counts.tolist(), None
        return self._told

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._channel.world_size

    @property
    def rows_by_rank(self) -> list[int]:
        """The rows of each rank; zero for those that have left."""
        return [max(slot - 1, 0) for slot in self._wait()[:-_FLAGS]]

    @property
    def active_ranks(self) -> list[int]:
        """The ranks that have not left."""
        return [rank for rank, slot in enumerate(self._wait()[:-_FLAGS]) if slot]

    @property
    def with_loss(self) -> bool:
        """Whether the others compute a loss in this forward."""
        return self._wait()[-2] > 0

    @property
    def reduces(self) -> bool:
        """Whether the others' backward reduces gradients."""
        return self._wait()[-1] > 0

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
