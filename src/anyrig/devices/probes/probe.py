"""The interface that each kind of device implements."""

from __future__ import annotations

from typing import Protocol

from ..device import Device
from ..reading import Reading


class Probe(Protocol):
    """Finds and reads the devices of one kind. No method raises: failures are in `error`."""

    kind: str

    def find(self) -> tuple[Device, ...]:
        """Return every device of the kind, including unusable ones."""

    def read(self, device: Device) -> Reading:
        """Return the present state of a device."""

    def peak_bytes(self, device: Device) -> int | None:
        """Return the peak memory of this process on a device, in bytes."""
