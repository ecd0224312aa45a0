"""Build the schedule of some steps from the record."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ...virtual.record_reading import Cause, IntervalKind, Record
from .schedule import Edge, Follows, KernelBatch, Schedule, StepSpan, Task

# The intervals that occupy a track or a resource one after the other: their ends, and their
# numbers.
_Lane = tuple[list[float], list[int]]

_PARALLEL = (IntervalKind.COPY, IntervalKind.COLLECTIVE)
_NO_TIME = 1e-12  # seconds, the rounding errors of sums


def schedule_of(
    record: Record, span: StepSpan, batches: Mapping[int, KernelBatch] | None = None
) -> Schedule:
    """Return the tasks of the steps of `span`.

    Args:
        record: the record of all processes.
        span: the steps.
        batches: the intervals of calls that launch several kernels.
    """
    return _Builder(record, span, batches or {}).build()


class _Builder:
    def __init__(
        self,
        record: Record,
        span: StepSpan,
        batches: Mapping[int, KernelBatch],
    ) -> None:
        self._record, self._span = record, span
        self._columns = record.intervals
        self._batches = batches
        # Work that ended before the host began the steps does not belong to them, and did not delay
        # their work.
        earliest = min((hosts[0] for hosts in span.hosts.values() if hosts), default=0.0)
        ends = self._columns.end
        self._recent = [number for number, end in enumerate(ends) if end >= earliest]
        self._step_of = self._find_steps()
        self._order = sorted(self._step_of, key=lambda number: (self._moment_of(number), number))
        self._place = {number: place for place, number in enumerate(self._order)}
        self._ended_at: dict[float, list[int]] = defaultdict(list)
        for number in self._recent:
            self._ended_at[ends[number]].append(number)
        self._lanes: dict[object, _Lane] = defaultdict(lambda: ([], []))
        self._lanes_of: dict[tuple[int, int, int], list[_Lane]] = {}

    def build(self) -> Schedule:
        # Fill the lanes in the order of ends. What came before the steps counts too.
        columns = self._columns
        for number in sorted(self._recent, key=columns.end.__getitem__):
            for ends, numbers in self._lanes_with(number):
                ends.append(columns.end[number])
                numbers.append(number)
        tasks = [self._task_of(number) for number in self._order]
        tasks = _joining_collectives(tasks, [columns.flow[number] for number in self._order])
        steps = max(self._step_of.values(), default=-1) + 1
        return Schedule(self._span.begin, steps, tuple(map(self._with_delay, tasks)))

    def _find_steps(self) -> dict[int, int]:
        """Return the step of each interval that belongs to the scheduled steps."""
        columns, tracks = self._columns, self._record.tracks
        found: dict[int, int] = {}
        for number in self._recent:
            track = tracks[columns.track[number]]
            hosts = self._span.hosts.get(track.rank, ())
            if track.device is None and hosts:
                step = bisect_right(hosts, columns.begin[number]) - 1
                if 0 <= step < len(hosts) - 1:
                    found[number] = step
        for number in self._recent:
            launch = columns.launch[number]
            if launch in found:
                found[number] = found[launch]
        return found

    def _moment_of(self, number: int) -> float:
        """Return when a task begins; for a wait, when it ends, which is after the awaited work."""
        columns = self._columns
        is_wait = columns.kind[number] == IntervalKind.WAIT
        return (columns.end if is_wait else columns.begin)[number]

    def _lanes_with(self, number: int) -> list[_Lane]:
        """Return the lane of an interval's track, and the lane of the resource that it occupies."""
        columns = self._columns
        alike = columns.track[number], columns.kind[number], columns.name[number]
        lanes = self._lanes_of.get(alike)
        if lanes is None:
            track = self._record.tracks[columns.track[number]]
            keys: list[object] = [columns.track[number]]
            if track.device is None:
                keys.append(("host", track.rank, track.in_backward))
            elif columns.kind[number] == IntervalKind.KERNEL:
                keys.append(("kernels", track.rank, track.device))
            elif columns.kind[number] == IntervalKind.COPY:
                keys.append(("link", track.rank, track.device, self._direction_of(number)))
            lanes = self._lanes_of[alike] = [self._lanes[key] for key in keys]
        return lanes

    def _direction_of(self, number: int) -> str:
        name = self._record.names[self._columns.name[number]]
        if "-> Device" in name:
            return "in"
        return "out" if "Device ->" in name or "scalar" in name else "between"

    def _previous(self, lane: _Lane, moment: float, before: int) -> int | None:
        ends, numbers = lane
        place = bisect_right(ends, moment + _NO_TIME) - 1
        while place >= 0 and numbers[place] == before:
            place -= 1
        return numbers[place] if place >= 0 else None

    def _task_of(self, number: int) -> Task:
        columns = self._columns
        kind = IntervalKind(columns.kind[number])
        track = self._record.tracks[columns.track[number]]
        begin = columns.begin[number]
        seconds = columns.end[number] - begin
        edges: dict[int, Edge] = {}
        floor = 0.0
        launch: int | None = None
        batch = self._batches.get(number)
        tail = 0.0
        if batch is not None:
            seconds, tail = batch.seconds, batch.last_seconds

        def follow(other: int | None, why: Follows, head_start: float = 0.0) -> None:
            nonlocal floor
            if other is None or other == number:
                return
            place = self._place.get(other)
            if place is None:
                floor = max(floor, columns.end[other] - head_start)
            elif place not in edges and place < self._place[number]:
                edges[place] = Edge(why, place, head_start)

        if track.device is None:
            follow(self._previous(self._lanes[columns.track[number]], begin, number), Follows.TRACK)
            # A backward pass has threads of its own. The program's thread continues after all of
            # them.
            others = self._lanes["host", track.rank, not track.in_backward]
            follow(self._previous(others, begin, number), Follows.TRACK)
            is_late = begin > self._ready(edges.values(), floor) + _NO_TIME
            if kind == IntervalKind.HOST and track.in_backward and is_late:
                # A launch that waited until its stream had room: csrc/time/launch_queue.h.
                follow(self._ended_elsewhere(number, begin), Follows.MOMENT)
        else:
            launched_by = columns.launch[number]
            if launched_by >= 0:
                head_start = max(0.0, columns.end[launched_by] - begin)
                if batch is not None:
                    head_start = batch.launch_seconds
                follow(launched_by, Follows.LAUNCH, head_start)
                launch = self._place.get(launched_by)
            for i, lane in enumerate(self._lanes_with(number)):
                why = Follows.RESOURCE if i else Follows.TRACK
                follow(self._previous(lane, begin, number), why)
            if columns.cause[number] == Cause.MOMENT:
                follow(self._ended_elsewhere(number, begin), Follows.MOMENT)
        if kind == IntervalKind.WAIT:
            awaited = self._ended_elsewhere(number, columns.end[number])
            if awaited is not None:
                follow(awaited, Follows.MOMENT)
                seconds = 0.0
        return Task(
            number, kind, columns.track[number], self._step_of[number], seconds, 0.0, floor,
            tuple(edges.values()), launch, tail,
        )  # fmt: skip

    def _ended_elsewhere(self, number: int, moment: float) -> int | None:
        """Return the work that ended at `moment` on another track; of several, the likeliest."""
        columns, tracks = self._columns, self._record.tracks
        track = columns.track[number]
        found = [
            other
            for other in self._ended_at[moment]
            if columns.track[other] != track and tracks[columns.track[other]].device is not None
        ]
        return min(
            found,
            key=lambda other: (tracks[columns.track[other]].rank != tracks[track].rank, -other),
            default=None,
        )

    def _ready(self, edges: Iterable[Edge], floor: float) -> float:
        """Return the moment from which a task could begin, by its edges."""
        ends = self._columns.end
        ready = (ends[self._order[other]] - head_start for _, other, head_start in edges)
        return max(floor, max(ready, default=floor))

    def _with_delay(self, task: Task) -> Task:
        """Return the task with the delay that its edges do not explain."""
        columns = self._columns
        ready = self._ready(task.edges, task.floor)
        moment = columns.begin[task.interval]
        if task.kind == IntervalKind.WAIT and task.seconds == 0:
            moment = columns.end[task.interval]
        delay = moment - ready
        return task._replace(delay=delay) if delay > _NO_TIME else task


def _joining_collectives(tasks: Sequence[Task], flows: Sequence[int]) -> list[Task]:
    """Return the tasks with each part of a copy or collective following what any part follows."""
    members: dict[int, list[int]] = defaultdict(list)
    for place, task in enumerate(tasks):
        if task.kind in _PARALLEL and flows[place] >= 0:
            members[flows[place]].append(place)
    joined = list(tasks)
    for places in members.values():
        all_edges: dict[int, Edge] = {}
        for place in places:
            for edge in tasks[place].edges:
                all_edges.setdefault(edge.task, edge)
        first = min(places)
        for place in places:
            own = {edge.task: edge for edge in tasks[place].edges}
            others = {
                other: edge._replace(follows=Follows.MOMENT)
                for other, edge in all_edges.items()
                if other not in own and other < first
            }
            edges = (*own.values(), *others.values())
            joined[place] = tasks[place]._replace(edges=edges)
    return joined
