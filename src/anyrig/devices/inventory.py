"""Every device of the machine."""

from __future__ import annotations

from .device import Device
from .nvml_session import shared_session
from .probes import PROBES


def survey() -> tuple[Device, ...]:
    """Return every device of the machine, the CPU last.

    Those that cannot be used are there too, with their `error`: a card hidden by
    ``CUDA_VISIBLE_DEVICES``, a card that has fallen off the bus, a card this PyTorch was not built
    for.
    """
    with shared_session():
        return tuple(device for probe in PROBES.values() for device in probe.find())


def usable(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the accelerators among `devices` that work, all of the first kind that has any;
    without one, the CPU.
    """
    for kind in PROBES:
        working = tuple(d for d in devices if d.kind == kind and d.error is None)
        if working:
            return working
    return ()


def visible(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the accelerators among `devices` that PyTorch numbers, whether they work or not, all
    of the first kind that has any; without one, the CPU.

    These are what ``LOCAL_RANK`` counts. A device that the environment hides has no number.
    """
    for kind in PROBES:
        numbered = tuple(d for d in devices if d.kind == kind and d.index is not None)
        if numbered:
            return numbered
    return usable(devices)
