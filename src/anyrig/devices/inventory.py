"""Every device of the machine."""

from __future__ import annotations

from .device import Device
from .nvml_session import shared_session
from .probes import PROBES


def survey() -> tuple[Device, ...]:
    """Return every device of the machine, the CPU last.

    Devices that cannot be used are included, with their `error`: a GPU hidden by
    ``CUDA_VISIBLE_DEVICES``, a GPU that has fallen off the bus, a GPU that this PyTorch build does
    not support.
    """
    with shared_session():
        return tuple(device for probe in PROBES.values() for device in probe.find())


def usable(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the working accelerators of the first kind that has any; without any, the CPU."""
    for kind in PROBES:
        working = tuple(d for d in devices if d.kind == kind and d.error is None)
        if working:
            return working
    return ()


def visible(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the accelerators that PyTorch numbers, working or not; without any, the CPU.

    All are of the first kind that has any. ``LOCAL_RANK`` counts these devices. A device that the
    environment hides has no number.
    """
    for kind in PROBES:
        numbered = tuple(d for d in devices if d.kind == kind and d.index is not None)
        if numbered:
            return numbered
    return usable(devices)
