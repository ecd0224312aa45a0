"""What a kind of device must be able to answer."""

from __future__ import annotations

from typing import Protocol

from ..device import Device
from ..reading import Reading


class Probe(Protocol):
    """Finds and reads the devices of one kind. Neither call raises: trouble becomes `error`."""

    kind: str

    def find(self) -> tuple[Device, ...]:
        """Every device of the kind, those included that cannot be used."""

    def read(self, device: Device) -> Reading:
        """What one of them is doing now."""

    def peak_bytes(self, device: Device) -> int | None:
        """The most memory this process has held on it."""
