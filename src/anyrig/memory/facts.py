"""A footprint as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .device_footprint import DeviceFootprint
from .leaks import Leak
from .moment import Moment


def format_json(
    devices: Sequence[DeviceFootprint],
    steps: Sequence[Sequence[DeviceFootprint]],
    leaks: Sequence[Leak],
) -> str:
    """Return a footprint's devices, the devices of each of its steps, and its leaks, as JSON."""
    facts = _facts(devices)
    if steps:
        facts["steps"] = [_facts(step) for step in steps]
        facts["leaks"] = [
            {
                "sentence": leak.sentence,
                "line": str(leak.line),
                "allocated_at": str(leak.allocated_at),
                "bytes_per_step": leak.bytes_per_step,
                "steps": leak.steps,
            }
            for leak in leaks
        ]
    return json.dumps(facts, indent=2)


def _facts(devices: Sequence[DeviceFootprint]) -> dict[str, Any]:
    return {"devices": [_device(device) for device in devices]}


def _device(device: DeviceFootprint) -> dict[str, Any]:
    return {
        "device": str(device.device),
        "total_bytes": device.total_bytes,
        "outside_bytes": device.outside_bytes,
        "start": _moment(device.start),
        "peak": _moment(device.peak),
        "end": _moment(device.end),
        "curve": {
            "seconds": device.curve.seconds,
            "reserved_bytes": device.curve.reserved_bytes,
            "bytes_by_kind": {kind.value: values for kind, values in device.curve.bytes_of.items()},
        },
    }


def _moment(moment: Moment) -> dict[str, Any]:
    return {
        "allocated_bytes": moment.allocated_bytes,
        "reserved_bytes": moment.reserved_bytes,
        "phase": moment.phase,
        "module": moment.module,
        "line": None if moment.line is None else str(moment.line),
        "bytes_by_kind": {kind.value: count for kind, count in moment.by_kind().items()},
        "bytes_by_module": _texts(moment.by_module()),
        "bytes_by_name": _texts(moment.by_name()),
        "bytes_by_line": _texts(moment.by_line()),
    }


def _texts(counts: Mapping[Any, int]) -> dict[str, int]:
    """Return the counts with string keys; None becomes ``"?"``."""
    return {"?" if key is None else str(key): count for key, count in counts.items()}
