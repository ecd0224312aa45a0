"""The variables that show a new process some devices and hide the others.

``CUDA_VISIBLE_DEVICES`` hides CUDA devices. ``ANYRIG_DEVICE`` names devices of any kind, in the
words of `Rig.parse`, and `Rig.detect` obeys it. For MPS and XPU it is the only channel.
"""

from __future__ import annotations

from collections.abc import Iterable

from .device import Device
from .rank import LocalRank
from .visibility import VARIABLE

DEVICE_VARIABLE = "ANYRIG_DEVICE"


def environment_for(devices: Iterable[Device]) -> dict[str, str]:
    """Return the variables with which a new process has these devices and no others.

    By UUID, because indices mean one order to the driver and another to NVML. The process numbers
    them from 0 in this order, and `Rig.detect` there is all of them, or in a rank its own.

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
    """Return the variables of each local rank: it sees all `devices`, and has one of them.

    ``ANYRIG_DEVICE`` names the rank's own device, so that the rank need not work it out from
    LOCAL_RANK and from how many devices it sees.

    Args:
        devices: a rig, or its devices.
        processes: how many local ranks there are; None for one on each device. More ranks than
            devices share them, and neighbours share one.
    """
    devices = tuple(devices)
    shared = environment_for(devices)
    # Where devices are hidden their indices change, and their UUIDs do not.
    hides = bool(shared.get(VARIABLE))
    count = len(devices) if processes is None else processes
    own = (devices[LocalRank(rank, count).device_index(len(devices))] for rank in range(count))
    return [
        {**shared, DEVICE_VARIABLE: device.uuid if hides and device.uuid else device.text}
        for device in own
    ]
