"""Whether a module fits one device, which then has the only stage."""

from __future__ import annotations

import math

from torch import nn

from ....devices.device import Device
from ....errors import SpreadError
from ....units import format_bytes


def require_room(module: nn.Module, device: Device) -> None:
    """Raise if parameters, buffers and, in training mode, gradients need more than the device has.

    Raises:
        SpreadError: the message names the missing bytes, and how many such devices would suffice.
    """
    if device.kind == "cpu" or device.total_bytes is None:
        return
    tensors = [*module.parameters(), *module.buffers()]
    held = sum(tensor.nbytes for tensor in tensors)
    gradients = sum(tensor.nbytes for tensor in tensors if tensor.requires_grad and module.training)
    missing = held + gradients - device.total_bytes
    if missing > 0:
        least = math.ceil((held + gradients) / device.total_bytes)
        raise SpreadError(
            f"{type(module).__name__} needs {format_bytes(held + gradients)} or more "
            f"({format_bytes(held)} of parameters and buffers, {format_bytes(gradients)} of "
            f"gradients), and {device.text} has {format_bytes(device.total_bytes)}: "
            f"{format_bytes(missing)} are missing; use {least} or more such devices, among which "
            "plan=Pipeline() divides the layers"
        )
