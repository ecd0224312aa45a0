"""Environment variables that restrict a new process to some devices.

``CUDA_VISIBLE_DEVICES`` hides CUDA devices. ``ANYRIG_DEVICE`` names devices of any kind, as for
`Rig.parse`, and `Rig.detect` uses it. For MPS and XPU there is no other variable.
"""

from __future__ import annotations

from collections.abc import Iterable

from .device import Device
from .rank import LocalRank
from .visibility import VARIABLE

DEVICE_VARIABLE = "ANYRIG_DEVICE"


def environment_for(devices: Iterable[Device]) -> dict[str, str]:
    """Return the variables that restrict a new process to these devices.

    They contain UUIDs, because the driver and NVML number devices differently. The process numbers
    the devices from 0 in this order. There, `Rig.detect` returns all of these devices, or in a rank
    only the rank's own.

    Args:
        devices: a rig, or its devices.
    """
    devices = tuple(devices)
    kind, uuids = devices[0].kind, [device.uuid for device in devices]
    if kind == "cpu":
        return {VARIABLE: "", DEVICE_VARIABLE: "cpu"}
    if kind == "cuda" and all(uuids):
        return {VARIABLE: ",".join(uuid for uuid in uuids if uuid), DEVICE_VARIABLE: "auto"}
    return {DEVICE_VARIABLE: ",".join(device.text for device in devices)}


def environments_of_ranks(
    devices: Iterable[Device], processes: int | None = None
) -> list[dict[str, str]]:
    """Return the variables of each local rank: it sees all `devices`, and owns one of them.

    ``ANYRIG_DEVICE`` names the rank's own device, so the rank need not derive it from LOCAL_RANK
    and the number of visible devices.

    Args:
        devices: a rig, or its devices.
        processes: the number of local ranks; None for one per device. If there are more ranks than
            devices, neighbouring ranks share a device.
    """
    devices = tuple(devices)
    shared = environment_for(devices)
    # Hiding devices changes indices, but not UUIDs.
    hides = bool(shared.get(VARIABLE))
    count = len(devices) if processes is None else processes
    own = (devices[LocalRank(rank, count).device_index(len(devices))] for rank in range(count))
    return [
        {**shared, DEVICE_VARIABLE: device.uuid if hides and device.uuid else device.text}
        for device in own
    ]
