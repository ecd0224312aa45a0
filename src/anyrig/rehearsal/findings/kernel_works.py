"""Which work records belong to which intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...virtual.record_reading import IntervalKind, Record
from ..process_record import ProcessRecord
from .schedule import KernelBatch

# One work record: the fields of `Work` in csrc/time/work.h, and `seconds`.
Work = dict[str, float]


@dataclass(frozen=True)
class Kernel:
    """The work of one interval.

    Attributes:
        works: its work records.
        seconds: what the clock predicted for them.
    """

    works: tuple[Work, ...]
    seconds: float


def kernels_of_step(
    record: Record, process: ProcessRecord, launched: Iterable[int]
) -> dict[int, Kernel]:
    """Return the kernels of the step whose works were read, by their intervals.

    The result is empty if the works do not match the intervals.

    Args:
        record: the record of all processes.
        process: the process.
        launched: the intervals of the step's work on the devices of the process, in the order of
            their recording.
    """
    if process.works is None:
        return {}
    names = list(process.works.columns)
    rows = [
        dict(zip(names, row, strict=True))
        for row in zip(*process.works.columns.values(), strict=True)
    ]
    rows = [row for row in rows if row["seconds"] > 0]
    found: dict[int, Kernel] = {}
    next_row = 0
    for number in launched:
        bytes_ = record.intervals.bytes[number]
        if record.intervals.kind[number] != IntervalKind.KERNEL or bytes_ < 0:
            continue
        works: list[Work] = []
        sum_ = 0.0
        while next_row < len(rows) and (not works or sum_ < bytes_):
            works.append(rows[next_row])
            sum_ += rows[next_row]["bytes_read"] + rows[next_row]["bytes_written"]
            next_row += 1
        if not works or abs(sum_ - bytes_) > 1e-6 * max(bytes_, 1.0):
            return {}
        found[number] = Kernel(tuple(works), sum(work["seconds"] for work in works))
    return found if next_row == len(rows) else {}


def kernels_of_like_step(
    record: Record, known: Mapping[int, Kernel], intervals: Iterable[int]
) -> dict[int, Kernel]:
    """Return the kernels of a step that repeats the known one, matched in order on each stream.

    The result is empty if the steps differ.
    """
    known_by_track, by_track = _by_track(record, known), _by_track(record, intervals)
    if known_by_track.keys() != by_track.keys():
        return {}
    found: dict[int, Kernel] = {}
    for track, numbers in by_track.items():
        originals = known_by_track[track]
        if _shape_of(record, originals) != _shape_of(record, numbers):
            return {}
        found |= {number: known[one] for number, one in zip(numbers, originals, strict=True)}
    return found


def batches_of(kernels: Mapping[int, Kernel], seconds_of_launch: float) -> dict[int, KernelBatch]:
    """Return the intervals whose calls launch several kernels."""
    batches = {}
    for number, kernel in kernels.items():
        count = sum(work["kernels"] for work in kernel.works)
        if count > 1:
            batches[number] = KernelBatch(
                (count - 1) * seconds_of_launch, kernel.seconds, kernel.seconds / count
            )
    return batches


def _by_track(record: Record, intervals: Iterable[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for number in sorted(intervals):
        is_kernel = record.intervals.kind[number] == IntervalKind.KERNEL
        if is_kernel and record.intervals.bytes[number] >= 0:
            found[record.intervals.track[number]].append(number)
    return dict(found)


def _shape_of(record: Record, numbers: Iterable[int]) -> list[tuple[int, float]]:
    columns = record.intervals
    return [(columns.name[number], columns.bytes[number]) for number in numbers]
