"""Calling one module on each device, concurrently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...devices.place import Places, as_torch_devices
from ...errors import SpreadError
from ...transfer.location import device_of
from ..device_ids import resolve_devices
from .meeting import Meeting
from .side_by_side import SideBySide


def parallel_apply(
    modules: Sequence[torch.nn.Module],
    inputs: Sequence[Any],
    kwargs: Sequence[Mapping[str, Any]] | None = None,
    devices: Places | None = None,
) -> list[Any]:
    """Return ``[modules[0](*inputs[0], **kwargs[0]), ...]``, all called concurrently.

    The first module runs in the caller's thread, each other in the thread of its device, with the
    caller's gradient mode, autocast, inference mode, streams, and context variables.

    Args:
        modules: as `replicate` returns them, or any callables.
        inputs: for each module, a tuple or list of positional arguments, or the only argument.
        kwargs: for each module, its keyword arguments.
        devices: for each module, its device; by default that of its tensors, or of its input.

    Raises:
        SpreadError: the sequences differ in length, or a device is named twice.
        Exception: the first exception of a module, with its device and shapes in a note.
    """
    named = [{}] * len(modules) if kwargs is None else kwargs
    places: Sequence[torch.device] | None = None if devices is None else as_torch_devices(devices)
    if len({len(modules), len(inputs), len(named), len(modules if places is None else places)}) > 1:
        raise SpreadError(
            f"there are {len(modules)} modules, {len(inputs)} inputs and {len(named)} kwargs"
            f"{'' if places is None else f' and {len(places)} devices'}; give one of each a call"
        )
    if not modules:
        return []
    arguments = [tuple(one) if isinstance(one, (tuple, list)) else (one,) for one in inputs]
    given = list(zip(arguments, named, strict=True))
    if places is None:
        places = [_place(module, one) for module, one in zip(modules, given, strict=True)]
    meeting = Meeting(resolve_devices(places), exchanges=False)
    return SideBySide(meeting.devices).run(meeting, modules, given)


def _place(module: Any, given: Any) -> torch.device:
    if isinstance(module, torch.nn.Module):
        for tensor in (*module.parameters(), *module.buffers()):
            return tensor.device
    return device_of(given)
