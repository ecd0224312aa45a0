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

_KERNEL = int(IntervalKind.KERNEL)  # numbers compare faster than members
_WORK = frozenset({_KERNEL, int(IntervalKind.COPY), int(IntervalKind.COLLECTIVE)})


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
    is_own = [(track.rank, track.device) == (rank, device) for track in record.tracks]
    columns = record.intervals
    kernels, launched = [], []
    ends = columns.end
    # A long program has half a million intervals, so this loop calls no functions.
    for track, kind, began, ended, launch in zip(
        columns.track, columns.kind, columns.begin, ends, columns.launch, strict=True
    ):
        if not is_own[track] or kind not in _WORK or ended <= begin:
            continue
        began = began if began > begin else begin
        ended = ended if ended < end else end
        since = began
        if launch >= 0 and ends[launch] < began:
            since = ends[launch] if ends[launch] > begin else begin
        launched.append((since, ended))
        if kind == _KERNEL:
            kernels.append((began, ended))
    whole = end - begin
    busy = union_seconds(kernels) / whole
    active = union_seconds(launched) / whole
    return Occupation(busy, active - busy, 1 - active)


def union_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of the spans (begin, end) lasts."""
    seconds, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        since = begin if begin > until else until
        if end > since:
            seconds += end - since
            until = end
    return seconds
