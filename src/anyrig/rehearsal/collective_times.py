"""How long the collectives of a typical step take, inside a node and between nodes."""

from __future__ import annotations

from ..virtual.record_reading import IntervalKind, Record
from .facts import CollectiveTimes
from .occupation import union_seconds

Span = tuple[float, float]


def collective_times(
    record: Record, rank: int, device: int, begin: float, end: float, steps: int
) -> CollectiveTimes | None:
    """Return the means over the `steps` steps from `begin` to `end`, on one device of a rank.

    Return None if the device takes part in no collective.
    """
    tracks = {
        number
        for number, track in enumerate(record.tracks)
        if (track.rank, track.device) == (rank, device)
    }
    columns = record.intervals
    in_node: list[Span] = []
    across_nodes: list[Span] = []
    kernels: list[Span] = []
    for number, kind in enumerate(columns.kind):
        span = max(columns.begin[number], begin), min(columns.end[number], end)
        if columns.track[number] not in tracks or span[1] <= span[0]:
            continue
        if kind == IntervalKind.KERNEL:
            kernels.append(span)
        elif kind == IntervalKind.COLLECTIVE:
            (across_nodes if columns.nodes[number] > 1 else in_node).append(span)
    if not in_node and not across_nodes:
        return None
    busy = union_seconds(kernels)
    return CollectiveTimes(
        _total_seconds(in_node) / steps,
        _total_seconds(across_nodes) / steps,
        (union_seconds([*kernels, *in_node, *across_nodes]) - busy) / steps,
    )


def _total_seconds(spans: list[Span]) -> float:
    return sum(end - begin for begin, end in spans)
