"""The ranks' agreement that all make the same call, which comes before the first message.

::

    rank 0   announces  F0  reaches agreement, sends F0's values  F1 …
    rank 1   W of the step before           announces, reaches agreement

A rank announces a call when it begins, and waits for the other announcements only when it needs the
other ranks. So the rank of the first stage computes while others end the step before.
"""

from __future__ import annotations

import torch

from .....errors import RankMismatchError
from .....processes.group.caller_place import place_of_caller
from ....ranks.exchange import Exchange, Phase
from .row import Row


class Agreement:
    """The announcements of all ranks for one call; makes this rank's announcement.

    Args:
        exchange: the exchange of this call.
        row: the ranks of this pipeline.
        key: a number that is equal on the ranks of a pipeline if they make the same call.
        trains: whether the module is in training mode, which decides whether pipelines exchange
            buffers.
    """

    def __init__(self, exchange: Exchange, row: Row, key: int, trains: bool) -> None:
        self.exchange = exchange
        self.is_reached = self.is_refused = False
        self._row = row
        extra = float(key), float(trains), 0.0
        exchange.start(Phase.FORWARD, torch.is_grad_enabled(), extra)

    def reach(self) -> None:
        """Wait until all ranks have announced this call; do nothing if they are known to have.

        Raises:
            RankMismatchError: another rank calls the model in a different way, or with different
                shapes.
            RankWaitError: another rank did not come in time, or has ended.
        """
        if self.is_reached:
            return
        self.is_refused = True  # until all announcements are known to agree
        self.exchange.finish()
        self._compare()
        self.is_refused, self.is_reached = False, True

    def _compare(self) -> None:
        exchange, row = self.exchange, self._row
        keys, modes, _ = zip(*exchange.extra_of_ranks, strict=True)
        counts = exchange.samples_of_ranks
        here = row.ranks[row.place]
        for rank in range(len(counts)):
            same = modes[rank] == modes[here]
            if rank in row.ranks:
                same = same and (keys[rank], counts[rank]) == (keys[here], counts[here])
            if not same:
                raise RankMismatchError(
                    f"rank {here} calls the pipeline with {counts[here]} samples, but rank {rank} "
                    f"with {counts[rank]} samples, at {place_of_caller()}; or their arguments, "
                    "modes or frozen parameters differ. All ranks of one pipeline need the same "
                    "batch: iterate over anyrig.distribute(loader), and let all ranks run the same "
                    "program"
                )

    @property
    def total_samples(self) -> float:
        """The number of samples of the global batch."""
        return self.exchange.total_samples / len(self._row.ranks)

    @property
    def first_row_with_samples(self) -> int:
        """The number of the first pipeline that has samples; 0 if none has."""
        return self.exchange.first_with_samples // len(self._row.ranks)
