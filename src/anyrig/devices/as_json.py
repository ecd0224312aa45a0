"""A device as text, for other processes: what it is, without what only this process knows of it."""

from __future__ import annotations

import json

from ..hardware import spec_of_key
from .device import Device


def write_device(device: Device) -> bytes:
    """Return the kind, the name, the memory and the key of the published facts."""
    key = None if device.spec is None else device.spec.key
    return json.dumps([device.kind, device.name, device.total_bytes, key]).encode()


def read_device(text: bytes) -> Device:
    """Return the device, without an index, for that counts in another process.

    Raises:
        UnknownHardwareError: it is of a card that this version of anyrig does not know.
    """
    kind, name, total_bytes, key = json.loads(text)
    spec = None if key is None else spec_of_key(key)
    return Device(kind, None, name, total_bytes=total_bytes, spec=spec)
