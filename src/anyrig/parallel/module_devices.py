"""The devices that a module's parameters and buffers are on."""

from __future__ import annotations

import torch


def devices_of(module: torch.nn.Module) -> set[torch.device]:
    """Return the devices of a module's parameters and buffers."""
    return {tensor.device for tensor in (*module.parameters(), *module.buffers())}


def device_types_of(module: torch.nn.Module) -> set[str]:
    """Return the types of these devices, such as ``"cuda"``."""
    return {device.type for device in devices_of(module)}
