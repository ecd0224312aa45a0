"""Report what filled the device after an out-of-memory error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType

import torch

from ..units import format_bytes
from .device_footprint import describe_moment
from .device_record import DeviceRecord
from .failed_step import add_note
from .kept_variables import find_kept_variables
from .moment import Moment
from .reason import Reason, find_reason
from .recording import Recording, refuse_two_recordings
from .table import format_moment


@dataclass(frozen=True)
class OutOfMemoryReport:
    """What filled a device when it ran out of memory.

    Attributes:
        device: the device that ran out of memory.
        requested_bytes: the size of the refused request, rounded up to whole blocks.
        moment: what the device held, with the line and module of the request.
        reason: the most likely reason, and the line to change.
        total_bytes: the device's memory; None if unknown.
    """

    device: torch.device
    requested_bytes: int
    moment: Moment
    reason: Reason
    total_bytes: int | None

    def __str__(self) -> str:
        """Return a text: the reason in the first line, then the request and a table of kinds."""
        reason = self.reason
        at = f" Line: {reason.line}: {reason.line.text}" if reason.line is not None else ""
        moment = self.moment
        where = f" at {moment.line}" if moment.line is not None else ""
        of_total = f" of {format_bytes(self.total_bytes)}" if self.total_bytes is not None else ""
        return (
            f"{self.device} ran out of memory: {reason.sentence}.{at}\n"
            f"{format_bytes(self.requested_bytes)} were requested{where}, with "
            f"{format_bytes(moment.allocated_bytes)} allocated{of_total}:\n{format_moment(moment)}"
        )


class explain_oom:  # noqa: N801 (used like a function, as torch.no_grad is)
    """Add a report to an out-of-memory error that leaves a ``with`` block.

    ::

        with anyrig.memory.explain_oom():
            train()

    A `torch.OutOfMemoryError` that leaves the block gets an attribute `report`, an
    `OutOfMemoryReport`, and the report's text as a note below its message (Python 3.11 and later;
    in 3.10 as a second argument). The exception object stays the same. The block is tracked as by
    `track`.

    Raises:
        MemoryTrackingError: memory is already being tracked.
    """

    def __enter__(self) -> None:
        refuse_two_recordings()
        self._recording = Recording()
        self._recording.start(sys._getframe(1))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        records = self._recording.stop(_innermost(traceback) or sys._getframe(1))
        if isinstance(error, torch.OutOfMemoryError):
            report = _report(records, _innermost(traceback))
            if report is not None:
                error.report = report  # type: ignore[attr-defined]
                add_note(error, str(report))


def _innermost(traceback: TracebackType | None) -> FrameType | None:
    frame = None
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
    return frame


def _report(records: Sequence[DeviceRecord], frame: FrameType | None) -> OutOfMemoryReport | None:
    refusing = [record for record in records if record.timeline.refusals]
    if not refusing:
        return None  # the CPU ran out of memory, or the program raised the error itself
    record = max(refusing, key=lambda each: each.timeline.last_refusal_seconds())
    refusal = record.timeline.refusals[-1]
    reason = find_reason(record, refusal, list(find_kept_variables(frame)))
    moment = describe_moment(record, refusal.position)
    return OutOfMemoryReport(
        record.timeline.device, refusal.requested_bytes, moment, reason, record.total_bytes
    )
