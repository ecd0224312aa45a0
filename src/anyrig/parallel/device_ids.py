"""The devices that `device_ids` names, as the argument of `nn.DataParallel`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..devices.device import Device
from ..devices.rig import Rig
from ..errors import SpreadError
from ..transfer.move import resolve_device

AnyDevice = Device | torch.device | str | int


def misses_gpus(device_ids: Sequence[AnyDevice] | None) -> bool:
    """Say whether GPUs are named on a machine where PyTorch finds none."""
    if not device_ids or torch.accelerator.device_count():
        return False
    return any(str(device) != "cpu" for device in device_ids)


def rig_of(device_ids: Sequence[AnyDevice] | None) -> Rig:
    """Return the named devices in order; None names every accelerator by its index, else the CPU.

    Raises:
        SpreadError: no device is named.
    """
    reason = "given by device_ids"
    if device_ids is None:
        reason = "every accelerator, by index"
        count = torch.accelerator.device_count()
        if count == 0:
            return Rig.parse("cpu")
        device_ids = list(range(count))
    if not device_ids:
        raise SpreadError("device_ids is empty; name at least one device, or leave it out for all")
    devices = [
        device if isinstance(device, Device) else Rig.parse(str(resolve_device(device))).lead
        for device in device_ids
    ]
    return Rig(tuple(devices), reason)
