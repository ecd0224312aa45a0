"""The part of a footprint that belongs to one device."""

from __future__ import annotations

from anyrig.memory import DeviceFootprint, Footprint


def on(device: str, footprint: Footprint) -> DeviceFootprint:
    (found,) = [each for each in footprint.devices if str(each.device) in (device, f"{device}:0")]
    return found
