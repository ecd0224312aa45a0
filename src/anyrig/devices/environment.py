"""The variables that show a new process some devices and hide the others."""

from __future__ import annotations

from .arguments import DEVICE_VARIABLE
from .rig import Rig
from .visibility import VARIABLE


def environment_for(rig: Rig) -> dict[str, str]:
    """Return the variables with which a new process has the devices of `rig` and no others.

    By UUID, because indices mean one order to the driver and another to NVML. The process numbers
    them from 0 in the order of `rig`, and `Rig.detect` there is all of them, or in a rank its own.
    """
    if rig.kind == "cpu":
        return {VARIABLE: "", DEVICE_VARIABLE: "cpu"}
    uuids = [device.uuid for device in rig]
    if rig.kind == "cuda" and all(uuids):
        return {VARIABLE: ",".join(uuid for uuid in uuids if uuid), DEVICE_VARIABLE: "auto"}
    return {DEVICE_VARIABLE: ",".join(device.text for device in rig)}
