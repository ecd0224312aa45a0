"""Apple's GPU, through `torch.mps`."""

from __future__ import annotations

import platform
import subprocess

from ..device import Device
from ..reading import Reading


class MpsProbe:
    """One GPU that shares the host's memory."""

    kind = "mps"

    def find(self) -> tuple[Device, ...]:
        import torch

        if not torch.backends.mps.is_available():
            return ()
        return (
            Device(
                kind="mps",
                index=0,
                name=_chip_name(),
                total_bytes=torch.mps.recommended_max_memory(),
            ),
        )

    def read(self, device: Device) -> Reading:
        import torch

        own_bytes = torch.mps.driver_allocated_memory()
        free_bytes = None if device.total_bytes is None else device.total_bytes - own_bytes
        return Reading(device, free_bytes=free_bytes, own_bytes=own_bytes)

    def peak_bytes(self, device: Device) -> int | None:
        return None  # torch.mps does not record a peak


def _chip_name() -> str:
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return f"Apple GPU ({platform.machine()})"
    return answer.stdout.strip()
