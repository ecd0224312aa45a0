"""What to write in place of `torch.nn.DataParallel`."""

from __future__ import annotations

import warnings

import torch

from ..devices.place import Place, Places
from ..private_names import refuse_missing
from .device_ids import misses_gpus, rig_of
from .engines.replicas.engine import ReplicaEngine
from .layout import make_layout
from .plans import Replicas
from .spread_module import SpreadModule, require_plain_module


def DataParallel(  # noqa: N802 - the name of what it replaces
    module: torch.nn.Module,
    device_ids: Places | None = None,
    output_device: Place | None = None,
    dim: int = 0,
) -> SpreadModule:
    """Return a module spread over devices, with the arguments of `torch.nn.DataParallel`.

    ::

        model = anyrig.DataParallel(Net().to("cuda:0"))
        loss = criterion(model(x), y)  # divides x over the devices, gathers outputs on the lead
        loss.backward()                # on every device; adds the gradients on the lead

    `anyrig.spread` does the same and has more options.

    Args:
        module: the module, on the first device; or on the CPU if there is one device only.
        device_ids: the devices, the lead first; by default all accelerators in order of index. On
            a machine without accelerators the module is called on the CPU, as `nn.DataParallel`
            does, with a warning.
        output_device: where outputs are gathered; by default the lead.
        dim: the dimension along which batches are divided.
    """
    refuse_missing("parallel")
    if misses_gpus(device_ids):
        warnings.warn(
            f"device_ids={device_ids} was given, but PyTorch finds no GPU: the module is called on "
            "the CPU. If this machine has GPUs, anyrig devices shows why PyTorch does not see them",
            stacklevel=2,
        )
        device_ids, output_device = None, None
    require_plain_module(module)
    rig = rig_of(device_ids)
    if len(rig) == 1:
        module.to(rig.lead.torch_device)
    layout = make_layout(rig, Replicas(), output_device, dim)
    return SpreadModule(ReplicaEngine(module, layout, None))
