"""The variables that show a new process some devices and hide the others."""

from __future__ import annotations

from collections.abc import Iterable

from .arguments import DEVICE_VARIABLE
from .device import Device
from .visibility import VARIABLE


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
