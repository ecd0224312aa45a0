"""The bytes of each kind on a device over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .device_record import DeviceRecord
from .kinds import Kind

_POINTS = 400


@dataclass(frozen=True)
class Curve:
    """Bytes by kind over time: fewer than 800 points, the maximum of each interval.

    Attributes:
        seconds: the time of each point since the first event; None where unknown.
        reserved_bytes: the reserved bytes at each point; empty on the CPU.
        bytes_of: for each kind that occurs, its bytes at each point.
    """

    seconds: Sequence[float | None]
    reserved_bytes: Sequence[int]
    bytes_of: Mapping[Kind, Sequence[int]]


def trace_curve(record: DeviceRecord) -> Curve:
    """Return the curve of a record. A block counts under the kind that it had when allocated."""
    timeline = record.timeline
    positions = _interval_maxima(timeline.allocated_bytes)
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


def _interval_maxima(values: Sequence[int]) -> list[int]:
    """Return the position of the maximum of each of 400 to 799 intervals of equal length.

    If there are fewer than 400 values, each value is one interval.
    """
    length = max(1, len(values) // _POINTS)
    return [
        max(range(start, min(start + length, len(values))), key=values.__getitem__)
        for start in range(0, len(values), length)
    ]
