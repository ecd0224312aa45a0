"""Replicas of a module for one use."""

from __future__ import annotations

import torch

from ...devices.place import Places
from ..device_ids import each_once
from .replicas import Replicas


def replicate(module: torch.nn.Module, devices: Places) -> list[torch.nn.Module]:
    """Return one module for each device, in order; gradients of all reach `module`'s parameters.

    The first is `module` itself. The others have its values as they are now. With `scatter`,
    `parallel_apply` and `gather` it makes a step of `DataParallel` by hand, which keeps its
    replicas, while these are made anew at each call.

    Args:
        module: lies on the first device.
        devices: a rig or a list, each device once.

    Raises:
        SpreadError: a parameter or buffer is not on the first device, a device is named twice, or
            there is none.
    """
    resolved = each_once(devices)
    replicas = Replicas(module, resolved)
    copies = replicas.begin(range(len(resolved) - 1)) if len(resolved) > 1 else []
    replicas.end()
    return [module, *copies]
