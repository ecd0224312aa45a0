"""Shares over ranks, fixed or, on request, measured in the first steps, agreed on, then held.

::

    draws    │ 0 1 2 3 │ 4 5 6 7 │ 8 9 10 11 │ 12 …     all ranks draw the same global batches, so
    reports  │   0 1 2 │ 3 4 5 6 │ 7 8  9 10 │          they exchange at the same one of them what
                     exchange    └ from 8 on, 2 : 1     they have reported by then

An exchange waits for the other ranks, and a draw is where that is safe: no collective of an
earlier step still needs this rank's host. Once the shares are held nothing is exchanged any more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from ...devices.as_json import read_device, write_device
from ...devices.rig import Rig
from ...errors import RankMismatchError
from ..shares.measure import MemoryMark
from ..shares.shares import Shares, choose_shares
from ..shares.trial import WARM_UP_STEPS, StepMeasure, fastest, highest_peaks
from .board import board_of
from .membership import Group, current_context

# A trial judges two measured steps. Each of them is the faster one of two here: ranks that share a
# machine with other programs are slow for a moment more often than devices of one process.
_STEPS_OF_MEASURE = 2
_ROUND_STEPS = WARM_UP_STEPS + 2 * _STEPS_OF_MEASURE
# Draws between two exchanges; more, up to the last, while no steps are reported, as in evaluation.
_INTERVAL, _LONGEST_INTERVAL = 4, 1024
# More are not kept, where some rank reports none.
_KEPT_STEPS = 64
_TIMEOUT_SECONDS = 600.0

# (loader name, iteration index, global batch index)
Position = tuple[str, int, int]


class Balance:
    """The shares of a group's ranks, while they are measured and after.

    Args:
        group: the ranks.
        shares: to begin with.

    Attributes:
        shares: those agreed on last, and why.
    """

    def __init__(self, group: Group, shares: Shares) -> None:
        self.shares = shares
        self._group = group
        self._reports = 0
        self._steps: dict[int, StepMeasure] = {}
        # The first report of a step that was drawn with these shares, and warmed up to.
        self._first = 0
        self._ahead = 0
        self._interval = _INTERVAL
        # At the end of the last step, and which step had the highest peak: that one is kept.
        self._memory: MemoryMark | None = None
        self._highest = -1

    @property
    def held(self) -> bool:
        """Whether the shares stay as they are."""
        return self.shares.held

    def begin(self) -> None:
        """Note that an iteration begins: what was drawn before and not used will not be used."""
        self._ahead = 0

    def draw(self, position: Position) -> Shares:
        """Return the shares of the global batch that is being drawn, the same on every rank.

        Raises:
            RankWaitError: the other ranks did not come to a batch in time.
            RankMismatchError: they came to another one.
        """
        if not self.held:
            if position[-1] % self._interval == 0:
                self._agree(position)
            self._ahead += 1
        return self.shares

    def use(self) -> None:
        """Note that batches of these shares are used now."""
        current_context().balance = self
        if not self.held and self._memory is None and self._group.device.type != "cpu":
            self._memory = MemoryMark.of(self._group.device)

    def report(self, rows: int, seconds: float) -> None:
        """Note what this rank did in one step; it waits for nobody.

        Args:
            rows: that this rank was given; zero if it had none.
            seconds: how long it computed, without waiting for others.
        """
        if not self.held:
            measure = self._steps[self._reports] = self._measure(rows, seconds)
            if measure.peak_bytes is not None:
                self._highest = self._reports
            if self._reports - _KEPT_STEPS != self._highest:
                self._steps.pop(self._reports - _KEPT_STEPS, None)
            self._reports += 1
            self._ahead = max(0, self._ahead - 1)

    def _measure(self, rows: int, seconds: float) -> StepMeasure:
        device = self._group.device
        if device.type == "cpu":
            return StepMeasure(rows, seconds)
        before, self._memory = self._memory, MemoryMark.of(device)
        if before is None:
            return StepMeasure(rows, seconds)
        peak_bytes = before.peak_until(self._memory, rows)
        return StepMeasure(rows, seconds, before.allocated_bytes, peak_bytes)

    def _agree(self, position: Position) -> None:
        steps = [(step, *astuple(measure)) for step, measure in self._steps.items()]
        said = json.dumps([position, steps, self._reports + self._ahead]).encode()
        board = board_of(self._group)
        heard = board.exchange("shares", said, _TIMEOUT_SECONDS, "the exchange of step times")
        told = [json.loads(each) for each in heard]
        for rank, (other, *_) in enumerate(told):
            if other != told[0][0]:
                raise RankMismatchError(
                    f"rank 0 draws {describe(told[0][0])}, while rank {rank} draws "
                    f"{describe(other)}; let all ranks go through the same loaders as far"
                )
        of_ranks = [
            {step: StepMeasure(*measure) for step, *measure in steps} for _, steps, _ in told
        ]
        # A device is behind its host by as many steps as it likes: those count that all know.
        known = [step for step in of_ranks[0] if all(step in steps for steps in of_ranks)]
        counted = [step for step in known if step >= self._first]
        silent = not any(of_ranks)
        self._interval = min(2 * self._interval, _LONGEST_INTERVAL) if silent else _INTERVAL
        if len(counted) < _ROUND_STEPS:
            return
        peaks = [highest_peaks([[each] for each in steps.values()])[0] for steps in of_ranks]
        self.shares = self._judge([[steps[step] for step in counted] for steps in of_ranks], peaks)
        self._first = max(drawn for *_, drawn in told)
        self._steps = {step: each for step, each in self._steps.items() if step >= self._first}

    def _judge(
        self, of_ranks: Sequence[Sequence[StepMeasure]], peaks: Sequence[StepMeasure | None]
    ) -> Shares:
        measured = list(zip(*of_ranks, strict=True))[WARM_UP_STEPS:]
        middle = len(measured) // 2
        first, second = fastest(measured[:middle]), fastest(measured[middle:])
        shares = self.shares
        # The steps have warmed up here; of those that a trial skips, it sees the peaks.
        warm_up = [peak or step for peak, step in zip(peaks, first, strict=True)]
        for step in [warm_up] * WARM_UP_STEPS + [first, second]:
            shares = shares.measured(step)
        return shares


def describe(position: Sequence[Any]) -> str:
    """Return a position in words."""
    name, iteration, index = position
    return f"global batch {index} of iteration {iteration} over distributed {name}"


def choose_balance(
    wanted: str | Sequence[float] | Shares | None, group: Group, rig: Rig | None
) -> Balance:
    """Return how the global batches of a loader are divided; loaders with one policy share it.

    Args:
        wanted: as in `anyrig.distribute`.
        group: the ranks.
        rig: of this rank, None for what it detects.

    Raises:
        SharesError: there are not as many shares as ranks, or no such policy.
    """
    if wanted is not None and not isinstance(wanted, str):
        return Balance(group, choose_shares(wanted, [None] * group.world_size))
    known = current_context().balances
    if wanted not in known:
        own = (Rig.detect() if rig is None else rig).lead
        said = write_device(own)
        heard = board_of(group).exchange("devices", said, _TIMEOUT_SECONDS, "distribute()")
        devices = [read_device(text) for text in heard]
        known[wanted] = Balance(group, choose_shares(wanted, devices))
    balance: Balance = known[wanted]
    return balance
