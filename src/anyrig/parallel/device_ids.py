"""The devices that a caller passes, as a list or as the `device_ids` of `nn.DataParallel`."""

from __future__ import annotations

import torch

from ..devices.place import Places, as_rig, as_torch_devices
from ..devices.rig import Rig
from ..errors import SpreadError
from ..transfer.move import resolve_device


def misses_gpus(device_ids: Places | None) -> bool:
    """Return whether the caller names GPUs on a machine where PyTorch finds none."""
    if device_ids is None or torch.accelerator.device_count():
        return False
    listed = device_ids if isinstance(device_ids, (list, tuple)) else [device_ids]
    return any(
        isinstance(each, int) or any(device.type != "cpu" for device in as_torch_devices(each))
        for each in listed
    )


def rig_of(device_ids: Places | None) -> Rig:
    """Return the named devices in order. None means all accelerators by index, or the CPU alone.

    Raise SpreadError if the list is empty.
    """
    if device_ids is None:
        count = torch.accelerator.device_count()
        if count == 0:
            return Rig.parse("cpu")
        return Rig(as_rig(range(count)).devices, "every accelerator, by index")
    if isinstance(device_ids, (list, tuple)) and not device_ids:
        raise SpreadError("device_ids is empty; name at least one device, or leave it out for all")
    return Rig(as_rig(device_ids).devices, "given by device_ids")


def resolve_devices(devices: Places) -> tuple[torch.device, ...]:
    """Return devices with their indices, in order.

    Raise SpreadError if there are none, one is named twice, or they are of several kinds.
    """
    resolved = tuple(resolve_device(device) for device in as_torch_devices(devices))
    text = ", ".join(map(str, resolved))
    if not resolved:
        raise SpreadError("the list of devices is empty; name at least one")
    if len(set(resolved)) < len(resolved):
        raise SpreadError(f"a device is named twice among {text}; name each once")
    if len({device.type for device in resolved}) > 1:
        raise SpreadError(f"the devices are of several kinds: {text}; use devices of one kind")
    return resolved
