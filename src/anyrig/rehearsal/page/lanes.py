"""The intervals of a time line, arranged in lanes in which no two overlap.

::

    track   ├── optimizer.step ─────┤  ├ zero_grad ┤
               ├ add_ ┤ ├ mul_ ┤

    lane 0  ├── optimizer.step ─────┤  ├ zero_grad ┤
    lane 1     ├ add_ ┤ ├ mul_ ┤
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .kinds import KINDS

_CODES = {kind: code for code, kind in enumerate(KINDS)}


@dataclass(frozen=True)
class Lane:
    """Intervals in the order of time, as columns of equal length.

    Attributes:
        track: the index of the track.
        begin_ns: nanoseconds since the origin of the page.
        end_ns: likewise.
        gap_ns: the time between begin and end in which nothing happened. It is 0 for an interval
            that stands for itself.
        kind: indexes into `KINDS`.
        name: indexes into the document's texts, or -1.
        module: likewise.
        line: likewise.
        bytes: the bytes moved, or -1.
        flow: equal numbers belong together; or -1.
        count: the number of intervals that each stands for.
    """

    track: int
    begin_ns: list[int] = field(default_factory=list)
    end_ns: list[int] = field(default_factory=list)
    gap_ns: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    name: list[int] = field(default_factory=list)
    module: list[int] = field(default_factory=list)
    line: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    flow: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.begin_ns)


def arrange(facts: Mapping[str, Any], origin_seconds: float) -> list[Lane]:
    """Return the lanes of all tracks, track by track; each track has at least one.

    The tracks are in the order of ranks; a rank's host comes before its devices.

    Raises:
        ValueError: an interval has a kind that is not in `KINDS`.
    """
    columns: Mapping[str, Sequence[Any]] = facts["intervals"]
    code_of = {kind: kind_code(facts, kind) for kind in set(columns["kind"])}
    lanes = [[Lane(track)] for track in range(len(facts["tracks"]))]
    intervals = zip(
        columns["track"],
        columns["begin_seconds"],
        columns["seconds"],
        columns["kind"],
        columns["name"],
        columns["module"],
        columns["line"],
        columns["bytes"],
        columns["flow"],
        strict=True,
    )
    # A longer interval that begins at the same time comes first: it holds the others.
    for track, begin, seconds, kind, name, module, line, count, flow in sorted(
        intervals, key=lambda interval: (interval[1], -interval[2])
    ):
        begin_ns = round((begin - origin_seconds) * 1e9)
        end_ns = max(begin_ns, round((begin + seconds - origin_seconds) * 1e9))
        lane = _free_lane(lanes[track], begin_ns)
        # Rounding may make two neighbours overlap by a nanosecond.
        lane.begin_ns.append(max(begin_ns, lane.end_ns[-1]) if lane.end_ns else begin_ns)
        lane.end_ns.append(max(end_ns, lane.begin_ns[-1]))
        lane.gap_ns.append(0)
        lane.kind.append(code_of[kind])
        lane.name.append(name)
        lane.module.append(module)
        lane.line.append(line)
        lane.bytes.append(count)
        lane.flow.append(flow)
        lane.count.append(1)
    return [lane for track in _order_tracks(facts["tracks"]) for lane in lanes[track]]


def kind_code(facts: Mapping[str, Any], kind: int) -> int:
    """Return the index in `KINDS` of a kind, which the facts give as an index into their texts.

    Raises:
        ValueError: there is no such kind.
    """
    name = facts["texts"][kind]
    if name not in _CODES:
        raise ValueError(f"an interval has the kind {name!r}; known are {', '.join(KINDS)}")
    return _CODES[name]


def _order_tracks(tracks: Sequence[Mapping[str, Any]]) -> list[int]:
    def place(track: int) -> tuple[int, int, int, int]:
        facts = tracks[track]
        device, stream = (-1 if facts[key] is None else facts[key] for key in ("device", "stream"))
        return facts["rank"], device, stream, track

    return sorted(range(len(tracks)), key=place)


def _free_lane(lanes: list[Lane], begin_ns: int) -> Lane:
    for lane in lanes:
        if not lane.end_ns or lane.end_ns[-1] <= begin_ns + 1:
            return lane
    lanes.append(Lane(lanes[0].track))
    return lanes[-1]
