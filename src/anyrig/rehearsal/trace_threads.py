"""The threads of a trace: one for each track, and more where the intervals of a track overlap.

::

    cuda:0 stream 7       |== mm ==|  |== mm ==|
    cuda:0 stream 7 (2)          |= add =|

Kernels of a stream overlap on a real GPU, where one starts before its predecessor ends
(programmatic dependent launch). Perfetto before version 57 drops a slice that begins within another
slice of its thread and ends after it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from .facts import Facts


@dataclass(frozen=True)
class TraceThread:
    """A thread of a trace.

    Attributes:
        title: what to call it.
        rank: the rank.
    """

    title: str
    rank: int


@dataclass(frozen=True)
class TraceThreads:
    """The threads of a trace.

    Attributes:
        threads: the threads; those of a track follow each other.
        of_interval: the index of the thread of each interval of `Facts.intervals`.
    """

    threads: tuple[TraceThread, ...]
    of_interval: Sequence[int]


def divide_into_threads(facts: Facts) -> TraceThreads:
    """Return the threads of all intervals, such that no two intervals of a thread overlap."""
    columns = facts.intervals
    lanes = array("q")
    free_ns: list[list[int]] = [[] for _ in facts.tracks]  # when each lane of a track is free
    for index, begin, seconds in zip(
        columns.track, columns.begin_seconds, columns.seconds, strict=True
    ):
        began_ns, ended_ns = span_ns(begin, begin + seconds)
        free = free_ns[index]
        lane = next((lane for lane, until in enumerate(free) if until <= began_ns), len(free))
        free[lane : lane + 1] = [ended_ns]
        lanes.append(lane)
    first: list[int] = []
    threads: list[TraceThread] = []
    for track, free in zip(facts.tracks, free_ns, strict=True):
        first.append(len(threads))
        for lane in range(max(1, len(free))):
            title = track.title if lane == 0 else f"{track.title} ({lane + 1})"
            threads.append(TraceThread(title, track.rank))
    numbers = (first[index] + lane for index, lane in zip(columns.track, lanes, strict=True))
    return TraceThreads(tuple(threads), array("q", numbers))


def span_ns(begin_seconds: float, end_seconds: float) -> tuple[int, int]:
    """Return the begin and the end in nanoseconds; neighbours stay neighbours."""
    return round(begin_seconds * 1e9), round(end_seconds * 1e9)
