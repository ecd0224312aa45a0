"""Turn the records of processes into facts."""

from __future__ import annotations

import statistics
import warnings
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise

from ..virtual.known_errors import error_shares
from ..virtual.record_reading import IntervalKind, Record, RecordedIntervals, RecordedTrack
from ..virtual.rig import VirtualDevice, VirtualRig
from . import facts as of
from .collective_times import collective_times
from .critical_path import Piece, Timeline
from .facts import (
    ClockError,
    DeviceFacts,
    Facts,
    Intervals,
    MemoryFacts,
    PathPiece,
    PeakMemory,
    StepFacts,
    Track,
    TypicalStep,
)
from .findings.analysis import analyse
from .findings.find import find_all
from .occupation import Occupation, occupation_of
from .process_record import ProcessRecord, UsedDevice, merge_records
from .step_ends import StepEnd, count_first_steps
from .texts import Texts, name_lines

# Looked up by the numbers in the record, too.
_KIND_NAMES: dict[int, str] = {
    IntervalKind.KERNEL: of.KERNEL,
    IntervalKind.COPY: of.COPY,
    IntervalKind.COLLECTIVE: of.COLLECTIVE,
    IntervalKind.WAIT: of.WAIT,
    IntervalKind.HOST: of.HOST,
}


def read_facts(
    about: Facts,
    rig: VirtualRig,
    processes: Sequence[ProcessRecord],
    *,
    with_timelines: bool = True,
) -> Facts:
    """Return `about` with all that is known about the processes of a program.

    Without `with_timelines`, the intervals and the critical paths are left out: a summary does not
    show them.
    """
    record = merge_records(processes)
    texts = _RecordTexts(record)
    ranks = 1 if about.assumed_ranks is None else about.assumed_ranks.ranks
    steps = _steps_of(record, texts if with_timelines else None, processes, ranks)
    typical = _typical_step(steps)
    window = _window_of(record, steps, typical)
    devices, memory = [], []
    for process in processes:
        for used in process.devices:
            occupation = occupation_of(record, process.rank, used.index, *window)
            device = rig.devices[used.position]
            devices.append(_device_facts(process.rank, used, device, occupation))
            memory.append(_memory_facts(process.rank, used))
    try:
        analysis = analyse(record, processes, rig, steps, typical, devices)
        findings = () if analysis is None else find_all(analysis)
    except Exception as error:  # a mistake here must not cost the figures of a long rehearsal
        findings = ()
        said = f"{type(error).__name__}: {error}"
        warnings.warn(f"no findings, because looking for them failed: {said}", stacklevel=2)
    first = next(((one.rank, one.index) for one in devices), None)
    return replace(
        about,
        devices=tuple(devices),
        clock_errors=_clock_errors(rig),
        steps=steps,
        typical_step=typical,
        tracks=_name_tracks(record.tracks),
        intervals=texts.intervals(record) if with_timelines else Intervals(),
        texts=texts.all(),
        memory=tuple(memory),
        findings=findings,
        collectives=None
        if typical is None or first is None
        else collective_times(record, *first, *window, len(typical.of_steps)),
    )


