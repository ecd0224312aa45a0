"""The CPU as a device."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import psutil

from ..device import Device
from ..reading import Reading

# Files with the memory limit of a Linux container (cgroup v2, then v1).
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
# The interval between the two readings of the counters that a utilization needs.
_SAMPLE_SECONDS = 0.05


class CpuProbe:
    """The host: all its cores are one device, as in PyTorch."""

    kind = "cpu"

    def find(self) -> tuple[Device, ...]:
        return (Device(kind="cpu", index=None, name=_model_name(), total_bytes=_usable_bytes()),)

    def read(self, device: Device) -> Reading:
        free_bytes = min(psutil.virtual_memory().available, device.total_bytes or sys.maxsize)
        own_bytes = psutil.Process().memory_info().rss
        used_bytes = (device.total_bytes or free_bytes) - free_bytes
        return Reading(
            device,
            free_bytes=free_bytes,
            own_bytes=own_bytes,
            others_bytes=max(0, used_bytes - own_bytes),
            utilization=psutil.cpu_percent(interval=_SAMPLE_SECONDS) / 100,
            temperature_celsius=_temperature_celsius(),
        )

    def peak_bytes(self, device: Device) -> int | None:
        if sys.platform == "win32":
            return int(psutil.Process().memory_info().peak_wset)
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak_bytes = peak if sys.platform == "darwin" else peak * 1024
        # Linux updates this record from time to time, so it may lag behind.
        return max(peak_bytes, psutil.Process().memory_info().rss)


def _usable_bytes() -> int:
    host_bytes = psutil.virtual_memory().total
    for path in _CGROUP_LIMITS:
        try:
            return min(host_bytes, int(path.read_text()))
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
    return host_bytes


def _model_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _temperature_celsius() -> float | None:
    if not hasattr(psutil, "sensors_temperatures"):  # macOS, Windows
        return None
    sensors = psutil.sensors_temperatures()
    package = next((sensors[chip] for chip in ("coretemp", "k10temp") if sensors.get(chip)), None)
    return package[0].current if package else None
