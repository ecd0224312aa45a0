"""What ``--query-gpu`` and ``--query-compute-apps`` can be asked: each field's unit and value."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pynvml

from .card import Card, Holder

# The unit stands in the header and behind each value; None is written as [N/A].
CardField = tuple[str | None, Callable[[Card], Any]]
HolderField = tuple[str | None, Callable[[Card, Holder], Any]]

_SWITCH = ("Disabled", "Enabled")


def _mebibytes(value: int) -> int:
    return value // 2**20


def _watts(milliwatts: int | None) -> str | None:
    return None if milliwatts is None else f"{milliwatts / 1000:.2f}"


def _asked(question: str, *arguments: object) -> Callable[[Card], Any]:
    return lambda card: card.ask(question, *arguments)


def _watts_of(question: str) -> Callable[[Card], str | None]:
    return lambda card: _watts(card.ask(question))


def _switch(question: str) -> Callable[[Card], str]:
    return lambda card: _SWITCH[card.ask(question)]


def _use(question: str) -> Callable[[Card], int]:
    return lambda card: int(card.ask(question)[0])


def _memory(kind: str) -> CardField:
    return "MiB", lambda card: _mebibytes(getattr(card.memory, kind))


def _unknown(card: Card) -> None:
    return None


def _now(*_: object) -> str:
    seconds = time.time()
    text = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(seconds))
    return f"{text}.{int(seconds % 1 * 1000):03d}"


def _capability(card: Card) -> str:
    major, minor = card.ask("CudaComputeCapability")
    return f"{major}.{minor}"


_CLOCKS = {"graphics": 0, "gr": 0, "sm": 1, "memory": 2, "mem": 2, "video": 3}

CARD_FIELDS: dict[str, CardField] = {
    "timestamp": (None, _now),
    "driver_version": (None, lambda _: pynvml.nvmlSystemGetDriverVersion()),
    "count": (None, lambda _: pynvml.nvmlDeviceGetCount()),
    "index": (None, lambda card: card.index),
    "name": (None, lambda card: card.name),
    "uuid": (None, lambda card: card.uuid),
    "serial": (None, _asked("Serial")),
    "compute_cap": (None, _capability),
    "pci.bus_id": (None, lambda card: card.bus_id),
    "pci.domain": (None, lambda card: f"0x{card.ask('PciInfo').domain:04X}"),
    "pci.bus": (None, lambda card: f"0x{card.ask('PciInfo').bus:02X}"),
    "pci.device": (None, lambda card: f"0x{card.ask('PciInfo').device:02X}"),
    "pcie.link.gen.current": (None, _asked("CurrPcieLinkGeneration")),
    "pcie.link.gen.max": (None, _asked("MaxPcieLinkGeneration")),
    "pcie.link.width.current": (None, _asked("CurrPcieLinkWidth")),
    "pcie.link.width.max": (None, _asked("MaxPcieLinkWidth")),
    "display_mode": (None, _switch("DisplayMode")),
    "display_active": (None, _switch("DisplayActive")),
    "persistence_mode": (None, _switch("PersistenceMode")),
    "compute_mode": (None, lambda _: "Default"),
    "pstate": (None, lambda card: f"P{card.ask('PerformanceState')}"),
    "memory.total": _memory("total"),
    "memory.reserved": _memory("reserved"),
    "memory.used": _memory("used"),
    "memory.free": _memory("free"),
    "utilization.gpu": ("%", lambda card: card.ask("UtilizationRates").gpu),
    "utilization.memory": ("%", lambda card: card.ask("UtilizationRates").memory),
    "utilization.encoder": ("%", _use("EncoderUtilization")),
    "utilization.decoder": ("%", _use("DecoderUtilization")),
    "temperature.gpu": (None, _asked("Temperature", pynvml.NVML_TEMPERATURE_GPU)),
    "fan.speed": ("%", _asked("FanSpeed")),
    "power.management": (None, _switch("PowerManagementMode")),
    "power.draw": ("W", _watts_of("PowerUsage")),
    "power.draw.average": ("W", _watts_of("PowerUsage")),
    "power.draw.instant": ("W", _watts_of("PowerUsage")),
    "power.limit": ("W", _watts_of("PowerManagementLimit")),
    "power.default_limit": ("W", _watts_of("PowerManagementDefaultLimit")),
    "power.max_limit": ("W", _watts_of("PowerManagementDefaultLimit")),
    "enforced.power.limit": ("W", _watts_of("EnforcedPowerLimit")),
    **{f"clocks.{kind}": ("MHz", _asked("ClockInfo", n)) for kind, n in _CLOCKS.items()},
    **{f"clocks.current.{kind}": ("MHz", _asked("ClockInfo", n)) for kind, n in _CLOCKS.items()},
    **{f"clocks.max.{kind}": ("MHz", _asked("MaxClockInfo", n)) for kind, n in _CLOCKS.items()},
    # Fields of NVIDIA's that a virtual card has no value for.
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
CARD_FIELDS |= {
    "gpu_name": CARD_FIELDS["name"],
    "gpu_uuid": CARD_FIELDS["uuid"],
    "gpu_serial": CARD_FIELDS["serial"],
    "gpu_bus_id": CARD_FIELDS["pci.bus_id"],
}

HOLDER_FIELDS: dict[str, HolderField] = {
    "timestamp": (None, _now),
    "gpu_name": (None, lambda card, _: card.name),
    "gpu_bus_id": (None, lambda card, _: card.bus_id),
    "gpu_serial": (None, lambda card, _: card.ask("Serial")),
    "gpu_uuid": (None, lambda card, _: card.uuid),
    "pid": (None, lambda _, holder: holder.pid),
    "process_name": (None, lambda _, holder: holder.name),
    "name": (None, lambda _, holder: holder.name),
    "used_gpu_memory": ("MiB", lambda _, holder: _mebibytes(holder.used_bytes)),
    "used_memory": ("MiB", lambda _, holder: _mebibytes(holder.used_bytes)),
}
