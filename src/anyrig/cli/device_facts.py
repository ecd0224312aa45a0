"""Devices as JSON: bytes are integers, and unknown values are null."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..devices.reading import Reading


def device_facts(reading: Reading) -> dict[str, Any]:
    """Return the JSON object that `anyrig devices --json` prints for one device."""
    device = reading.device
    return {
        "device": device.text,
        "kind": device.kind,
        "index": device.index,
        "name": device.name,
        "uuid": device.uuid,
        "pci_bus_id": device.pci_bus_id,
        "capability": device.capability,
        "spec": device.spec.key if device.spec else None,
        "total_bytes": device.total_bytes,
        "free_bytes": reading.free_bytes,
        "used_bytes": reading.used_bytes,
        "own_bytes": reading.own_bytes,
        "others_bytes": reading.others_bytes,
        "utilization": reading.utilization,
        "temperature_celsius": reading.temperature_celsius,
        "processes": None
        if reading.processes is None
        else [asdict(process) for process in reading.processes],
        "error": device.error or reading.error,
    }
