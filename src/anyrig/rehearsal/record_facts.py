"""Turn a record into facts: steps, devices, tracks and intervals, predicted or measured."""

from __future__ import annotations

import statistics
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise

from ..virtual.record_reading import IntervalKind, Record, RecordedIntervals, RecordedTrack
from . import facts as of
from .collective_times import collective_times
from .critical_path import Piece
from .facts import Facts, Intervals, PathPiece, StepFacts, Track, TypicalStep
from .occupation import occupation_of
from .process_record import ProcessRecord
from .step_ends import count_first_steps, samples_of_steps
from .texts import Texts, name_lines

# Returns the critical path from a moment to another one.
PathReader = Callable[[float, float], tuple[PathPiece, ...]]

# Looked up by the numbers in the record, too.
_KIND_NAMES: dict[int, str] = {
    IntervalKind.KERNEL: of.KERNEL,
    IntervalKind.COPY: of.COPY,
    IntervalKind.COLLECTIVE: of.COLLECTIVE,
    IntervalKind.WAIT: of.WAIT,
    IntervalKind.HOST: of.HOST,
}


def read_record_facts(
    about: Facts,
    record: Record,
    processes: Sequence[ProcessRecord],
    *,
    path_reader: Callable[[Record, RecordTexts], PathReader],
    with_timelines: bool = True,
    alike: int = 1,
    first_step: int = 1,
) -> Facts:
    """Return `about` with what the record of some processes says.

    Args:
        about: the program and the rig.
        record: the record of all processes.
        processes: each process.
        path_reader: makes a function that finds critical paths.
        with_timelines: whether to return the intervals and the critical paths.
        alike: how many ranks each process stands for.
        first_step: the number of the first step on record.
    """
    texts = RecordTexts(record)
    path = path_reader(record, texts) if with_timelines else lambda begin, end: ()
    steps = _steps_of(path, processes, alike, first_step)
    typical = _typical_step(steps)
    window = _window_of(record, steps, typical)
    devices = [(process.rank, device) for process in processes for device in process.devices]
    first = next(((rank, device.index) for rank, device in devices), None)
    return replace(
        about,
        devices=tuple(
            device.facts(rank, occupation_of(record, rank, device.index, *window))
            for rank, device in devices
        ),
        steps=steps,
        typical_step=typical,
        tracks=_name_tracks(record.tracks),
        intervals=texts.intervals(record) if with_timelines else Intervals(),
        texts=texts.all(),
        memory=tuple(device.memory_facts(rank) for rank, device in devices),
        collectives=None
        if typical is None or first is None
        else collective_times(record, *first, *window, len(typical.of_steps)),
    )


class RecordTexts(Texts):
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
    path: PathReader, processes: Sequence[ProcessRecord], alike: int, first_step: int
) -> tuple[StepFacts, ...]:
    """Return the steps that all processes have taken; a step ends with the last of them.

    Each process stands for `alike` ranks.
    """
    ends_by_step = list(zip(*(process.ends for process in processes), strict=False))
    moments = [max(end.seconds for end in ends) for ends in ends_by_step]
    begins = [min(process.begin for process in processes), *moments]
    first = count_first_steps([end - begins[i] for i, end in enumerate(moments)])
    waits = [_count_waits(process) for process in processes]
    samples = [samples_of_steps([end.samples for end in each.ends]) for each in processes]
    return tuple(
        StepFacts(
            number=i + first_step,
            is_first=i < first,
            begin_seconds=begins[i],
            end_seconds=moments[i],
            samples=_sum_samples([each[i] for each in samples], alike),
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


def _sum_samples(samples: Sequence[int | None], alike: int) -> int | None:
    known = [count for count in samples if count is not None]
    return alike * sum(known) if len(known) == len(samples) else None


def _typical_step(steps: Sequence[StepFacts]) -> TypicalStep | None:
    later = [step for step in steps if not step.is_first] or list(steps)
    if not later:
        return None
    typical = _similar_steps(later)
    seconds = statistics.median(step.seconds for step in typical)
    rates = [
        step.samples / step.seconds
        for step in typical
        if step.samples is not None and step.seconds > 0
    ]
    rate = statistics.median(rates) if rates and len(rates) == len(typical) else None
    return TypicalStep(seconds, rate, tuple(step.number for step in typical))


def _similar_steps(steps: list[StepFacts]) -> list[StepFacts]:
    """Return the longest run of consecutive steps between half and twice the median time.

    This leaves out steps in which the program also evaluates or saves. If more than a third of the
    steps are outside of that range, no run stands for the others, and all steps are returned.
    """
    median = statistics.median(step.seconds for step in steps)
    is_similar = [median / 2 <= step.seconds <= 2 * median for step in steps]
    if 3 * sum(is_similar) < 2 * len(steps):
        return steps
    runs: list[list[StepFacts]] = [[]]
    for step, similar in zip(steps, is_similar, strict=True):
        if similar:
            runs[-1].append(step)
        else:
            runs.append([])
    return max(reversed(runs), key=len)


def _window_of(
    record: Record, steps: Sequence[StepFacts], typical: TypicalStep | None
) -> tuple[float, float]:
    """Return the start and the end of the typical steps; without steps, of the record."""
    if typical is None:
        intervals = record.intervals
        return min(intervals.begin, default=0.0), max(intervals.end, default=0.0)
    by_number = {step.number: step for step in steps}
    numbers = typical.of_steps
    return by_number[numbers[0]].begin_seconds, by_number[numbers[-1]].end_seconds


def _name_tracks(tracks: Sequence[RecordedTrack]) -> tuple[Track, ...]:
    named = []
    threads: dict[int, int] = defaultdict(int)
    others: dict[int, int] = defaultdict(int)
    several = len({track.rank for track in tracks}) > 1
    for track in tracks:
        if track.device is not None:
            title = f"cuda:{track.device} stream {track.stream}"
            title = f"rank {track.rank} {title}" if several else title
        elif track.in_backward:
            threads[track.rank] += 1
            title = f"rank {track.rank} host, backward {threads[track.rank]}"
        elif track.thread:
            others[track.rank] += 1
            title = f"rank {track.rank} host, thread {others[track.rank]}"
        else:
            title = f"rank {track.rank} host"
        named.append(Track(title, track.rank, track.device, track.stream))
    return tuple(named)
