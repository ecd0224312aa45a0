"""Every device of the machine."""

from __future__ import annotations

import warnings

from .cuda_start import is_forked_after_start
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
    """Return the working accelerators of the first kind that has any; without any, the CPU.

    Warn if the CPU takes the place of GPUs that this process cannot use because it was forked.
    """
    for kind in PROBES:
        working = tuple(d for d in devices if d.kind == kind and d.error is None)
        if not working:
            continue
        if (
            kind == "cpu"
            and any(d.kind == "cuda" and d.index is not None for d in devices)
            and is_forked_after_start()
        ):
            warnings.warn(
                "this process uses the CPU and no GPU, because CUDA had started before the process "
                "was forked. Start processes with the method 'spawn' or 'forkserver', or fork "
                "before CUDA is used",
                stacklevel=4,
            )
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
