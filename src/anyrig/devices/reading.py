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
        free_bytes: available for allocations.
        own_bytes: held by this process.
        others_bytes: held by all other processes together.
        utilization: the fraction of the last sample period in which the device was busy, 0 to 1.
        temperature_celsius: of the chip.
        processes: that use the device; empty if there are none, None if they are not reported.
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
