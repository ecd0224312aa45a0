"""How long a rank itself works on a step; time spent waiting for other ranks is left out.

::

    forward ──── waits ──── backward ──── gradients are ready      all-reduce of the last of them
    └ counts ─┘        └──── counts ────┘                          does not count
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch

from ...processes.group.membership import Context
from ..shares.measure import record_event


class StepTime:
    """The working time of one step with `samples`: between events of a device, or by the clock."""

    def __init__(self, device: torch.device, samples: int) -> None:
        self.samples = samples
        self._device = device
        self._marks: list[Any] = []
        self._stopped = False
        self.toggle()

    def toggle(self) -> None:
        """Interrupt the time, or resume it; do nothing after `stop`."""
        if self._stopped:
            return
        if self._device.type == "cpu":
            self._marks.append(time.perf_counter())
        else:
            # In a callback of the backward pass, another device may be the current one.
            self._marks.append(record_event(torch.accelerator.current_stream(self._device)))

    def stop(self) -> bool:
        """End the time with the work queued so far; return False if it had ended before."""
        self.toggle()
        was_stopped, self._stopped = self._stopped, True
        return not was_stopped

    def read(self) -> float | None:
        """Return the time in seconds; None while the device has not done the work."""
        pairs = zip(self._marks[::2], self._marks[1::2], strict=True)
        if self._device.type == "cpu":
            return float(sum(end - start for start, end in pairs))
        if not self._marks[-1].query():
            return None
        return sum(float(start.elapsed_time(end)) for start, end in pairs) / 1e3


class Pace:
    """Reports the step times of a model on `device` to the balance that is measuring, if any."""

    def __init__(self, device: torch.device, context: Context) -> None:
        self._device = device
        self._context = context
        self._unread: deque[StepTime] = deque()

    def start(self, samples: int) -> StepTime | None:
        """Return the time of a step that begins now; None if shares are not being measured."""
        return None if self._context.measuring is None else StepTime(self._device, samples)

    def stop(self, step: StepTime) -> None:
        """Stop the time of `step`, and report all steps that the device has completed."""
        if step.stop():  # else this is the second backward pass through a graph
            self._unread.append(step)
        while self._unread and (seconds := self._unread[0].read()) is not None:
            samples = self._unread.popleft().samples
            if (balance := self._context.measuring) is not None:
                balance.report(samples, seconds)