class _RecordTexts(Texts):
    """The texts of a record, and its columns with their numbers."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._kinds = self.numbers_of(_KIND_NAMES[kind] for kind in IntervalKind)
        self._names = self.numbers_of(record.names)
        self._lines = self.numbers_of(name_lines(record.lines))
        self._modules = self.numbers_of(record.modules)

    def intervals(self, record: Record) -> Intervals:
        """Return the intervals of the record in the order in which they begin."""
        columns = record.intervals
        order = sorted(range(len(columns)), key=columns.begin.__getitem__)

        def ordered(column: Sequence[int], names: list[int] | None = None) -> array[int]:
            if names is None:
                return array("q", map(column.__getitem__, order))
            return array("q", (names[column[i]] if column[i] >= 0 else -1 for i in order))

        return Intervals(
            track=ordered(columns.track),
            begin_seconds=array("d", map(columns.begin.__getitem__, order)),
            seconds=array("d", (columns.end[i] - columns.begin[i] for i in order)),
            kind=ordered(columns.kind, self._kinds),
            name=ordered(columns.name, self._names),
            module=ordered(columns.module, self._modules),
            line=ordered(columns.line, self._lines),
            bytes=array("q", map(int, map(columns.bytes.__getitem__, order))),
            flow=ordered(columns.flow),
        )

    def path(self, record: Record, pieces: Iterable[Piece]) -> tuple[PathPiece, ...]:
        """Return a critical path as facts, with neighbours of one kind, module and line joined.

        A track or a name that the neighbours do not share becomes None.
        """
        columns, joined = record.intervals, []
        for (kind, module, line), group in groupby(pieces, key=partial(self._place, columns)):
            seconds = 0.0
            tracks, names = set(), set()
            for begin, end, number, _ in group:
                seconds += end - begin
                tracks.add(None if number is None else columns.track[number])
                names.add(None if number is None else _named(self._names, columns.name[number]))
            joined.append(PathPiece(kind, seconds, _only(tracks), _only(names), module, line))
        return tuple(joined)

    def _place(
        self, columns: RecordedIntervals, piece: Piece
    ) -> tuple[str, int | None, int | None]:
        """Return the kind, the module and the line of a piece of a critical path."""
        number = piece.interval
        if number is None:
            return (of.WAIT if piece.is_wait else of.HOST), None, None
        return (
            _KIND_NAMES[columns.kind[number]],
            _named(self._modules, columns.module[number]),
            _named(self._lines, columns.line[number]),
        )


def _only(values: set[int | None]) -> int | None:
    """Return the one value of a set; None if there are several."""
    return next(iter(values)) if len(values) == 1 else None


def _named(names: list[int], number: int) -> int | None:
    return names[number] if number >= 0 else None


def _steps_of(
    record: Record, texts: _RecordTexts | None, processes: Sequence[ProcessRecord], alike: int
) -> tuple[StepFacts, ...]:
    """Return the steps that all processes have taken; a step ends with the last of them.

    Without `texts`, they have no critical paths. Each process stands for `alike` ranks.
    """
    timeline = None if texts is None else Timeline(record)

    def path(begin: float, end: float) -> tuple[PathPiece, ...]:
        if texts is None or timeline is None:
            return ()
        return texts.path(record, timeline.critical_path(begin, end))

    ends_by_step = list(zip(*(process.ends for process in processes), strict=False))
    moments = [max(end.seconds for end in ends) for ends in ends_by_step]
    begins = [min(process.begin for process in processes), *moments]
    first = count_first_steps([end - begins[i] for i, end in enumerate(moments)])
    waits = [_count_waits(process) for process in processes]
    return tuple(
        StepFacts(
            number=i + 1,
            is_first=i < first,
            begin_seconds=begins[i],
            end_seconds=moments[i],
            samples=_sum_samples(ends, alike),
            waits=max(found[i] for found in waits),
            loader_wall_seconds=max(end.loader_wall_seconds for end in ends),
            path=path(begins[i], moments[i]),
        )
        for i, ends in enumerate(ends_by_step)
    )


def _count_waits(process: ProcessRecord) -> list[int]:
    """Return for each step how often the host waited, in the order of the program.

    A value that is read after the optimizer's step counts in the next step, if there is one.
    """
    intervals, wait = process.record.intervals, int(IntervalKind.WAIT)
    waits = sorted(
        [begin for begin, kind in zip(intervals.begin, intervals.kind, strict=True) if kind == wait]
    )
    begins = [process.host_begin, *(end.host_seconds for end in process.ends)]
    if len(process.ends) == 1:
        begins[1] = float("inf")
    before = [bisect_left(waits, begin) for begin in begins]
    return [until - since for since, until in pairwise(before)]


def _sum_samples(ends: Sequence[StepEnd], alike: int) -> int | None:
    samples = [end.samples for end in ends if end.samples is not None]
    return alike * sum(samples) if len(samples) == len(ends) else None


def _typical_step(steps: Sequence[StepFacts]) -> TypicalStep | None:
    typical = [step for step in steps if not step.is_first] or list(steps)
    if not typical:
        return None
    seconds = statistics.median(step.seconds for step in typical)
    rates = [
        step.samples / step.seconds
        for step in typical
        if step.samples is not None and step.seconds > 0
    ]
    rate = statistics.median(rates) if rates and len(rates) == len(typical) else None
    return TypicalStep(seconds, rate, tuple(step.number for step in typical))


def _window_of(
    record: Record, steps: Sequence[StepFacts], typical: TypicalStep | None
) -> tuple[float, float]:
    """Return the start and the end of the typical steps; without steps, of the record."""
    if typical is None:
        intervals = record.intervals
        return min(intervals.begin, default=0.0), max(intervals.end, default=0.0)
    numbers = typical.of_steps
    return steps[numbers[0] - 1].begin_seconds, steps[numbers[-1] - 1].end_seconds


def _device_facts(
    rank: int, used: UsedDevice, device: VirtualDevice, occupation: Occupation
) -> DeviceFacts:
    peak = used.memory.peak
    return DeviceFacts(
        index=used.index,
        rank=rank,
        card=device.key,
        capacity_bytes=device.memory_bytes,
        peak=PeakMemory(
            total_bytes=peak.total_bytes,
            tensor_bytes=peak.tensor_bytes,
            workspace_bytes=peak.workspace_bytes,
            context_bytes=peak.context_bytes + peak.mapped_bytes,
            collective_bytes=peak.collective_bytes,
            cached_bytes=peak.cached_bytes,
            headroom_bytes=device.memory_bytes - peak.total_bytes,
        ),
        busy_share=occupation.busy,
        waiting_share=occupation.waiting,
        idle_share=occupation.idle,
    )


def _memory_facts(rank: int, used: UsedDevice) -> MemoryFacts:
    samples = used.memory.samples
    return MemoryFacts(
        device=used.index,
        rank=rank,
        seconds=tuple(one.seconds for one in samples),
        tensor_bytes=tuple(one.tensor_bytes for one in samples),
        workspace_bytes=tuple(one.workspace_bytes for one in samples),
        cached_bytes=tuple(one.cached_bytes for one in samples),
        context_bytes=tuple(
            one.context_bytes + one.collective_bytes + one.mapped_bytes for one in samples
        ),
        kinds_at_peak=used.memory.kinds,
    )


def _clock_errors(rig: VirtualRig) -> tuple[ClockError, ...]:
    return tuple(
        ClockError(card, family, share)
        for card, shares in error_shares(rig).items()
        for family, share in shares.items()
    )


def _name_tracks(tracks: Sequence[RecordedTrack]) -> tuple[Track, ...]:
    named = []
    threads: dict[int, int] = defaultdict(int)
    several = len({track.rank for track in tracks}) > 1
    for track in tracks:
        if track.device is not None:
            title = f"cuda:{track.device} stream {track.stream}"
            title = f"rank {track.rank} {title}" if several else title
        elif track.in_backward:
            threads[track.rank] += 1
            title = f"rank {track.rank} host, backward {threads[track.rank]}"
        else:
            title = f"rank {track.rank} host"
        named.append(Track(title, track.rank, track.device, track.stream))
    return tuple(named)
