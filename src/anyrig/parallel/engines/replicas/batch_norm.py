"""Batch normalization with the statistics of the whole batch, and layers that cannot learn from one
sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...notes import add_note
from ...parts.cut import cut, join
from .meeting import current_meeting

# The number of values for each channel, and their (mean, biased variance), of shape (2, channels).
Moments = tuple[int, torch.Tensor]


class WholeBatchNorm(_BatchNorm):
    """Batch normalization over the samples of all devices in a spread model that is training.

    Otherwise the forward is that of the original layer.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - PyTorch's name
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - PyTorch's name
        """Return `input`, of shape (samples, channels, ...), normalized for each channel."""
        meeting = current_meeting()
        uses_batch = self.training or self.running_mean is None or self.running_var is None
        if meeting is None or not uses_batch:
            return super().forward(input)
        self._check_input_dim(input)
        axes = [axis for axis in range(input.dim()) if axis != 1]
        # Statistics of half precision are computed in float32, as in PyTorch's kernels.
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        count = input.numel() // input.shape[1]
        variance, mean = torch.var_mean(values, axes, correction=0)
        moments = count, torch.stack([mean, variance])
        what = "the batch statistics"
        total, (mean, variance) = meeting.combine(input.device, moments, _combine_moments, what)
        if total < 2:
            raise ValueError(
                "expected more than 1 value per channel when training, got an input of shape "
                f"{tuple(input.shape)} on one device"
            )
        if self.training and self.track_running_stats:
            self._track(mean.detach(), variance.detach() * (total / (total - 1)))
        shape = [1, -1] + [1] * (input.dim() - 2)
        scale = torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        shift = -mean * scale
        if self.bias is not None:
            shift = shift + self.bias
        normalized: torch.Tensor = values * scale.view(shape) + shift.view(shape)
        return normalized.to(input.dtype)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        part: Any = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if part is None:  # a cumulative average
                part = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), part or 0.0)
        self.running_var.lerp_(variance.to(self.running_var.dtype), part or 0.0)


def _combine_moments(
    devices: Sequence[torch.device], parts: Sequence[Moments]
) -> Sequence[Moments]:
    """Return the moments of all values, as Chan, Golub and LeVeque (1979) combine them.

    `join` and `cut` sum the gradients of all devices in the order of the devices, not of arrival.
    """
    total = sum(count for count, _ in parts)
    moments = join([moments[None] for _, moments in parts], devices[0])
    weights = moments.new_tensor([count / total for count, _ in parts]).view(-1, 1)
    means, variances = moments.unbind(1)
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean) ** 2)).sum(0)
    whole = torch.stack([mean, variance]).expand_as(moments)
    results = cut(whole, [1] * len(parts), devices)
    return [(total, result[0]) for result in results]


def synchronize_batch_norm(module: torch.nn.Module) -> torch.nn.Module:
    """Replace the batch normalization layers of a module in place, and return the module.

    New layers keep parameters, buffers, hooks and mode, so existing optimizers remain valid. If the
    module itself is such a layer, return the new layer.
    """
    modules = list(module.modules())
    layers: dict[torch.nn.Module | None, torch.nn.Module] = {}
    for old in modules:
        if isinstance(old, _BatchNorm) and not isinstance(old, WholeBatchNorm):
            layers[old] = WholeBatchNorm.__new__(WholeBatchNorm)
            layers[old].__dict__ = old.__dict__
    for parent in modules:
        parent._modules.update(
            {name: layers[child] for name, child in parent._modules.items() if child in layers}
        )
    return layers.get(module, module)


def needs_several_samples(module: nn.Module) -> bool:
    """Return whether a layer refuses a batch of one sample, or learns wrong statistics from it."""
    return any(_takes_statistics_of_batch(layer) for layer in module.modules())


def explain_single_sample(error: ValueError) -> None:
    """Add a remedy to PyTorch's error about a batch of one sample; leave other errors alone."""
    if str(error).startswith("Expected more than 1 value per channel when training"):
        add_note(
            error,
            "batch normalization needs two samples on each device or rank that has any. "
            "spread(…, plan=Replicas(sync_batch_norm=True)) computes statistics over the samples "
            "of all devices (over ranks on GPUs only); anyrig.distribute(loader) gives no rank a "
            "single sample of several; DataLoader(…, drop_last=True) drops a last batch that is "
            "too small",
        )


def _takes_statistics_of_batch(layer: nn.Module) -> bool:
    if isinstance(layer, _BatchNorm):
        uses_batch = layer.training or layer.running_mean is None
        return uses_batch and not isinstance(layer, (nn.SyncBatchNorm, WholeBatchNorm))
    # PyTorch counts the samples among the values of a channel, so it refuses a single sample.
    return isinstance(layer, nn.GroupNorm) and layer.num_groups == layer.num_channels
