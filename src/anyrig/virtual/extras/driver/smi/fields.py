"""The fields of ``--query-gpu`` and ``--query-compute-apps``: the unit and value of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pynvml

from .gpu import Gpu, Holder

# (unit, function that reads the value). The unit is printed in the header and after each value. A
# value of None is printed as [N/A].
GpuField = tuple[str | None, Callable[[Gpu], Any]]
HolderField = tuple[str | None, Callable[[Gpu, Holder], Any]]

_SWITCH = ("Disabled", "Enabled")


def _mebibytes(value: int) -> int:
    return value // 2**20


def _watts(milliwatts: int | None) -> str | None:
    return None if milliwatts is None else f"{milliwatts / 1000:.2f}"


def _reading(quantity: str, *arguments: object) -> Callable[[Gpu], Any]:
    return lambda gpu: gpu.read(quantity, *arguments)


def _watts_of(quantity: str) -> Callable[[Gpu], str | None]:
    return lambda gpu: _watts(gpu.read(quantity))


def _switch(quantity: str) -> Callable[[Gpu], str]:
    return lambda gpu: _SWITCH[gpu.read(quantity)]


def _utilization(quantity: str) -> Callable[[Gpu], int]:
    return lambda gpu: int(gpu.read(quantity)[0])


def _memory(kind: str) -> GpuField:
    return "MiB", lambda gpu: _mebibytes(getattr(gpu.memory, kind))


def _unknown(gpu: Gpu) -> None:
    return None


def _now(*_: object) -> str:
    seconds = time.time()
    text = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(seconds))
    return f"{text}.{int(seconds % 1 * 1000):03d}"


def _capability(gpu: Gpu) -> str:
    major, minor = gpu.read("CudaComputeCapability")
    return f"{major}.{minor}"


_CLOCKS = {"graphics": 0, "gr": 0, "sm": 1, "memory": 2, "mem": 2, "video": 3}

GPU_FIELDS: dict[str, GpuField] = {
    "timestamp": (None, _now),
    "driver_version": (None, lambda _: pynvml.nvmlSystemGetDriverVersion()),
    "count": (None, lambda _: pynvml.nvmlDeviceGetCount()),
    "index": (None, lambda gpu: gpu.index),
    "name": (None, lambda gpu: gpu.name),
    "uuid": (None, lambda gpu: gpu.uuid),
    "serial": (None, _reading("Serial")),
    "compute_cap": (None, _capability),
    "pci.bus_id": (None, lambda gpu: gpu.bus_id),
    "pci.domain": (None, lambda gpu: f"0x{gpu.read('PciInfo').domain:04X}"),
    "pci.bus": (None, lambda gpu: f"0x{gpu.read('PciInfo').bus:02X}"),
    "pci.device": (None, lambda gpu: f"0x{gpu.read('PciInfo').device:02X}"),
    "pcie.link.gen.current": (None, _reading("CurrPcieLinkGeneration")),
    "pcie.link.gen.max": (None, _reading("MaxPcieLinkGeneration")),
    "pcie.link.width.current": (None, _reading("CurrPcieLinkWidth")),
    "pcie.link.width.max": (None, _reading("MaxPcieLinkWidth")),
    "display_mode": (None, _switch("DisplayMode")),
    "display_active": (None, _switch("DisplayActive")),
    "persistence_mode": (None, _switch("PersistenceMode")),
    "compute_mode": (None, lambda _: "Default"),
    "pstate": (None, lambda gpu: f"P{gpu.read('PerformanceState')}"),
    "memory.total": _memory("total"),
    "memory.reserved": _memory("reserved"),
    "memory.used": _memory("used"),
    "memory.free": _memory("free"),
    "utilization.gpu": ("%", lambda gpu: gpu.read("UtilizationRates").gpu),
    "utilization.memory": ("%", lambda gpu: gpu.read("UtilizationRates").memory),
    "utilization.encoder": ("%", _utilization("EncoderUtilization")),
    "utilization.decoder": ("%", _utilization("DecoderUtilization")),
    "temperature.gpu": (None, _reading("Temperature", pynvml.NVML_TEMPERATURE_GPU)),
    "fan.speed": ("%", _reading("FanSpeed")),
    "power.management": (None, _switch("PowerManagementMode")),
    "power.draw": ("W", _watts_of("PowerUsage")),
    "power.draw.average": ("W", _watts_of("PowerUsage")),
    "power.draw.instant": ("W", _watts_of("PowerUsage")),
    "power.limit": ("W", _watts_of("PowerManagementLimit")),
    "power.default_limit": ("W", _watts_of("PowerManagementDefaultLimit")),
    "power.max_limit": ("W", _watts_of("PowerManagementDefaultLimit")),
    "enforced.power.limit": ("W", _watts_of("EnforcedPowerLimit")),
    **{f"clocks.{kind}": ("MHz", _reading("ClockInfo", n)) for kind, n in _CLOCKS.items()},
    **{f"clocks.current.{kind}": ("MHz", _reading("ClockInfo", n)) for kind, n in _CLOCKS.items()},
    **{f"clocks.max.{kind}": ("MHz", _reading("MaxClockInfo", n)) for kind, n in _CLOCKS.items()},
    # Fields for which a virtual GPU has no value.
    **dict.fromkeys(
        "accounting.mode addressing_mode mig.mode.current mig.mode.pending temperature.memory "
        "vbios_version inforom.img inforom.oem inforom.ecc inforom.pwr gom.current gom.pending "
        "ecc.mode.current ecc.mode.pending ecc.errors.corrected.volatile.total "
        "ecc.errors.uncorrected.volatile.total ecc.errors.corrected.aggregate.total "
        "ecc.errors.uncorrected.aggregate.total driver_model.current driver_model.pending "
        "pci.device_id pci.sub_device_id power.min_limit gpu_operation_mode.current "
        "clocks_throttle_reasons.active clocks_event_reasons.active".split(),
        (None, _unknown),
    ),
}
GPU_FIELDS |= {
    "gpu_name": GPU_FIELDS["name"],
    "gpu_uuid": GPU_FIELDS["uuid"],
    "gpu_serial": GPU_FIELDS["serial"],
    "gpu_bus_id": GPU_FIELDS["pci.bus_id"],
}

HOLDER_FIELDS: dict[str, HolderField] = {
    "timestamp": (None, _now),
    "gpu_name": (None, lambda gpu, _: gpu.name),
    "gpu_bus_id": (None, lambda gpu, _: gpu.bus_id),
    "gpu_serial": (None, lambda gpu, _: gpu.read("Serial")),
    "gpu_uuid": (None, lambda gpu, _: gpu.uuid),
    "pid": (None, lambda _, holder: holder.pid),
    "process_name": (None, lambda _, holder: holder.name),
    "name": (None, lambda _, holder: holder.name),
    "used_gpu_memory": ("MiB", lambda _, holder: _mebibytes(holder.used_bytes)),
    "used_memory": ("MiB", lambda _, holder: _mebibytes(holder.used_bytes)),
}
