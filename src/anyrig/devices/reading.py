"""The state of a device at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from .device import Device
from .process import DeviceProcess


@dataclass(frozen=True)
class Reading:
    """The state of a device at one moment. Unknown values are None.

    For example, in a container the driver often does not report the processes.

    Attributes:
        device: which device was read.
        free_bytes: the memory that is available for allocations.
        own_bytes: the memory that this process holds.
        others_bytes: the memory that all other processes together hold.
        utilization: the fraction of the last sample period in which the device was busy, 0 to 1.
        temperature_celsius: the temperature of the chip.
        processes: the processes that use the device; None if they are not reported.
        error: why nothing could be read.
    """

    device: Device
    free_bytes: int | None = None
    own_bytes: int | None = None
    others_bytes: int | None = None
    utilization: float | None = None
    temperature_celsius: float | None = None
    processes: tuple[DeviceProcess, ...] | None = None
    error: str | None = None

    @property
    def used_bytes(self) -> int | None:
        """The bytes held by all processes together."""
        if self.device.total_bytes is None or self.free_bytes is None:
            return None
        return self.device.total_bytes - self.free_bytes
