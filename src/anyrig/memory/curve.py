"""How many bytes of each kind a device held over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .device_record import DeviceRecord
from .kinds import Kind

_POINTS = 400


@dataclass(frozen=True)
class Curve:
    """Bytes by kind over time: at most some 400 points, with every stretch's highest kept.

    Attributes:
        seconds: since the first event; None where unknown.
        reserved_bytes: one entry a point; empty on the CPU.
        bytes_of: for each kind that occurs, one entry a point.
    """

    seconds: Sequence[float | None]
    reserved_bytes: Sequence[int]
    bytes_of: Mapping[Kind, Sequence[int]]


def trace_curve(record: DeviceRecord) -> Curve:
    """Return the curve of a record; each block counts with the kind that it had when it began."""
    timeline = record.timeline
    positions = _highest_of_each_stretch(timeline.allocated_bytes)
    points = len(positions)
    index_after = {position: index for index, position in enumerate(positions)}
    # The first point at or after each position.
    point_at = [points] * (timeline.end + 2)
    for position in range(timeline.end, -1, -1):
        point_at[position] = index_after.get(position, point_at[position + 1])
    changes: dict[Kind, list[int]] = {}
    for block in timeline.blocks:
        kind = record.kinds.kind_at(block, block.born)
        change = changes.setdefault(kind, [0] * (points + 1))
        change[point_at[max(block.born, 0)]] += block.bytes
        if block.died is not None:
            change[point_at[block.died]] -= block.bytes
    bytes_of = {}
    for kind, change in changes.items():
        total, values = 0, []
        for point in range(points):
            total += change[point]
            values.append(total)
        bytes_of[kind] = values
    first = next((seconds for seconds in timeline.seconds if seconds is not None), 0.0)
    instants = [timeline.seconds[position] for position in positions]
    return Curve(
        [None if instant is None else instant - first for instant in instants],
        [timeline.reserved_bytes[position] for position in positions]
        if timeline.device.type != "cpu"
        else [],
        bytes_of,
    )


def _highest_of_each_stretch(values: Sequence[int]) -> list[int]:
    """Return the positions of the highest value of each of some 400 stretches of equal length."""
    stretch = max(1, len(values) // _POINTS)
    return [
        max(range(start, min(start + stretch, len(values))), key=values.__getitem__)
        for start in range(0, len(values), stretch)
    ]
