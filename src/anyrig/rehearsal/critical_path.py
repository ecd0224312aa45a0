"""The critical path of a step: what to make faster for the step to take less time.

::

    host      |launch|launch|launch|          |.. wait ..|launch|
    cuda:0           |= mm =|          |= add =|                |= mm =| end of the step
                            |= copy =|
    path      |launch|= mm =|= copy =|= add =|           |launch|= mm =|

The path is found backwards. Each interval began when something else ended, and the path goes on
there: the work before it on its stream, the launch by the host, or whatever else ended at that
moment. A wait of the host is passed over: the path goes on with the work that the host waited for.
So the pieces follow each other without gaps, and their times add up to the step's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from ..virtual.record_reading import Cause, IntervalKind, Record


class Piece(NamedTuple):
    """A piece of a critical path.

    Attributes:
        begin: in seconds.
        end: in seconds.
        interval: the index of the interval; None if none is on record: for time of the host between
            its intervals, and for some waits for another process.
        is_wait: whether the piece is a wait for another process.
    """

    begin: float
    end: float
    interval: int | None
    is_wait: bool = False


class Timeline:
    """The intervals of each track of a record, in the order of their ends."""

    def __init__(self, record: Record) -> None:
        self._intervals = record.intervals
        self._on_host = [track.device is None for track in record.tracks]
        self._ranks = [track.rank for track in record.tracks]
        self._by_track: list[list[int]] = [[] for _ in record.tracks]
        for number, track in enumerate(self._intervals.track):
            self._by_track[track].append(number)
        ends = self._intervals.end
        self._ends: list[list[float]] = []
        for numbers in self._by_track:
            numbers.sort(key=ends.__getitem__)
            self._ends.append([ends[number] for number in numbers])

    def critical_path(self, begin: float, end: float) -> list[Piece]:
        """Return the critical path from `begin` to `end`, in the order of time.

        `end` is a moment at which something ended. The path is empty if the record does not reach
        back to `begin`.
        """
        if begin < self._intervals.complete_from:
            return []
        pieces = [
            piece for piece in self._backwards(begin, end, self._ended_at(end)) if piece is not None
        ]
        return pieces[::-1]

    def _backwards(self, begin: float, end: float, last: int | None) -> Iterator[Piece | None]:
        now, number = end, last
        while now > begin:
            if number is None:
                number = self._last_before(now)
                then = begin if number is None else max(begin, self._intervals.end[number])
                yield Piece(then, now, None)
                now = then
                continue
            if self._kind(number) == IntervalKind.WAIT and now == self._intervals.end[number]:
                awaited = self._ended_at(now, of=self._intervals.track[number])
                if awaited is not None and self._kind(awaited) != IntervalKind.WAIT:
                    number = awaited
                    continue
            then = max(begin, self._intervals.begin[number])
            yield Piece(then, now, number, self._kind(number) == IntervalKind.WAIT)
            now = then
            if now <= begin:
                return
            cause = self._cause_of(number)
            if cause is None and not self._on_host[self._intervals.track[number]]:
                # The work waited for something in another process.
                ready, cause = self._ready(number)
                if ready < now:
                    then = max(begin, ready)
                    yield Piece(then, now, None, is_wait=True)
                    now = then
            number = cause

    def _kind(self, number: int) -> int:
        return self._intervals.kind[number]

    def _cause_of(self, number: int) -> int | None:
        """Return the interval whose end allowed this one to begin."""
        intervals = self._intervals
        begin, track = intervals.begin[number], intervals.track[number]
        if intervals.cause[number] == Cause.LAUNCH:
            launch = self._launch_of(number)
            if launch is not None:
                return launch
        on_track = self._ended_on(track, begin)
        if on_track is not None and (
            self._on_host[track] or intervals.cause[number] == Cause.STREAM
        ):
            return on_track
        return self._ended_at(begin, of=track, hosts_first=self._on_host[track])

    def _launch_of(self, number: int) -> int | None:
        launch = self._intervals.launch[number]
        return launch if launch >= 0 else None

    def _ready(self, number: int) -> tuple[float, int | None]:
        """Return the earliest time at which work could have begun, and what ended at that time.

        As far as this process knows, that is the end of its launch or of the work before it on its
        stream.
        """
        intervals = self._intervals
        begin, track = intervals.begin[number], intervals.track[number]
        candidates = [self._last_on(track, begin), self._launch_of(number)]
        ready, cause = 0.0, None
        for candidate in candidates:
            if candidate is not None and ready < intervals.end[candidate] <= begin:
                ready, cause = intervals.end[candidate], candidate
        return ready, cause

    def _ended_on(self, track: int, moment: float) -> int | None:
        ends = self._ends[track]
        place = bisect_left(ends, moment)
        if place < len(ends) and ends[place] == moment:
            return self._by_track[track][place]
        return None

    def _ended_at(
        self, moment: float, of: int | None = None, hosts_first: bool = False
    ) -> int | None:
        """Return an interval that ended at `moment`, on a track other than `of`.

        If there are several, waits come last and intervals of the rank of `of` come first; among
        those, work of a device precedes work of the host, or follows it with `hosts_first`.
        """
        found = [
            number
            for track in range(len(self._ends))
            if track != of and (number := self._ended_on(track, moment)) is not None
        ]

        def order(number: int) -> tuple[bool, bool, bool]:
            track = self._intervals.track[number]
            return (
                self._kind(number) == IntervalKind.WAIT,
                of is not None and self._ranks[track] != self._ranks[of],
                self._on_host[track] != hosts_first,
            )

        return min(found, key=order, default=None)

    def _last_on(self, track: int, moment: float) -> int | None:
        place = bisect_left(self._ends[track], moment)
        return self._by_track[track][place - 1] if place > 0 else None

    def _last_before(self, moment: float) -> int | None:
        """Return the last interval of the host that ended before `moment`."""
        found = [
            number
            for track, on_host in enumerate(self._on_host)
            if on_host and (number := self._last_on(track, moment)) is not None
        ]
        return max(found, key=self._intervals.end.__getitem__, default=None)
