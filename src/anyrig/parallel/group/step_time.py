"""How long a rank itself takes for a step, without what it waits for others.

::

    forward ──── waits ──── backward ──── gradients are ready      all-reduce of the last of them
    └─ counts ─┘       └──── counts ────┘                          does not count
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch


class StepTime:
    """The time of one step on a device: by its events, on the CPU by the processor's clock."""

    __slots__ = ("_device", "_marks", "_stopped", "rows")

    def __init__(self, device: torch.device, rows: int) -> None:
        self.rows = rows
        self._device = device
        self._marks: list[Any] = []
        self._stopped = False
        self._mark()

    def pause(self) -> None:
        """Leave out what follows, until `resume`."""
        if not self._stopped:
            self._mark()

    def resume(self) -> None:
        """Count again."""
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
