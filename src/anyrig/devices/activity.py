"""The present state of each device."""

from __future__ import annotations

from .nvml_session import shared_session
from .place import Place, Places, as_devices
from .probes import PROBES
from .reading import Reading


def read(device: Place) -> Reading:
    """Return the present state of a device; unknown values are None.

    Raises:
        DeviceTextError: the string or index names no device of this machine.
    """
    (found, *_) = as_devices(device)
    return PROBES[found.kind].read(found)


def read_all(devices: Places) -> tuple[Reading, ...]:
    """Return the present state of each of `devices`, which is faster than one call for each.

    Raises:
        DeviceTextError: a string or index names no device of this machine.
    """
    with shared_session():
        return tuple(PROBES[device.kind].read(device) for device in as_devices(devices))


def peak_bytes(device: Place) -> int | None:
    """Return the peak memory of this process on a device, in bytes.

    On an accelerator this counts tensors, on the CPU the whole process. None if the backend does
    not record a peak.

    Raises:
        DeviceTextError: the string or index names no device of this machine.
    """
    (found, *_) = as_devices(device)
    return PROBES[found.kind].peak_bytes(found)
