"""`Analysis`: the typical steps of a rehearsal, ready to be scheduled again under a change."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...virtual.clock_settings import ClockSettings
from ...virtual.predicted_seconds import launch_seconds, predict_works
from ...virtual.record_reading import IntervalKind, Record
from ...virtual.rig import VirtualDevice, VirtualRig
from ..facts import DeviceFacts, Facts, TypicalStep
from ..process_record import ProcessRecord
from ..texts import name_lines
from .change import Change, typical_seconds
from .kernel_works import (
    Kernel,
    batches_of,
    kernels_of_like_step,
    kernels_of_step,
)
from .schedule import Schedule, StepSpan
from .schedule_building import schedule_of

# A saving below this fraction of the step is not reported.
LEAST_SHARE = 0.02

_MOST_STEPS = 6
_MOST_INTERVALS = 200_000
# No saving is computed if the schedule without a change is off by more than this fraction.
_TOLERANCE = 0.005


@dataclass(frozen=True)
class Analysis:
    """The typical steps of a rehearsal.

    Attributes:
        record: the record of all processes.
        schedule: the tasks of the steps.
        scheduled_seconds: how long a typical step takes in the schedule without a change.
        step_seconds: how long a typical step takes.
        samples: the samples of a step; None if unknown.
        kernels: the work of each task that is a kernel, by the task's place; empty if unknown.
        layer_sizes: the sizes of the optimizer's matrices and filters.
        gpus: the used devices of the rig by (rank, CUDA index).
        devices: the facts of the devices.
        lines: the names of the record's lines, such as ``train.py:31``.
    """

    record: Record
    schedule: Schedule
    scheduled_seconds: float
    step_seconds: float
    samples: int | None
    kernels: Mapping[int, Kernel]
    layer_sizes: frozenset[int]
    gpus: Mapping[tuple[int, int], VirtualDevice]
    devices: tuple[DeviceFacts, ...]
    lines: tuple[str, ...]
    clock: ClockSettings

    def saving(self, change: Change) -> float:
        """Return by how many seconds a typical step gets shorter with a change."""
        return self.scheduled_seconds - typical_seconds(self.schedule, change)

    def matters(self, seconds: float) -> bool:
        """Return whether a saving is large enough for a finding."""
        return seconds >= LEAST_SHARE * self.step_seconds

    def name(self, place: int) -> str:
        """Return the name of a task's operator; empty if unknown."""
        name = self.record.intervals.name[self.schedule.tasks[place].interval]
        return self.record.names[name] if name >= 0 else ""

    def line(self, place: int) -> str | None:
        """Return the line of a task, such as ``train.py:31``; None if unknown."""
        line = self.record.intervals.line[self.schedule.tasks[place].interval]
        return self.lines[line] if line >= 0 else None

    def module(self, place: int) -> str:
        """Return the name of a task's module; empty if unknown."""
        module = self.record.intervals.module[self.schedule.tasks[place].interval]
        return self.record.modules[module] if module >= 0 else ""

    def bytes(self, place: int) -> float:
        """Return the bytes of a task; -1 if unknown."""
        return self.record.intervals.bytes[self.schedule.tasks[place].interval]

    def flow(self, place: int) -> int:
        """Return the number that the ends of a copy, or the parts of a collective, share; or -1."""
        return self.record.intervals.flow[self.schedule.tasks[place].interval]

    def device(self, place: int) -> tuple[int, int] | None:
        """Return the (rank, CUDA index) of a task; None on the host."""
        track = self.record.tracks[self.schedule.tasks[place].track]
        return None if track.device is None else (track.rank, track.device)

    def seconds_on_record(self, place: int) -> float:
        """Return how long a task took in the rehearsal."""
        number = self.schedule.tasks[place].interval
        return self.record.intervals.end[number] - self.record.intervals.begin[number]

    def of_kind(self, kind: IntervalKind) -> list[int]:
        """Return the places of the tasks of a kind."""
        return [place for place, task in enumerate(self.schedule.tasks) if task.kind == kind]

    def repriced(self, works: Mapping[int, Sequence[Mapping[str, float]]]) -> dict[int, float]:
        """Return how many seconds kernels would take with other works, by place.

        A kernel that a concurrent collective slowed down keeps its slowdown. Places with the same
        list of works are predicted once.
        """
        by_device: dict[tuple[int, int], list[int]] = {}
        for place in works:
            device = self.device(place)
            assert device is not None
            by_device.setdefault(device, []).append(place)
        seconds = {}
        for device, places in by_device.items():
            distinct = {id(works[place]): works[place] for place in places}
            flat = [_fields_of(work) for one in distinct.values() for work in one]
            predicted = iter(predict_works(self.gpus[device], flat, self.clock))
            sums = {key: sum(next(predicted) for _ in one) for key, one in distinct.items()}
            for place in places:
                new = sums[id(works[place])]
                old = self.kernels[place].seconds
                seconds[place] = self.schedule.tasks[place].seconds * new / old
        return seconds


