"""Devices of known GPUs, by the keys of their specs."""

from __future__ import annotations

from anyrig.devices import Device
from anyrig.hardware.spec import specs


def gpus(*keys: str) -> list[Device]:
    return [
        Device(
            "cuda",
            index,
            specs()[key].names[0],
            total_bytes=specs()[key].memory_bytes,
            spec=specs()[key],
        )
        for index, key in enumerate(keys)
    ]
