"""What the training loops of published runs have in common."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


def spread(model: nn.Module) -> nn.Module:
    """Return `model` as a replica among all ranks, if there are several."""
    if not dist.is_initialized():
        return model
    return nn.parallel.DistributedDataParallel(model, device_ids=[0])


@torch.no_grad()
def follow(averages: Iterable[Tensor], parameters: Iterable[Tensor], rate: float) -> None:
    """Move moving averages towards parameters, one tensor after the other."""
    for average, parameter in zip(averages, parameters, strict=True):
        average.mul_(rate).add_((1 - rate) * parameter.detach())
