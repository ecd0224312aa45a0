"""A device as JSON for other processes, without what is specific to this process."""

from __future__ import annotations

import json

from ..hardware import spec_of_key
from .device import Device


def write_device(device: Device) -> bytes:
    """Return the kind, the name, the memory and the key of the published facts of a device."""
    key = None if device.spec is None else device.spec.key
    return json.dumps([device.kind, device.name, device.total_bytes, key]).encode()


def read_device(text: bytes) -> Device:
    """Return the device, without an index: indices of another process do not apply here.

    Raises:
        UnknownHardwareError: this version of anyrig has no facts about the GPU.
    """
    kind, name, total_bytes, key = json.loads(text)
    spec = None if key is None else spec_of_key(key)
    return Device(kind, None, name, total_bytes=total_bytes, spec=spec)
