"""What each device did in a step: times between events, and memory.

Peaks of memory are only read; the program alone resets them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .trial import StepMeasure


@dataclass(frozen=True)
class MemoryMark:
    """The memory of a device at one moment."""

    allocated_bytes: int
    peak_bytes: int  # most allocated since the program last reset the peak

    @classmethod
    def of(cls, device: torch.device) -> MemoryMark:
        """Return the present mark of an accelerator."""
        return cls(
            torch.accelerator.memory_allocated(device),
            torch.accelerator.max_memory_allocated(device),
        )

    def peak_until(self, later: MemoryMark, samples: int) -> int | None:
        """Return the peak of a step over `samples` from this mark to `later`.

        None if the peak of an earlier step is higher and hides it.
        """
        if later.peak_bytes > self.peak_bytes:
            return later.peak_bytes
        return None if samples else max(self.allocated_bytes, later.allocated_bytes)


@dataclass(eq=False)
class StepClock:
    """Times the devices of one step, from the start of its forward to the end of its backward.

    Times include copies of batch, parameters and gradients, and waiting for the slowest forward.
    """

    devices: Sequence[torch.device]
    samples: Sequence[int] | None = None  # of each device; None if unknown or not divided
    _started: list[torch.Event] = field(default_factory=list)
    _ended: dict[torch.device, torch.Event] = field(default_factory=dict)
    _memory: list[MemoryMark] = field(default_factory=list)

    def start(self) -> None:
        """Record the start of the step on each device's current stream."""
        for device in self.devices:
            self._memory.append(MemoryMark.of(device))
            self._started.append(record_event(torch.accelerator.current_stream(device)))

    def mark(self, stream: torch.Stream) -> None:
        """Record that `stream` has queued a part of the backward pass; the last record counts."""
        self._ended[stream.device] = record_event(stream)

    def read(self) -> list[StepMeasure] | None:
        """Wait for the devices and return the measures; None without samples or a backward pass."""
        if not self._ended or self.samples is None:
            return None
        measures = []
        for device, samples, started, memory in zip(
            self.devices, self.samples, self._started, self._memory, strict=True
        ):
            seconds, ended = None, self._ended.get(device)
            if ended is not None:
                ended.synchronize()
                seconds = started.elapsed_time(ended) / 1e3
            peak_bytes = memory.peak_until(MemoryMark.of(device), samples)
            measures.append(StepMeasure(samples, seconds, memory.allocated_bytes, peak_bytes))
        return measures


class StepTime:
    """How long a rank itself works on a step of `samples`: by events of a device, or by the clock.

    ::

        forward ──── waits ──── backward ──── gradients are ready    all-reduce of the last ones
        └ counts ─┘        └──── counts ────┘                        does not count
    """

    def __init__(self, device: torch.device, samples: int) -> None:
        self.samples = samples
        self._device = device
        self._marks: list[Any] = []
        self._stopped = False
        self.toggle()

    def toggle(self) -> None:
        """Pause or resume the timing; do nothing after `stop`."""
        if self._stopped:
            return
        if self._device.type == "cpu":
            self._marks.append(time.perf_counter())
        else:
            # In a callback of the backward pass, another device may be the current one.
            self._marks.append(record_event(torch.accelerator.current_stream(self._device)))

    def stop(self) -> bool:
        """End the timing with the work queued so far; return False if it had ended before."""
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


def record_event(stream: torch.Stream) -> torch.Event:
    """Return an event that marks the time when the work queued so far on `stream` has ended."""
    event = torch.Event(stream.device, enable_timing=True)
    event.record(stream)
    return event
