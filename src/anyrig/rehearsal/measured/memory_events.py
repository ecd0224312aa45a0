"""What PyTorch's allocators report to its profiler: the memory of each GPU over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .trace_file import Event

_CUDA = 1  # c10::DeviceType::CUDA


@dataclass
class MemoryCurve:
    """The memory of a device over time, as columns of equal length.

    Attributes:
        seconds: the moments.
        allocated_bytes: what the allocator had handed out.
        reserved_bytes: what it had taken from the device.
    """

    seconds: list[float] = field(default_factory=list)
    allocated_bytes: list[int] = field(default_factory=list)
    reserved_bytes: list[int] = field(default_factory=list)


def read_curves(memory: Sequence[Event]) -> Mapping[int, MemoryCurve]:
    """Return the curve of each GPU, by CUDA index."""
    curves: dict[int, MemoryCurve] = defaultdict(MemoryCurve)
    for event in memory:
        args = event.args
        if args.get("Device Type") != _CUDA:
            continue
        curve = curves[int(args["Device Id"])]
        curve.seconds.append(event.begin_ns / 1e9)
        curve.allocated_bytes.append(int(args["Total Allocated"]))
        curve.reserved_bytes.append(int(args["Total Reserved"]))
    return dict(curves)
