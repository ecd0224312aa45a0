"""The text that reports the virtual time of a rehearsal, and how far it is known to be off."""

from __future__ import annotations

from ..virtual.clock_reading import ClockReading, KernelSeconds
from ..virtual.known_errors import errors_text, program_errors_text
from ..virtual.rig import VirtualRig


def describe_times(reading: ClockReading, rig: VirtualRig) -> str:
    """Return a report of `reading`, taken at the end of a program on `rig`."""
    lines = [f"virtual time: {1e3 * reading.done_seconds:.3f} ms", str(reading)]
    lines += [
        f"cuda:{device.index} kernels: {_kernels_text(device.kernels)}"
        for device in reading.devices
        if device.compute_seconds > 0
    ]
    specs = {device.spec.key: device.spec for device in rig.devices if device.spec is not None}
    for spec in specs.values():
        lines += [errors_text(spec), program_errors_text(spec)]
    if any(device.spec is None for device in rig.devices):
        lines.append("the times of a GPU that is given by its size alone predict nothing")
    return "\n".join(lines)


def _kernels_text(kernels: KernelSeconds) -> str:
    parts = {
        "products": kernels.products,
        "convolutions": kernels.convolutions,
        "attention": kernels.attention,
        "memory-bound": kernels.memory,
    }
    return ", ".join(f"{kind} {1e3 * seconds:.3f} ms" for kind, seconds in parts.items())
