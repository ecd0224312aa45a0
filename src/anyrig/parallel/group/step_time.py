"""How long a rank itself works on a step; time spent waiting for other ranks is left out.

::

    forward ──── waits ──── backward ──── gradients are ready      all-reduce of the last of them
    └ counts ─┘        └──── counts ────┘                          does not count
"""

from __future__ import annotations

import time
from typing import Any

import torch

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
