"""Layers that cannot learn from a single sample, and what to do about them."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .replicas.batch_norm import WholeBatchNorm

# Layers that combine the statistics of all devices or ranks.
_SYNCHRONIZED = (nn.SyncBatchNorm, WholeBatchNorm)
_OF_PYTORCH = "Expected more than 1 value per channel when training"


def needs_several_samples(module: nn.Module) -> bool:
    """Say whether a layer refuses, or learns wrong statistics from, a batch of one sample."""
    return any(_takes_statistics_of_batch(layer) for layer in module.modules())


def explain_single_sample(error: ValueError) -> None:
    """Add to PyTorch's error about a batch of one sample what to do."""
    text = str(error.args[0]) if error.args else ""
    if not text.startswith(_OF_PYTORCH):
        return
    note = (
        "[anyrig: batch normalization needs two samples on each device or rank that has any. "
        "spread(…, sync_batch_norm=True) takes its statistics from the samples of all of them, "
        "over ranks on GPUs only; anyrig.distribute(loader) gives no rank a single sample of "
        "several; DataLoader(…, drop_last=True) leaves out a last batch that is too small]"
    )
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(note)
    else:
        error.args = (f"{text}\n{note}", *error.args[1:])


def _takes_statistics_of_batch(layer: nn.Module) -> bool:
    if isinstance(layer, _BatchNorm):
        uses_batch = layer.training or layer.running_mean is None
        return uses_batch and not isinstance(layer, _SYNCHRONIZED)
    # PyTorch counts its samples as values of a channel, so it refuses a single one.
    return isinstance(layer, nn.GroupNorm) and layer.num_groups == layer.num_channels
