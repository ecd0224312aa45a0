"""Gradients that other ranks have: so that a norm of all gradients is never one of a few.

::

    backward()     parameters elsewhere get a gradient elsewhere: its norm is refused
    step()         drops these gradients first, so that optimizers skip these parameters
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .elsewhere import Elsewhere
from .links import Links


def mark_gradients(parameters: Iterable[Tensor], own: Sequence[Tensor]) -> None:
    """Give parameters elsewhere a gradient elsewhere, if this rank's own have gradients."""
    if own and all(each.grad is None for each in own):  # torch.autograd.grad, not backward()
        return
    for parameter in parameters:
        if isinstance(parameter, Elsewhere) and parameter.requires_grad:
            parameter.grad = Elsewhere(
                parameter,
                f"the gradient of {parameter.label}",
                parameter.on_rank,
                parameter.device,
                parameter.dtype,
            )


def drop_before_steps() -> None:
    """Let every optimizer of this process drop gradients elsewhere before its step."""

    def drop(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if isinstance(parameter, Elsewhere):
                    parameter.grad = None

    register_optimizer_step_pre_hook(drop)


def norm_over_ranks(gradients: Sequence[Tensor], norm_type: float, links: Links) -> Tensor:
    """Return the norm of all ranks' gradients of one pipeline, the same on every rank."""
    group, row = links.group, links.row
    norms = torch.zeros(group.world_size, device=group.device)
    if gradients:
        norms = norms.to(torch.promote_types(gradients[0].dtype, torch.float32))
        norms[group.rank] = torch.nn.utils.get_total_norm(gradients, norm_type)
    # Ranks may have gradients of different dtypes.
    norms = norms.double()
    links.add_up(norms)
    norm: Tensor = torch.linalg.vector_norm(norms[list(row.ranks)], norm_type)
    return norm
