"""The recording of one device."""

from __future__ import annotations

from dataclasses import dataclass

from .classify import Kinds
from .timeline import Timeline


@dataclass(frozen=True)
class DeviceRecord:
    """The recording of one device.

    Attributes:
        outside_bytes: the memory in use that PyTorch in this process has not reserved: the CUDA
            context, other libraries and other processes; None if unknown.
        total_bytes: the device's memory; None if unknown.
        refused: the name of the last operator that ran out of memory, on any device.
    """

    timeline: Timeline
    kinds: Kinds
    outside_bytes: int | None
    total_bytes: int | None
    refused: str | None = None
