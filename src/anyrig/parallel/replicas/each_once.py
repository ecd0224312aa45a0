"""Devices as PyTorch knows them, none twice."""

from __future__ import annotations

import torch

from ...devices.place import Places, as_torch_devices
from ...errors import SpreadError
from ...transfer.move import resolve_device


def each_once(devices: Places) -> tuple[torch.device, ...]:
    """Return devices with their indices, in order.

    Raises:
        SpreadError: one is named twice, they are of several kinds, or there are none.
    """
    resolved = tuple(resolve_device(device) for device in as_torch_devices(devices))
    text = ", ".join(map(str, resolved))
    if not resolved:
        raise SpreadError("there are no devices; name at least one")
    if len(set(resolved)) < len(resolved):
        raise SpreadError(f"a device is named twice among {text}; name each once")
    if len({device.type for device in resolved}) > 1:
        raise SpreadError(f"the devices are of several kinds: {text}; take those of one kind")
    return resolved
