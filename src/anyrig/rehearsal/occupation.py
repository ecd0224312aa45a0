"""What a device does during some time: it computes, waits, or has nothing to do.

::

    launched      |mm|add|                                |mm|
    cuda:0 0         |== mm ==|          |= add =|           |== mm ==|
    cuda:0 1                  |= copy ==|
                     |  busy  | waiting |  busy  |   idle    |  busy  |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..virtual.record_reading import IntervalKind, Record

_WORK = frozenset({IntervalKind.KERNEL, IntervalKind.COPY, IntervalKind.COLLECTIVE})


@dataclass(frozen=True)
class Occupation:
    """How a device spends its time, as parts of it that add up to 1.

    Attributes:
        busy: a kernel runs.
        waiting: no kernel runs, but work has been launched and is not done.
        idle: no work has been launched that is not done.
    """

    busy: float
    waiting: float
    idle: float


def occupation_of(record: Record, rank: int, device: int, begin: float, end: float) -> Occupation:
    """Return what a rank's device does from `begin` to `end`, in seconds."""
    if end <= begin:
        return Occupation(0.0, 0.0, 1.0)
    tracks = {
        number
        for number, track in enumerate(record.tracks)
        if (track.rank, track.device) == (rank, device)
    }
    intervals = record.intervals
    kernels, launched = [], []
    begins, ends, launches = intervals.begin, intervals.end, intervals.launch
    for number, (track, kind) in enumerate(zip(intervals.track, intervals.kind, strict=True)):
        if track not in tracks or kind not in _WORK or ends[number] <= begin:
            continue
        began, ended = max(begins[number], begin), min(ends[number], end)
        launch = launches[number]
        since = max(min(began, ends[launch]), begin) if launch >= 0 else began
        launched.append((since, ended))
        if kind == IntervalKind.KERNEL:
            kernels.append((began, ended))
    whole = end - begin
    busy = union_seconds(kernels) / whole
    active = union_seconds(launched) / whole
    return Occupation(busy, active - busy, 1 - active)


def union_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of the spans (begin, end) lasts."""
    seconds, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        if end > max(begin, until):
            seconds += end - max(begin, until)
            until = end
    return seconds
