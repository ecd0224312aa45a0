"""Calling one module a device, all at once."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...devices.place import Places, as_torch_devices
from ...errors import SpreadError
from ...transfer.location import device_of
from .each_once import each_once
from .side_by_side import SideBySide
from .stopping import Stop


def parallel_apply(
    modules: Sequence[torch.nn.Module],
    inputs: Sequence[Any],
    kwargs: Sequence[Mapping[str, Any]] | None = None,
    devices: Places | None = None,
) -> list[Any]:
    """Return ``[modules[0](*inputs[0], **kwargs[0]), ...]``, all called at the same time.

    Each is called in a thread of its device, the first in the caller's, with the caller's
    gradient mode, autocast, inference mode, streams, and context variables.

    Args:
        modules: as `replicate` returns them, or any callables.
        inputs: for each a tuple or list of positional arguments, or the only argument.
        kwargs: for each its keyword arguments.
        devices: for each its device, by default where the module, or else its input, lies.

    Raises:
        SpreadError: the sequences differ in length, or a device is named twice.
        Exception: that of a module, with the device and the shapes it got in a note.
    """
    kwargs = [{}] * len(modules) if kwargs is None else kwargs
    devices = None if devices is None else as_torch_devices(devices)
    counts = {len(modules), len(inputs), len(kwargs), *([] if devices is None else [len(devices)])}
    if len(counts) > 1:
        raise SpreadError(
            f"there are {len(modules)} modules, {len(inputs)} inputs and {len(kwargs)} kwargs"
            f"{'' if devices is None else f' and {len(devices)} devices'}; give one of each a call"
        )
    if not modules:
        return []
    arguments = [tuple(one) if isinstance(one, (tuple, list)) else (one,) for one in inputs]
    places = each_once(
        [_place(module, given) for module, *given in zip(modules, arguments, kwargs, strict=True)]
        if devices is None
        else devices
    )
    functions = [
        functools.partial(module, *args, **named)
        for module, args, named in zip(modules, arguments, kwargs, strict=True)
    ]
    given = list(zip(arguments, kwargs, strict=True))
    return SideBySide().run(places, functions, given, places, Stop())


def _place(module: Any, given: Any) -> torch.device:
    if isinstance(module, torch.nn.Module):
        tensor = next(iter((*module.parameters(), *module.buffers())), None)
        if tensor is not None:
            return tensor.device
    return device_of(given)
