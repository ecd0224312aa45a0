"""The losses that `Exact` takes."""

from __future__ import annotations

import torch

from ....errors import SpreadError
from ...losses.criterions import recognise
from ...losses.loss import Criterion, reduction_of


def require_exact_loss(loss: Criterion | None) -> None:
    """Raise SpreadError for a loss whose gradients `Exact` cannot compute."""
    if loss is None:
        raise SpreadError(
            "Exact computes gradients shard by shard, so it needs the loss: "
            "spread(module, plan=Exact(…), loss=criterion), and model(x, target=y)"
        )
    if reduction_of(loss, recognise(loss)) == "none":
        raise SpreadError('Exact needs one number as the loss; use reduction="mean"')
    if isinstance(loss, torch.nn.Module) and any(p.requires_grad for p in loss.parameters()):
        raise SpreadError(
            "Exact sums gradients of the module's parameters only, but the loss has "
            "parameters to learn; make the loss a part of the module"
        )
