"""Marks for gradients that other ranks have, so that no norm silently leaves them out.

::

    backward()     marks other ranks' parameters: `.grad` is an `Elsewhere`, whose norm is refused
    step()         drops the marks first, so that optimizers skip these parameters
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
    """Mark other ranks' parameters as having gradients, unless none of this rank's has one."""
    if own and all(each.grad is None for each in own):  # torch.autograd.grad, not backward()
        return
    for parameter in parameters:
        if isinstance(parameter, Elsewhere) and parameter.requires_grad:
            parameter.grad = _mark_of(parameter)


def _mark_of(parameter: Elsewhere) -> Elsewhere:
    """Return the mark of a parameter, made once, as each backward pass needs it.

    Another one is made when the parameter has changed its device, dtype or shape.
    """
    mark = parameter.mark
    is_same = (
        mark is not None
        and (mark.device, mark.dtype) == (parameter.device, parameter.dtype)
        and mark.shape == parameter.shape
    )
    if mark is None or not is_same:
        mark = parameter.mark = Elsewhere(
            parameter,
            f"the gradient of {parameter.label}",
            parameter.on_rank,
            parameter.device,
            parameter.dtype,
        )
    return mark


def drop_before_steps() -> None:
    """Make every optimizer of this process drop the marks before its step."""

    def drop(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if isinstance(parameter, Elsewhere):
                    parameter.grad = None

    register_optimizer_step_pre_hook(drop)


def norm_over_ranks(gradients: Sequence[Tensor], norm_type: float, links: Links) -> Tensor:
    """Return the norm of the gradients on all ranks of one pipeline, the same on every rank."""
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