def _fields_of(work: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in work.items() if name != "seconds"}


def analyse(
    record: Record,
    processes: Sequence[ProcessRecord],
    rig: VirtualRig,
    facts: Facts,
) -> Analysis | None:
    """Return the typical steps of a rehearsal.

    Return None if there are no steps, if the record no longer has them, or if their schedule does
    not reproduce the record: then edges are missing, and no saving can be computed.
    """
    steps, typical, devices = facts.steps, facts.typical_step, facts.devices
    if typical is None or steps[typical.of_steps[0] - 1].is_first:
        return None
    gpus = {
        (process.rank, index): rig.devices[position]
        for process in processes
        for index, position in enumerate(process.positions)
    }
    kernels, first, last = _choose_steps(record, processes, typical)
    begin = steps[first - 1].begin_seconds
    if begin < record.intervals.complete_from:
        return None
    each_launch = (launch_seconds(gpu, facts.clock) for gpu in gpus.values())
    seconds_of_launch = max(each_launch, default=0.0)
    span = StepSpan(begin, {one.rank: _hosts_of(one)[first - 1 : last + 1] for one in processes})
    schedule = schedule_of(record, span, batches_of(kernels, seconds_of_launch))
    expected = typical_seconds_of([steps[number - 1].seconds for number in range(first, last + 1)])
    tracks = {record.tracks[task.track] for task in schedule.tasks}
    used = {(track.rank, track.device) for track in tracks if track.device is not None}
    scheduled = typical_seconds(schedule)
    is_off = abs(scheduled - expected) > _TOLERANCE * expected
    if is_off or not used <= gpus.keys():
        return None
    return Analysis(
        record,
        schedule,
        scheduled,
        expected,
        steps[last - 1].samples,
        {
            place: kernels[task.interval]
            for place, task in enumerate(schedule.tasks)
            if task.interval in kernels
        },
        frozenset(
            size
            for process in processes
            if process.works is not None
            for size in process.works.layer_sizes
        ),
        {device: gpu for device, gpu in gpus.items() if device in used},
        tuple(devices),
        tuple(name_lines(record.lines)),
        facts.clock,
    )


def typical_seconds_of(seconds: Sequence[float]) -> float:
    """Return the median of the steps after the first one, as `typical_seconds` does."""
    return statistics.median(seconds[1:] or seconds)


def _choose_steps(
    record: Record, processes: Sequence[ProcessRecord], typical: TypicalStep
) -> tuple[dict[int, Kernel], int, int]:
    """Return the steps to schedule as (kernels by interval, first step, last step).

    These are the last typical steps with the same kernels as the step whose works were read.
    """
    last = typical.of_steps[-1]
    first = max(typical.of_steps[0], last - _MOST_STEPS + 1)
    read = [process.works.step for process in processes if process.works is not None]
    numbers = _intervals_by_step(record, processes, {*read, *range(first, last + 1)})
    while first < last and sum(len(numbers[n]) for n in range(first, last + 1)) > _MOST_INTERVALS:
        first += 1
    known: dict[int, Kernel] = {}
    for process in processes:
        if process.works is None:
            return {}, first, last
        own = _of_rank(record, numbers[process.works.step], process.rank)
        found = kernels_of_step(record, process, own)
        if not found:
            return {}, first, last
        known |= found
    kernels: dict[int, Kernel] = {}
    for number in range(last, first - 1, -1):
        found = kernels_of_like_step(record, known, numbers[number])
        if not found:
            return (kernels, number + 1, last) if kernels else ({}, first, last)
        kernels |= found
    return kernels, first, last


def _of_rank(record: Record, numbers: Iterable[int], rank: int) -> list[int]:
    tracks, track = record.tracks, record.intervals.track
    return [number for number in numbers if tracks[track[number]].rank == rank]


def _intervals_by_step(
    record: Record, processes: Sequence[ProcessRecord], steps: set[int]
) -> dict[int, list[int]]:
    """Return, for each of these steps, the intervals that it launched on the devices."""
    columns = record.intervals
    hosts = {process.rank: _hosts_of(process) for process in processes}
    hosts_of_track = [
        None if track.device is None else hosts[track.rank] for track in record.tracks
    ]
    found: dict[int, list[int]] = {number: [] for number in steps}
    earliest = min(one[min(steps) - 1] for one in hosts.values() if len(one) >= min(steps))
    begins = columns.begin
    for number, launch in enumerate(columns.launch):
        if launch < 0 or begins[launch] < earliest:
            continue
        moments = hosts_of_track[columns.track[number]]
        step = 0 if moments is None else bisect_right(moments, begins[launch])
        if step in found:
            found[step].append(number)
    return found


def _hosts_of(process: ProcessRecord) -> list[float]:
    """Return the host's time at the start of the first step and at the end of each step."""
    return [process.host_begin, *(end.host_seconds for end in process.ends)]
