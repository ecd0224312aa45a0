"""Shares over ranks of unequal speed: measured in the first steps, agreed on, then held.

::

    report 1 2 3 4 5 │ exchange │ batches drawn ahead │ warm-up, 4 measured │ exchange │ … held
           even      │  2 : 1 from global batch 9 on  │                     │

All ranks report the same number of steps, so they come to each exchange together; between two of
them nothing is exchanged, and nothing once the shares are held.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Sequence
from dataclasses import replace

import torch

from ...devices.device import Device
from ...devices.rig import Rig
from ..shares.shares import Shares, choose_shares
from ..shares.trial import WARM_UP_STEPS, StepMeasure, Trial, fastest
from .board import board_of
from .membership import Group
from .schedule import Position, Schedule

# A trial judges two measured steps. Each of them is the faster one of two here: ranks that share a
# machine with other programs are slow for a moment more often than devices of one process.
_STEPS_OF_MEASURE = 2
_MEASURED_STEPS = 2
_ROUND_STEPS = WARM_UP_STEPS + _STEPS_OF_MEASURE * _MEASURED_STEPS
# Devices that look alike keep even shares unless the slowest takes this much longer a row.
ALIKE = 1.1
_TIMEOUT_SECONDS = 600.0


class Balance:
    """The shares of a group's ranks, while they are measured and after.

    Attributes:
        shares: those agreed on last, and why.
    """

    def __init__(self, group: Group, shares: Shares, assumed_alike: bool = False) -> None:
        self.shares = shares
        self._group = group
        self._assumed_alike = assumed_alike
        self._schedules: dict[int, weakref.ref[Schedule]] = {}
        self._steps: list[StepMeasure] = []
        self._skip = 0
        self._base_bytes: int | None = None
        self._active: Schedule | None = None
        self._loaders = 0

    @property
    def held(self) -> bool:
        """Whether the shares stay as they are."""
        return self.shares.held

    def add_schedule(self) -> Schedule:
        """Return the schedule of one more loader; all ranks add theirs in the same order."""
        schedule = Schedule([((0, 0), self.shares)])
        self._schedules[self._loaders] = weakref.ref(schedule)
        self._loaders += 1
        return schedule

    def use(self, schedule: Schedule) -> None:
        """Note of which loader the batches are that are used now."""
        self._active = schedule
        _current[:] = [self]

    def report(self, rows: int, seconds: float) -> None:
        """Note what this rank did in one step, and once enough is known, agree with the others.

        Args:
            rows: that this rank was given; zero if it had none.
            seconds: how long it computed, without waiting for others.

        Raises:
            RankWaitError: the other ranks did not report as many steps.
        """
        if self.held:
            return
        active = self._active
        if active is not None:
            active.report()
        measure = self._measure(rows, seconds)
        if self._skip:
            self._skip -= 1
            return
        self._steps.append(measure)
        if len(self._steps) == _ROUND_STEPS:
            self._agree(0 if active is None else active.ahead)

    def _measure(self, rows: int, seconds: float) -> StepMeasure:
        device = self._group.device
        if device.type == "cpu":
            return StepMeasure(rows, seconds)
        base_bytes = self._base_bytes
        peak_bytes = torch.accelerator.max_memory_allocated(device)
        torch.accelerator.reset_peak_memory_stats(device)
        self._base_bytes = torch.accelerator.memory_allocated(device)
        return StepMeasure(rows, seconds, base_bytes, peak_bytes)

    def _agree(self, ahead: int) -> None:
        schedules = {number: there() for number, there in self._schedules.items()}
        drawn = {number: each.next for number, each in schedules.items() if each is not None}
        said = pickle.dumps((self._steps, drawn, ahead))
        board = board_of(self._group)
        heard = board.exchange("shares", said, _TIMEOUT_SECONDS, "the exchange of step times")
        # From ranks of one program; see docs/security.md.
        told = [pickle.loads(each) for each in heard]  # noqa: S301
        self._steps = []
        before = self.shares
        self.shares = self._judge([steps for steps, _, _ in told])
        if self.shares.weights == before.weights and self.shares.row_limits == before.row_limits:
            return
        # What some rank has drawn already stays as it was drawn.
        self._skip = max(ahead for _, _, ahead in told)
        for number, schedule in schedules.items():
            positions = [drawn.get(number) for _, drawn, _ in told]
            if schedule is not None and None not in positions:
                first: Position = max(position for position in positions if position is not None)
                schedule.change(first, self.shares)

    def _judge(self, of_ranks: Sequence[Sequence[StepMeasure]]) -> Shares:
        warm_up, measured = WARM_UP_STEPS, list(zip(*of_ranks, strict=True))[WARM_UP_STEPS:]
        rounds = [
            fastest(measured[i : i + _STEPS_OF_MEASURE])
            for i in range(0, len(measured), _STEPS_OF_MEASURE)
        ]
        if self._assumed_alike:
            self._assumed_alike = False
            slower = slowest_over_fastest(fastest(rounds))
            if slower is not None and slower <= ALIKE:
                reason = (
                    f"even: in the first steps the slowest rank took {slower:.2f} times as long a "
                    f"row as the fastest, and up to {ALIKE:g} counts as alike"
                )
                return replace(self.shares, reason=reason, trial=None)
        shares = self.shares
        for step in [*[rounds[0]] * warm_up, *rounds]:
            shares = shares.measured(step)
        return shares


def slowest_over_fastest(step: Sequence[StepMeasure]) -> float | None:
    """Return by what factor the slowest takes longer a row than the fastest; None if unknown."""
    of_row = [each.seconds / each.rows for each in step if each.rows and each.seconds]
    return max(of_row) / min(of_row) if len(of_row) == len(step) else None


# The one whose loader has handed out the last batch, and one for each group and policy.
_current: list[Balance] = []
_balances: dict[tuple[int, str | None], Balance] = {}


def current_balance() -> Balance | None:
    """Return the balance of the loader whose batches are used now; None if shares are held.

    A model that is spread over a group reports its steps to it.
    """
    return next((balance for balance in _current if not balance.held), None)


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
    board = board_of(group)
    policy = wanted if wanted is None or isinstance(wanted, str) else None
    if policy is None and wanted is not None:
        shares = choose_shares(wanted, [None] * group.world_size)
        return Balance(group, shares)
    key = (id(board), policy)
    known = _balances.get(key)
    if known is None:
        own = (Rig.detect() if rig is None else rig).lead
        heard = board.exchange("devices", pickle.dumps(own), _TIMEOUT_SECONDS, "distribute()")
        devices: list[Device] = [pickle.loads(each) for each in heard]  # noqa: S301 - as above
        known = _balances[key] = Balance(group, *shares_of_devices(policy, devices))
    return known


def shares_of_devices(policy: str | None, devices: Sequence[Device]) -> tuple[Shares, bool]:
    """Return the shares to begin with, and whether they are even because nothing is known better.

    Raises:
        SharesError: there is no such policy.
    """
    shares = choose_shares(policy, devices)
    if policy is not None or not shares.held:
        return shares, False
    totals = tuple(device.total_bytes for device in devices)
    reason = "even to begin with, the devices being alike, until the first steps' times are known"
    return replace(shares, reason=reason, trial=Trial("speed", totals)), True
