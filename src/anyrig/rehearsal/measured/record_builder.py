"""`RecordBuilder`, which collects intervals for a `Record`."""

from __future__ import annotations

from array import array
from typing import Any

from ...virtual.record_reading import (
    Cause,
    IntervalKind,
    Record,
    RecordedIntervals,
    RecordedTrack,
)
from ..texts import Texts


class RecordBuilder:
    """Collects intervals; times go in as nanoseconds and come out as seconds."""

    def __init__(self) -> None:
        self._tracks: dict[RecordedTrack, int] = {}
        self._names, self._modules = Texts(), Texts()
        self._columns: dict[str, array[Any]] = {
            **{name: array("d") for name in ("begin", "end", "bytes")},
            **{name: array("q") for name in ("launch", "flow", "track", "name", "nodes")},
            **{name: array("q") for name in ("kind", "cause", "line", "module")},
        }

    def add(
        self,
        track: RecordedTrack,
        begin_ns: int,
        end_ns: int,
        kind: IntervalKind,
        name: str,
        *,
        module: str | None = None,
        launch: int = -1,
        moved_bytes: float = -1.0,
        flow: int = -1,
        nodes: int = 0,
    ) -> int:
        """Add an interval and return its number; the arguments are those of a record's columns."""
        values = {
            "begin": begin_ns / 1e9,
            "end": end_ns / 1e9,
            "bytes": moved_bytes,
            "launch": launch,
            "flow": flow,
            "track": self._tracks.setdefault(track, len(self._tracks)),
            "name": self._names.number_of(name),
            "nodes": nodes,
            "kind": int(kind),
            "cause": int(Cause.NONE),
            "line": -1,
            "module": -1 if module is None else self._modules.number_of(module),
        }
        for column, value in values.items():
            self._columns[column].append(value)
        return len(self._columns["begin"]) - 1

    def build(self, complete_from: float) -> Record:
        """Return the record, of which nothing is missing from `complete_from` on, in seconds."""
        return Record(
            RecordedIntervals(complete_from, **self._columns),
            tuple(self._tracks),
            self._names.all(),
            (),
            self._modules.all(),
        )
