"""How long a rank itself takes for a step, without what it waits for others.

::

    forward ──── waits ──── backward ──── gradients are ready      all-reduce of the last of them
    └─ counts ─┘       └──── counts ────┘                          does not count
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from .membership import Context


class StepTime:
    """The time of one step on a device: by its events, on the CPU by the processor's clock."""

    __slots__ = ("_device", "_marks", "_stopped", "rows")

    def __init__(self, device: torch.device, rows: int) -> None:
        self.rows = rows
        self._device = device
        self._marks: list[Any] = []
        self._stopped = False
        self._mark()

    def toggle(self) -> None:
        """Leave out what follows, or count again after that."""
        if not self._stopped:
            self._mark()

    def stop(self) -> bool:
        """End; the work that was given to the device until now still counts. False if it had
        ended before, as at the second backward pass of a graph.
        """
        if self._stopped:
            return False
        self._mark()
        self._stopped = True
        return True

    def read(self) -> float | None:
        """Return the seconds; None while the device has not come so far."""
        if self._device.type == "cpu":
            return float(sum(b - a for a, b in self._pairs()))
        if not self._marks[-1].query():
            return None
        return sum(float(a.elapsed_time(b)) for a, b in self._pairs()) / 1e3

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        return zip(self._marks[::2], self._marks[1::2], strict=True)

    def _mark(self) -> None:
        if self._device.type == "cpu":
            self._marks.append(time.perf_counter())
        else:
            event = torch.Event(self._device, enable_timing=True)
            # The current device of a callback of the backward pass may be another.
            event.record(torch.accelerator.current_stream(self._device))
            self._marks.append(event)


class Pace:
    """Measures the steps of a model on this rank, while its loader's shares are being measured.

    The second step of a model with DDP is longer than it should be: all ranks arrange their buckets
    together then.

    Args:
        device: where the model computes.
        context: whose balance asks for the steps.
    """

    def __init__(self, device: torch.device, context: Context) -> None:
        self._device = device
        self._context = context
        self._unread: deque[StepTime] = deque()

    def start(self, rows: int) -> StepTime | None:
        """Return the time of a step that begins now; None if nobody asks."""
        return None if self._context.measuring is None else StepTime(self._device, rows)

    def stop(self, step: StepTime) -> None:
        """End a step, and report those that are known by now: a device is behind its host."""
        if step.stop():
            self._unread.append(step)
        while self._unread and (seconds := self._unread[0].read()) is not None:
            rows = self._unread.popleft().rows
            if (balance := self._context.measuring) is not None:
                balance.report(rows, seconds)
