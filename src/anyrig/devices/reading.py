"""What a device is doing at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from .device import Device
from .process import DeviceProcess


@dataclass(frozen=True)
class Reading:
    """A moment of a device. What is unknown is None: a card inside a container, say, often cannot
    tell which process holds what.

    Attributes:
        device: which device was read.
        free_bytes: what an allocation could still get.
        own_bytes: held by this process.
        others_bytes: held by all other processes together.
        utilization: the part of the last moments in which the device was busy, 0 to 1.
        temperature_celsius: of the chip.
        processes: those that use the device; empty if there are none, None if it cannot be told.
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
        """Held by all processes together."""
        if self.device.total_bytes is None or self.free_bytes is None:
            return None
        return self.device.total_bytes - self.free_bytes
