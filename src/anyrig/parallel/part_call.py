"""What one device computes of a call: the module, or the module and the loss of its part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .losses.loss import Criterion, LossPart, criterion_on, loss_part


def calling(module: torch.nn.Module, inputs: Any, kwargs: Any) -> Callable[[], Any]:
    """Return a function that calls `module` with the arguments of its part."""
    return lambda: module(*inputs, **kwargs)


def computing_loss(
    module: torch.nn.Module,
    inputs: Any,
    kwargs: Any,
    loss: Criterion,
    device: torch.device,
    rows: int,
) -> Callable[[], Any]:
    """Return a function that calls `module`, and then `loss` on the same device.

    Args:
        module: a replica on `device`.
        inputs: the arguments of its part of the batch.
        kwargs: the named ones, ``target`` among them, which is the loss's.
        loss: the criterion, wherever its tensors are.
        device: where the part is.
        rows: how many samples the part has.
    """

    def compute() -> LossPart:
        output = module(*inputs, **_without_target(kwargs))
        return loss_part(criterion_on(loss, device), output, kwargs["target"], rows)

    return compute


def _without_target(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "target"}
