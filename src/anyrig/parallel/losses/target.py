"""Calls a module without its ``target=``, and computes the loss from both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .loss import Criterion, LossPart, criterion_on, loss_part


def call_without_target(
    module: torch.nn.Module, inputs: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Return the module's output for all arguments but ``target``, and the target."""
    others = kwargs.copy()
    target = others.pop("target")
    return module(*inputs, **others), target


def compute_loss_part(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    kwargs: dict[str, Any],
    loss: Criterion,
    device: torch.device,
    samples: int,
) -> LossPart:
    """Return the loss of one part of a batch, computed on the device that computed its output."""
    output, target = call_without_target(module, inputs, kwargs)
    return loss_part(criterion_on(loss, device), output, target, samples)
