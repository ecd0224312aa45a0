"""What one process of a rehearsal has recorded, and the record of all of them together."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

from ..virtual.build import load_extension
from ..virtual.record_reading import (
    MemoryCurve,
    Record,
    RecordedIntervals,
    read_memory_curve,
    read_record,
)
from .measured.measured_device import MeasuredDevice
from .step_ends import StepEnd
from .used_device import UsedDevice
from .work_log import StepWorks

# The numbers of flows from here on are the same in all ranks of a collective
# (csrc/collectives/collective.cpp).
SHARED_FLOWS = 1 << 62


@dataclass(frozen=True)
class ProcessRecord:
    """What one process did.

    Attributes:
        rank: its rank; 0 in a program of one process.
        record: what happened on its host and its devices.
        begin: when its first step began, in seconds.
        host_begin: the host's time then.
        ends: the ends of its steps.
        devices: the devices that it used.
        works: what the kernels of one of its steps computed; None if unknown.
        positions: the place in the rig of each device that it sees, by CUDA index.
        steps_taken: the steps that a measured process took, profiled or not.
        problems: why something of a measured process is missing, a sentence each.
    """

    rank: int
    record: Record
    begin: float
    host_begin: float
    ends: tuple[StepEnd, ...]
    devices: tuple[UsedDevice | MeasuredDevice, ...]
    works: StepWorks | None = None
    positions: tuple[int, ...] = ()
    steps_taken: int = 0
    problems: tuple[str, ...] = ()


def record_of_process(
    begin: float,
    host_begin: float,
    ends: Iterable[StepEnd],
    rank: int = 0,
    works: StepWorks | None = None,
) -> ProcessRecord:
    """Return what this process has done since `begin`, when its host's time was `host_begin`.

    The process must have a virtual rig.
    """
    from ..virtual.installed import installation

    installed = installation()
    assert installed is not None
    seen = load_extension().devices()
    devices = []
    for index, device in enumerate(seen):
        curve = read_memory_curve(index)
        if curve is not None:
            gpu = installed.rig.devices[device.position]
            memory = _since(host_begin, curve)
            devices.append(UsedDevice(index, gpu.key, gpu.memory_bytes, memory))
    return ProcessRecord(
        rank,
        read_record(),
        begin,
        host_begin,
        tuple(ends),
        tuple(devices),
        works,
        tuple(device.position for device in seen),
    )


def _since(begin: float, curve: MemoryCurve) -> MemoryCurve:
    """Return a curve from the host's time `begin` on; the record may have begun earlier.

    A sample has the time of the launch before it, so the last sample before `begin` is kept too.
    """
    before = sum(one.seconds < begin for one in curve.samples)
    kept = curve.samples[max(0, before - 1) :]
    samples = tuple(one if one.seconds >= begin else replace(one, seconds=begin) for one in kept)
    if before <= 1:
        return MemoryCurve(curve.peak, samples, curve.kinds)
    # The order of `is_larger` in csrc/memory/memory_curve.cpp.
    peak = max(samples, key=lambda one: (one.total_bytes, one.tensor_bytes + one.workspace_bytes))
    return MemoryCurve(peak, samples, curve.kinds if peak == curve.peak else None)


def merge_records(processes: Sequence[ProcessRecord]) -> Record:
    """Return one record of all processes, whose virtual clocks agree.

    The tracks, names, lines and modules of the processes are concatenated. In the merged record, a
    critical path can go from one rank to another: a collective begins when the launch or the work
    of its last rank ends.
    """
    records = [process.record for process in processes]
    all_intervals = [record.intervals for record in records]

    def joined(get: Callable[[RecordedIntervals], array[int]], sizes: list[int]) -> array[int]:
        """Concatenate a column of indexes into tables, which have these sizes in the records."""
        column = array("q")
        for intervals, offset in zip(all_intervals, accumulate(sizes, initial=0), strict=False):
            own = get(intervals)
            column.extend(own if offset == 0 else (one + offset if one >= 0 else -1 for one in own))
        return column

    def floats(get: Callable[[RecordedIntervals], array[float]]) -> array[float]:
        column = array("d")
        for intervals in all_intervals:
            column.extend(get(intervals))
        return column

    flows = _FlowNumbers()
    intervals = RecordedIntervals(
        complete_from=max(one.complete_from for one in all_intervals),
        begin=floats(lambda one: one.begin),
        end=floats(lambda one: one.end),
        bytes=floats(lambda one: one.bytes),
        launch=joined(lambda one: one.launch, [len(one) for one in all_intervals]),
        flow=array(
            "q",
            [
                -1 if flow < 0 else flows.number_of(process, flow)
                for process, one in enumerate(all_intervals)
                for flow in one.flow
            ],
        ),
        track=joined(lambda one: one.track, [len(one.tracks) for one in records]),
        name=joined(lambda one: one.name, [len(one.names) for one in records]),
        nodes=array("q", chain.from_iterable(one.nodes for one in all_intervals)),
        kind=array("q", chain.from_iterable(one.kind for one in all_intervals)),
        cause=array("q", chain.from_iterable(one.cause for one in all_intervals)),
        line=joined(lambda one: one.line, [len(one.lines) for one in records]),
        module=joined(lambda one: one.module, [len(one.modules) for one in records]),
    )
    return Record(
        intervals,
        tuple(
            replace(track, rank=process.rank)
            for process in processes
            for track in process.record.tracks
        ),
        tuple(chain.from_iterable(one.names for one in records)),
        tuple(chain.from_iterable(one.lines for one in records)),
        tuple(chain.from_iterable(one.modules for one in records)),
    )


class _FlowNumbers:
    """Small numbers for the flows of all processes."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def number_of(self, process: int, flow: int) -> int:
        owner = -1 if flow >= SHARED_FLOWS else process
        return self._numbers.setdefault((owner, flow), len(self._numbers))
