"""Report what filled the device after an out-of-memory error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType

import torch

from ..observe.census import Census, take_census
from ..units import format_bytes
from .batch_tensors import can_be_halved, find_batch
from .device_footprint import describe_moment
from .device_record import DeviceRecord
from .failed_step import add_note
from .free_memory import FreeMemory
from .half_precision import half_dtype
from .kept_variables import KeptVariable, find_kept_variables
from .lasting_state import LastingState, lasting_state
from .moment import Moment
from .reason import Cause, Reason, find_reason
from .recording import Recording, refuse_two_recordings
from .remedies import Remedy, find_remedies
from .table import format_moment


@dataclass(frozen=True)
class OutOfMemoryReport:
    """What filled a device when it ran out of memory.

    Attributes:
        device: the device that ran out of memory.
        moment: what the device held, with the line and module of the request.
        reason: the most likely reason, and the line to change.
        total_bytes: the device's memory; None if unknown.
        free: the size of the refused request, and what was free.
        freed_bytes: the memory that was freed between the error and `moment`: 0, unless the report
            was made without tracking, after the running functions had ended.
        lasting: what the models and optimizers hold between steps; None if unknown.
    """

    device: torch.device
    moment: Moment
    reason: Reason
    total_bytes: int | None
    free: FreeMemory
    freed_bytes: int = 0
    remedies: tuple[Remedy, ...] = ()
    outside_bytes: int | None = None
    lasting: LastingState | None = None

    @property
    def requested_bytes(self) -> int:
        """The size of the refused request, rounded up to whole blocks."""
        return self.free.requested_bytes

    def __str__(self) -> str:
        """Return a text: the reason, the request, what was free, a table of kinds, remedies."""
        reason = self.reason
        at = f" Line: {reason.line}: {reason.line.text}" if reason.line is not None else ""
        moment = self.moment
        where = f" at {moment.line}" if moment.line is not None else ""
        of_total = f" of {format_bytes(self.total_bytes)}" if self.total_bytes is not None else ""
        allocated = format_bytes(moment.allocated_bytes + self.freed_bytes)
        freed = f" ({format_bytes(self.freed_bytes)} freed since)" if self.freed_bytes else ""
        outside = ""
        if self.outside_bytes is not None:
            outside = f", and {format_bytes(self.outside_bytes)} in use outside PyTorch"
        free = f"{self.free.describe()}.\n"
        if reason.cause is Cause.FRAGMENTATION:  # the first line has it
            free = ""
        return (
            f"{self.device} ran out of memory: {reason.sentence}.{at}\n"
            f"{format_bytes(self.requested_bytes)} were requested{where}, with {allocated} "
            f"allocated{of_total} at that moment{freed}{outside}.\n{free}{self._describe_lasting()}"
            f"{format_moment(moment)}{self._list_remedies()}"
        )

    def _describe_lasting(self) -> str:
        if self.lasting is None or self.total_bytes is None:
            return ""
        excess = self.lasting.describe_excess(self.total_bytes)
        return "" if excess is None else f"{excess}.\n"

    def _list_remedies(self) -> str:
        if not self.remedies:
            return ""
        head = (
            "Remedies, with what each saves of this memory (`anyrig rehearse --remedies` measures "
            "what each saves of a step):"
        )
        return "\n".join([head, *map(str, self.remedies), ""])


class explain_oom:  # noqa: N801 (used like a function, as torch.no_grad is)
    """Add a report to an out-of-memory error that leaves a ``with`` block.

    ::

        with anyrig.memory.explain_oom():
            train()

    A `torch.OutOfMemoryError` that leaves the block gets an attribute `report`, an
    `OutOfMemoryReport`, and the report's text as a note below its message (Python 3.11 and later;
    in 3.10 as a second argument). The exception object stays the same. The block is tracked as by
    `track`, except that the history of freed blocks is not kept.

    Raises:
        MemoryTrackingError: memory is already being tracked.
    """

    def __enter__(self) -> None:
        refuse_two_recordings()
        self._recording = Recording(keeps_history=False)
        self._recording.start(sys._getframe(1))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stacks = list_stacks(traceback) or [sys._getframe(1)]
        records = self._recording.stop(*stacks)
        if isinstance(error, torch.OutOfMemoryError):
            report = report_refusal(records, stacks)
            if report is not None:
                error.report = report  # type: ignore[attr-defined]
                add_note(error, str(report))


def list_stacks(traceback: TracebackType | None) -> list[FrameType]:
    """Return the innermost frame of each thread that an exception passed through.

    The thread that raised the exception comes first. An exception of a replica's thread is raised
    again in its caller's thread.
    """
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    innermost: list[FrameType] = []
    seen: set[FrameType] = set()
    for frame in reversed(frames):
        if frame not in seen:
            innermost.append(frame)
            above: FrameType | None = frame
            while above is not None:
                seen.add(above)
                above = above.f_back
    return innermost


def report_refusal(
    records: Sequence[DeviceRecord], stacks: Sequence[FrameType]
) -> OutOfMemoryReport | None:
    """Return a report of the last request that a device refused; None if there is none.

    Args:
        records: the record of each device until the error.
        stacks: the innermost frame of each thread that the error passed through.
    """
    refusing = [record for record in records if record.timeline.refusals]
    if not refusing:
        return None  # the CPU ran out of memory, or the program raised the error itself
    record = max(refusing, key=lambda each: each.timeline.last_refusal_seconds())
    variables = [each for frame in stacks for each in find_kept_variables(frame)]
    return make_report(record, variables, stacks, take_census())


def make_report(
    record: DeviceRecord,
    variables: Sequence[KeptVariable],
    stacks: Sequence[FrameType],
    census: Census,
) -> OutOfMemoryReport:
    """Return a report of the last request that the device of `record` refused.

    Args:
        record: the record of the device until the request.
        variables: the variables to which running functions add tensors, innermost function first.
        stacks: the innermost frame of each thread.
        census: what the program holds.
    """
    refusal = record.timeline.refusals[-1]
    reason = find_reason(record, refusal, variables)
    moment = describe_moment(record, refusal.position)
    outside = None
    if record.total_bytes is not None:
        reserved = record.timeline.reserved_at(refusal.position)
        outside = record.total_bytes - refusal.free_bytes - reserved
    free = record.timeline.free_at(refusal)
    can_halve = can_be_halved(find_batch(record, refusal.position, stacks, census))
    return OutOfMemoryReport(
        record.timeline.device,
        moment,
        reason,
        record.total_bytes,
        free,
        remedies=find_remedies(
            moment,
            reason,
            census.own_models,
            torch.cuda.device_count(),
            can_halve=can_halve,
            tensors=census.tensors,
            free=free,
            half=half_dtype(record.timeline.device),
        ),
        outside_bytes=outside,
        lasting=lasting_state(record.timeline.device, census.own_models, census.optimizers),
    )
