"""What each device did in a step: times between events, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .trial import StepMeasure


@dataclass(eq=False)
class StepClock:
    """Times the devices of one step from the start of its forward to the end of its backward.

    That includes the batch, parameters and gradients on their way, and waiting for the slowest
    forward.

    Attributes:
        devices: all of the rig's.
        rows: what each was given; None as long as that is unknown, or if all got the same.
    """

    devices: Sequence[torch.device]
    rows: Sequence[int] | None = None
    _started: list[torch.Event] = field(default_factory=list)
    _ended: dict[torch.device, torch.Event] = field(default_factory=dict)
    _base_bytes: list[int] = field(default_factory=list)

    def start(self) -> None:
        """Note on each device's current stream that the step begins."""
        for device in self.devices:
            torch.accelerator.reset_peak_memory_stats(device)
            self._base_bytes.append(torch.accelerator.memory_allocated(device))
            self._started.append(_record(torch.accelerator.current_stream(device)))

    def mark(self, stream: torch.Stream) -> None:
        """Note that work of a device's backward has been queued here; the last time counts."""
        self._ended[stream.device] = _record(stream)

    def read(self) -> list[StepMeasure] | None:
        """Return what was measured, once the devices are done; None without rows or a backward."""
        if not self._ended or self.rows is None:
            return None
        measures = []
        for device, rows, started, base_bytes in zip(
            self.devices, self.rows, self._started, self._base_bytes, strict=True
        ):
            seconds = None
            ended = self._ended.get(device)
            if ended is not None:
                ended.synchronize()
                seconds = started.elapsed_time(ended) / 1e3
            peak_bytes = torch.accelerator.max_memory_allocated(device)
            measures.append(StepMeasure(rows, seconds, base_bytes, peak_bytes))
        return measures


def _record(stream: torch.Stream) -> torch.Event:
    event = torch.Event(stream.device, enable_timing=True)
    event.record(stream)
    return event
