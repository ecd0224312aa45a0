"""`track`, which records the memory of all devices while a block of code runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Literal

from ..errors import MemoryTrackingError
from ..observe.events import Events
from ..observe.hooks import Observer
from .device_footprint import DeviceFootprint, describe_device
from .device_record import DeviceRecord
from .footprint import Footprint
from .holders import Holder, collect_cycles, find_holders
from .leaks import find_leaks
from .recording import Recording, refuse_two_recordings


def track(*, every: Literal["step"] | None = None) -> _Tracking:
    """Track what fills the memory of all devices during a ``with`` block.

    ::

        with anyrig.memory.track() as footprint:
            train_one_step()
        print(footprint.table())

    Tracking may begin at any time: the program's models, optimizers and variables explain the
    memory that exists already. Tracking follows the operators of this thread and of its backward
    passes, on CUDA devices, real or virtual, and on the CPU. It slows them down, and leaves no
    hooks behind.

    Args:
        every: None for one footprint of the whole block; ``"step"`` for one footprint per
            optimizer step, in `Footprint.steps`, and what grows from step to step, in
            `Footprint.leaks`. The end of the block then collects garbage.

    Raises:
        MemoryTrackingError: memory is already being tracked, or `every` has another value.
    """
    if every not in (None, "step"):
        raise MemoryTrackingError(f'every is {every!r}; give "step", or None for the whole block')
    return _Tracking(every == "step")


class _Tracking:
    """The context manager that `track` returns."""

    def __init__(self, each_step: bool) -> None:
        self._each_step = each_step
        self._recording = Recording()
        self._footprint = Footprint()
        self._observer = Observer(Events(step_ended=self._end_step))
        # The records at the end of the last step, and what held memory then.
        self._last: tuple[list[DeviceRecord], list[Holder]] | None = None

    def __enter__(self) -> Footprint:
        refuse_two_recordings()
        self._recording.start(sys._getframe(1))
        if self._each_step:
            self._observer.start()
        return self._footprint

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._observer.stop()
        devices = _describe(self._recording.stop(sys._getframe(1)))
        steps = self._footprint.steps
        if self._last is not None:
            records, holders = self._last
            held = [*holders, *collect_cycles()]
            self._footprint.leaks = find_leaks([step.devices for step in steps], records, held)
        if not steps:
            self._footprint.devices = devices
            self._footprint._snapshot = self._recording.snapshot
        else:
            highest = max(steps, key=lambda step: step.peak_bytes)
            self._footprint.devices = highest.devices
            self._footprint._snapshot = highest._snapshot

    def _end_step(self, *_: object) -> None:
        records = self._recording.read(None)
        # Find the holders here: the function with the loop may end before the block does.
        self._last = records, find_holders(sys._getframe(1))
        step = Footprint(_describe(records), _snapshot=self._recording.snapshot)
        self._footprint.steps += (step,)
        self._recording.restart(records)


def _describe(records: Iterable[DeviceRecord]) -> tuple[DeviceFootprint, ...]:
    return tuple(describe_device(record) for record in records if record.timeline.blocks)
