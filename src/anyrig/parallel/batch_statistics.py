"""Warnings of numbers that each device takes from its own samples, unlike one device.

=====================  =====================================================================
batch normalization    each device normalizes with the mean and variance of its samples
a written buffer       each device writes what its samples make of it, as a codebook's moving
                       average; the values of the first device stay
=====================  =====================================================================

What is written without regard to samples, as a counter or a power iteration, is equal everywhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from .plans import Plan, Replicas

# Rounding differs between kinds of devices.
_RELATIVE = 1e-3
# Frames from a warning to the line that calls a model; over ranks, one less.
_OF_THE_CALLER = 8


class BatchStatisticsWarning(UserWarning):
    """A training step takes numbers from the samples of each device alone."""


def warn_of_batch_norm(module: nn.Module, plan: Plan, over_ranks: bool = False) -> None:
    """Warn if a layer normalizes with the statistics of each device's samples."""
    if plan.local_statistics:
        return
    remedy = "Convert the layers with torch.nn.SyncBatchNorm.convert_sync_batchnorm on GPUs"
    if isinstance(plan, Replicas):
        remedy = (
            "Take those of the whole batch, plan=Replicas(sync_batch_norm=True), or "
            "accept these, plan=Replicas(local_statistics=True)"
        )
    for name, layer in module.named_modules():
        # The forward of a scripted module cannot be read from its class.
        if not isinstance(layer, _BatchNorm) or type(layer).forward is not _BatchNorm.forward:
            continue
        if layer.training or layer.running_mean is None:
            warnings.warn(
                f"{name or 'the module'} ({type(layer).__name__}) normalizes with the statistics "
                "of each device's samples, so the numbers are not those of one device. "
                f"{remedy}; or put the layer in eval()",
                BatchStatisticsWarning,
                stacklevel=_OF_THE_CALLER - over_ranks,
            )
            return


def warn_of_written_buffers(
    plan: Plan, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> None:
    """Warn if a buffer, by its name, differs between two devices."""
    if plan.local_statistics:
        return
    for name, own in ours.items():
        other = theirs[name].to(own.device)
        if not torch.allclose(own, other, rtol=_RELATIVE, equal_nan=True):
            warnings.warn(
                f"the forward writes the buffer {name!r} from the samples of each device, so the "
                "numbers are not those of one device; the values of the first device stay. Write "
                "it outside of the forward, from what the model returns for the whole batch",
                BatchStatisticsWarning,
                stacklevel=_OF_THE_CALLER,
            )
            return


def written_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that may depend on samples, by name.

    Those of normalization layers do, and are left to `warn_of_batch_norm`.
    """
    return {
        f"{prefix}.{name}" if prefix else name: buffer
        for prefix, layer in module.named_modules()
        if layer.training and not isinstance(layer, _NormBase)
        for name, buffer in layer._buffers.items()
        if buffer is not None and buffer.is_floating_point()
    }
