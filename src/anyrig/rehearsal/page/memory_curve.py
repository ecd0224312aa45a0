"""The memory of a device over time, with a limited number of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .kinds import LAYERS


@dataclass(frozen=True)
class MemoryCurve:
    """Bytes of each layer at points in time.

    Attributes:
        title: what to call the device.
        capacity_bytes: the memory that a program can use; None if unknown.
        seconds: the time of each point.
        layers: for each name in `LAYERS`, the bytes at each point, until the next point.
        is_thinned: whether points were left out.
    """

    title: str
    capacity_bytes: int | None
    seconds: Sequence[float]
    layers: Mapping[str, Sequence[int]]
    is_thinned: bool

    @property
    def totals(self) -> list[int]:
        """The sum of all layers at each point."""
        return [sum(values) for values in zip(*self.layers.values(), strict=True)]


def device_title(facts: Mapping[str, Any], index: int, rank: int | None) -> str:
    """Return ``cuda:1``, with the rank if other ranks use a device of this index too."""
    ranks = {device["rank"] for device in facts["devices"] if device["index"] == index}
    return f"cuda:{index}" if rank is None or len(ranks) < 2 else f"rank {rank} cuda:{index}"


def read_curve(
    facts: Mapping[str, Any], memory: Mapping[str, Any], most_points: int
) -> MemoryCurve:
    """Return a device's curve with at most `most_points` points.

    If there are more, they are divided into stretches of equally many points, and the highest and
    the last point of each stretch are kept. The peak is therefore always there.
    """
    seconds: Sequence[float] = memory["seconds"]
    layers = {name: memory[f"{name}_bytes"] for name in LAYERS}
    index, rank = memory["device"], memory.get("rank")
    capacities = [
        device["capacity_bytes"]
        for device in facts["devices"]
        if device["index"] == index and rank in (None, device["rank"])
    ]
    title, capacity = device_title(facts, index, rank), capacities[0] if capacities else None
    curve = MemoryCurve(title, capacity, seconds, layers, is_thinned=False)
    if len(seconds) <= most_points:
        return curve
    totals = curve.totals
    stretch = 2 * -(-len(seconds) // most_points)
    kept = sorted(
        {
            index
            for begin in range(0, len(seconds), stretch)
            for points in [range(begin, min(begin + stretch, len(seconds)))]
            for index in (max(points, key=totals.__getitem__), points[-1])
        }
    )
    return MemoryCurve(
        title,
        capacity,
        [seconds[index] for index in kept],
        {name: [values[index] for index in kept] for name, values in layers.items()},
        is_thinned=True,
    )
