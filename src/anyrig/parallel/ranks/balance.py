"""The shares of the ranks: fixed, or measured in the first steps and then held.

::

    draws    │ 0 1 2 3 │ 4 5 6 7 │ 8 9 10 11 │ 12 …     all ranks draw the same global batches, and
    reports  │   0 1 2 │ 3 4 5 6 │ 7 8  9 10 │          at the same draws they exchange what they
                     exchange  exchange      └ 2 : 1    have measured by then

An exchange waits for the other ranks. When a rank draws a batch, no collective of an earlier step
still needs its host, so waiting is safe. Once the shares are held, the ranks exchange nothing.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from ...devices.rig import Rig
from ...errors import RankMismatchError, SharesError
from ...processes.group.board import board_of
from ...processes.group.membership import Group, current_context
from ..shares.measure import MemoryMark, StepTime
from ..shares.shares import Shares, choose_shares
from ..shares.trial import MEASURED_STEPS, WARM_UP_STEPS, StepMeasure, fastest, highest_peaks
from .devices_of_ranks import devices_of_ranks

# Four times as many as for the devices of one process: ranks that share a node with other programs
# are slowed down more often.
_ROUND_STEPS = WARM_UP_STEPS + 4 * MEASURED_STEPS
# Draws between two exchanges; doubled while no steps are reported, as in evaluation.
_INTERVAL, _LONGEST_INTERVAL = 4, 1024
# The most reports that a rank keeps while another rank has none.
_KEPT_STEPS = 64
_TIMEOUT_SECONDS = 600.0

# (loader name, iteration index, global batch index)
Position = tuple[str, int, int]


class Balance:
    """The shares of a group's ranks, which begin as `shares`."""

    def __init__(self, group: Group, shares: Shares) -> None:
        self.shares = shares
        self._group = group
        self._unread: deque[StepTime] = deque()
        self._steps: dict[int, StepMeasure] = {}  # by the number of the report
        self._reports = 0
        self._unused_draws = 0
        # Earlier reports are of steps that were drawn with different shares.
        self._first_report = 0
        self._interval = _INTERVAL
        self._memory: MemoryMark | None = None  # at the end of the last step
        # The report with the highest peak of memory, which is kept.
        self._highest = -1

    @property
    def held(self) -> bool:
        """Whether the shares are final."""
        return self.shares.held

    def begin(self) -> None:
        """Note that an iteration begins: no later step will use batches drawn before it."""
        self._unused_draws = 0

    def draw(self, position: Position) -> Shares:
        """Return the shares of the global batch at `position`, the same on every rank.

        Raise RankWaitError if another rank does not draw in time, and RankMismatchError if it draws
        a different batch.
        """
        if not self.held:
            if position[-1] % self._interval == 0:
                self._agree(position)
            self._unused_draws += 1
        return self.shares

    def use(self) -> None:
        """Note that a batch with these shares is used now: the next steps are reported here."""
        current_context().balance = self
        if not self.held and self._memory is None and self._group.device.type != "cpu":
            self._memory = MemoryMark.of(self._group.device)

    def stop(self, step: StepTime) -> None:
        """Stop timing `step`, and report all steps that the device has completed."""
        if step.stop():  # else this is the second backward pass through a graph
            self._unread.append(step)
        while self._unread and (seconds := self._unread[0].read()) is not None:
            self.report(self._unread.popleft().samples, seconds)

    def report(self, samples: int, seconds: float) -> None:
        """Note how many samples this rank had in a step, and how long the rank itself computed."""
        if self.held:
            return
        before = self._memory
        if before is None:
            measure = StepMeasure(samples, seconds)
        else:
            self._memory = MemoryMark.of(self._group.device)
            peak_bytes = before.peak_until(self._memory, samples)
            measure = StepMeasure(samples, seconds, before.allocated_bytes, peak_bytes)
            if peak_bytes is not None:
                self._highest = self._reports
        self._steps[self._reports] = measure
        if self._reports - _KEPT_STEPS != self._highest:
            self._steps.pop(self._reports - _KEPT_STEPS, None)
        self._reports += 1
        self._unused_draws = max(0, self._unused_draws - 1)

    def _agree(self, position: Position) -> None:
        """Exchange reports with all ranks, and correct the shares if there are enough."""
        steps = [(step, *astuple(measure)) for step, measure in self._steps.items()]
        own = json.dumps([position, steps, self._reports + self._unused_draws]).encode()
        board = board_of(self._group)
        texts = board.exchange("shares", own, _TIMEOUT_SECONDS, "the exchange of step times")
        positions, reports, drawn = zip(*map(json.loads, texts), strict=True)
        for rank, other in enumerate(positions):
            if other != positions[0]:
                raise RankMismatchError(
                    f"rank 0 draws {_describe(positions[0])}, while rank {rank} draws "
                    f"{_describe(other)}; let all ranks draw the same batches of each loader"
                )
        of_ranks = [{step: StepMeasure(*measure) for step, *measure in each} for each in reports]
        # A device runs behind its host, so ranks report late. Count steps that all have reported.
        known = [step for step in of_ranks[0] if all(step in steps for steps in of_ranks)]
        counted = [step for step in known if step >= self._first_report]
        is_silent = not any(of_ranks)
        self._interval = min(2 * self._interval, _LONGEST_INTERVAL) if is_silent else _INTERVAL
        if len(counted) < _ROUND_STEPS:
            return
        measured = fastest([[each[i] for each in of_ranks] for i in counted[WARM_UP_STEPS:]])
        peaks = [highest_peaks([[each] for each in steps.values()])[0] for steps in of_ranks]
        # A trial ignores the time of the warm-up steps, but not their peaks.
        warm_up = [peak or step for peak, step in zip(peaks, measured, strict=True)]
        for step in [warm_up] * WARM_UP_STEPS + [measured] * MEASURED_STEPS:
            self.shares = self.shares.measured(step)
        self._first_report = max(drawn)
        self._steps = {i: each for i, each in self._steps.items() if i >= self._first_report}


def _describe(position: Sequence[Any]) -> str:
    name, iteration, index = position
    return f"global batch {index} of iteration {iteration} over distributed {name}"


def choose_balance(
    wanted: str | Sequence[float] | Shares,
    group: Group,
    rig: Rig | None,
    pipelines: int | None,
) -> Balance:
    """Return the balance of a loader; all loaders with the same policy share one.

    Each rank, or each of several `pipelines`, gets a part of a global batch. Raise SharesError if
    there are not as many shares as parts, or if the shares of pipelines would be measured.
    """
    if pipelines is not None:
        if isinstance(wanted, str) and wanted not in ("auto", "even"):
            raise SharesError(
                f"shares={wanted!r} measures ranks, but each of {pipelines} pipelines gets a part "
                "of a batch; pass one number for each pipeline, or leave shares out for equal parts"
            )
        return Balance(group, choose_shares(wanted, [None] * pipelines))
    if not isinstance(wanted, str):
        return Balance(group, choose_shares(wanted, [None] * group.world_size))
    known = current_context().balances
    if wanted not in known:
        own = (Rig.detect() if rig is None else rig).lead
        of_ranks = devices_of_ranks(group, own, _TIMEOUT_SECONDS, "distribute()")
        known[wanted] = Balance(group, choose_shares(wanted, of_ranks))
    balance: Balance = known[wanted]
    return balance
