"""What each device is doing now."""

from __future__ import annotations

from .nvml_session import shared_session
from .place import Place, Places, as_devices
from .probes import PROBES
from .reading import Reading


def read(device: Place) -> Reading:
    """Return what a device is doing now; what cannot be told is None.

    Raises:
        DeviceTextError: the text or the number names no device here.
    """
    (found, *_) = as_devices(device)
    return PROBES[found.kind].read(found)


def read_all(devices: Places) -> tuple[Reading, ...]:
    """Return what each of `devices` is doing now, which is quicker than one by one.

    Raises:
        DeviceTextError: a text or a number names no device here.
    """
    with shared_session():
        return tuple(PROBES[device.kind].read(device) for device in as_devices(devices))


def peak_bytes(device: Place) -> int | None:
    """Return the most memory this process has held on a device: tensors on an accelerator, the
    whole process on the CPU. None where the backend keeps no peak.

    Raises:
        DeviceTextError: the text or the number names no device here.
    """
    (found, *_) = as_devices(device)
    return PROBES[found.kind].peak_bytes(found)
