"""Layers that cannot learn from a single sample."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .replicas.batch_norm import WholeBatchNorm
from .replicas.failure import add_note

# Layers that combine the statistics of all devices or ranks.
_SYNCHRONIZED = (nn.SyncBatchNorm, WholeBatchNorm)


def needs_several_samples(module: nn.Module) -> bool:
    """Return whether a layer refuses a batch of one sample, or learns wrong statistics from it."""
    return any(_takes_statistics_of_batch(layer) for layer in module.modules())


def explain_single_sample(error: ValueError) -> None:
    """Add a remedy to PyTorch's error about a batch of one sample; leave other errors alone."""
    if str(error).startswith("Expected more than 1 value per channel when training"):
        add_note(
            error,
            "batch normalization needs two samples on each device or rank that has any. "
            "spread(…, sync_batch_norm=True) computes statistics over the samples of all devices "
            "(over ranks on GPUs only); anyrig.distribute(loader) gives no rank a single sample "
            "of several; DataLoader(…, drop_last=True) drops a last batch that is too small",
        )


def _takes_statistics_of_batch(layer: nn.Module) -> bool:
    if isinstance(layer, _BatchNorm):
        uses_batch = layer.training or layer.running_mean is None
        return uses_batch and not isinstance(layer, _SYNCHRONIZED)
    # PyTorch counts the samples among the values of a channel, so it refuses a single sample.
    return isinstance(layer, nn.GroupNorm) and layer.num_groups == layer.num_channels
