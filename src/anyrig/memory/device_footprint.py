"""The footprint of one device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .block import Block, Origin
from .curve import Curve, trace_curve
from .device_record import DeviceRecord
from .kinds import Kind
from .moment import Holding, Moment


@dataclass(frozen=True)
class DeviceFootprint:
    """What filled the memory of one device while it was tracked.

    Attributes:
        peak: the moment with the most allocated bytes.
        outside_bytes: the memory in use at the end that PyTorch in this process has not reserved:
            the CUDA context, other libraries and other processes. None if unknown.
        total_bytes: the device's memory; None if unknown.
        curve: the bytes by kind over time.
    """

    device: torch.device
    start: Moment
    peak: Moment
    end: Moment
    outside_bytes: int | None
    total_bytes: int | None
    curve: Curve


def describe_device(record: DeviceRecord) -> DeviceFootprint:
    """Return the footprint of a device from its record."""
    timeline = record.timeline
    return DeviceFootprint(
        timeline.device,
        describe_moment(record, -1),
        describe_moment(record, timeline.find_peak()),
        describe_moment(record, timeline.end),
        record.outside_bytes,
        record.total_bytes,
        trace_curve(record),
    )


def describe_moment(record: DeviceRecord, position: int) -> Moment:
    """Return what the device's memory held after the event at `position` of its timeline."""
    timeline = record.timeline
    holdings = [
        _describe_block(block, record.kinds.kind_at(block, position))
        for block in timeline.blocks
        if block.is_alive_at(position)
    ]
    origin = timeline.origin_at(position) or Origin(None, None, None, False)
    return Moment(
        timeline.allocated_at(position),
        timeline.reserved_at(position) if timeline.device.type != "cpu" else None,
        timeline.seconds[position] if position >= 0 else None,
        origin.phase,
        origin.module,
        origin.line,
        tuple(sorted(holdings, key=lambda holding: -holding.bytes)),
    )


def _describe_block(block: Block, kind: Kind) -> Holding:
    origin = block.origin or Origin(None, None, None, False)
    module = origin.module if block.module is None else block.module
    return Holding(block.bytes, kind, block.name, module, origin.line, origin.phase)
