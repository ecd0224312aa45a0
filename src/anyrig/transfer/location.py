"""Find the device of a value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..errors import MixedDevicesError
from .tree import Path, format_path, map_leaves


def device_of(value: Any) -> torch.device:
    """Return the device of a tensor, a module or a batch.

    The device of a module is that of its parameters and buffers; the device of a batch is that of
    its tensors and modules. The device of another object is its attribute `device`.

    Raises:
        MixedDevicesError: the parts are on several devices, or no part has a device; the message
            gives the device of each part.
        MoveError: the value contains itself, or has a tensor as a key.
    """
    first_on: dict[torch.device, str] = {}

    def note(leaf: Any, path: Path) -> Any:
        for part, device in _devices_in(leaf):
            first_on.setdefault(device, f"{format_path(path)}{part}")
        return leaf

    map_leaves(value, note)
    if len(first_on) == 1:
        return next(iter(first_on))
    if not first_on:
        raise MixedDevicesError(
            f"this {type(value).__name__} has no device: it contains no tensor and no module. "
            "Pass the batch or the model itself"
        )
    places = ", ".join(f"{where} on {device}" for device, where in first_on.items())
    raise MixedDevicesError(
        f"this {type(value).__name__} lies on {len(first_on)} devices: {places}. "
        "Move all of it to one with move(value, device)"
    )


def _devices_in(leaf: Any) -> Iterator[tuple[str, torch.device]]:
    if isinstance(leaf, torch.nn.Module):
        for name, parameter in leaf.named_parameters():
            yield f".{name}", parameter.device
        for name, buffer in leaf.named_buffers():
            yield f".{name}", buffer.device
    elif isinstance(device := getattr(leaf, "device", None), torch.device):
        yield "", device
