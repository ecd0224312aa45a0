"""One line that puts a module onto every device of a rig."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..devices.rig import Rig
from ..errors import SpreadError
from .data_parallel import AnyDevice, DataParallel, make_layout, require_plain_module
from .losses.loss import Criterion
from .replicas.batch_norm import synchronize_batch_norm
from .replicas.replicas import check_place
from .shares.shares import Shares

HOW = ("auto", "replicate")


def spread(
    module: torch.nn.Module,
    rig: Rig | None = None,
    *,
    how: str = "auto",
    shares: str | Sequence[float] | Shares | None = None,
    loss: Criterion | None = None,
    output_device: AnyDevice | None = None,
    dim: int = 0,
    sync_batch_norm: bool = False,
) -> DataParallel:
    """Return `module` spread over the devices of a rig; call it as you would call the module.

    ::

        model = anyrig.spread(Net(), loss=nn.CrossEntropyLoss())
        for x, y in loader:
            loss = model(x, target=y)       # of the whole batch; model(x) returns the outputs
            loss.backward()                 # all devices
            optimizer.step(); optimizer.zero_grad()

    The module itself is used on the first device, the lead; a module on the CPU is moved there, in
    place, as `torch.nn.Module.to` does. On a rig of one device it is called as it is. See
    `DataParallel` for what the result does, and `explain` for how it was spread and why.

    Args:
        module: any module; its parameters stay the ones to optimize.
        rig: by default every working accelerator, the one that has the module first.
        how: ``"replicate"``: the whole module on each device, and a share of each batch; ``"auto"``
            is the same, being all there is.
        shares: how much of a batch each device gets: ``"even"``; ``"speed"``, from published
            rates, corrected by the times of the first steps, then held; ``"memory"``, so that all
            are equally full; or one number a device. By default by speed if the devices differ.
        loss: a criterion ``loss(output, target)``, computed beside each replica's output when the
            model is called with ``target=``; outputs then never meet on one device. See
            `ParallelLoss` for which criterions are combined exactly.
        output_device: where outputs are gathered, by default the lead.
        dim: the dimension along which batches are divided.
        sync_batch_norm: let layers of batch normalization take their statistics from the whole
            batch, not from each device's rows; replaces these layers within the module.

    Raises:
        SpreadError: `how` is unknown; or the module cannot be spread, is spread already, or lies
            elsewhere.
        SharesError: `shares` are no shares of these devices.
    """
    require_plain_module(module)
    if how not in HOW:
        raise SpreadError(
            f"how={how!r} is not among the ways to spread a module; take one of "
            f"{', '.join(map(repr, HOW))}"
        )
    rig = _with_lead(Rig.detect(), module) if rig is None else rig
    lead = rig.lead.torch_device
    if sync_batch_norm:
        module = synchronize_batch_norm(module)
    if len(rig) == 1 or _lies_on_cpu(module):
        module.to(lead)
    check_place(module, lead)
    return DataParallel.with_layout(module, make_layout(rig, shares, output_device, dim), loss)


def _with_lead(rig: Rig, module: torch.nn.Module) -> Rig:
    """Return a rig of the same devices with the one first on which the module lies, if it does."""
    here = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    first = [device for device in rig if device.torch_device in here]
    if len(here) != 1 or not first:
        return rig
    rest = [device for device in rig if device not in first]
    return Rig((*first, *rest), rig.reason)


def _lies_on_cpu(module: torch.nn.Module) -> bool:
    tensors = (*module.parameters(), *module.buffers())
    return all(tensor.device.type == "cpu" for tensor in tensors)
