"""The gradients of values that were gathered over ranks.

::

    rank 0   a0 ─┐           ┌─▶ loss 0        each loss depends on the values of all ranks
    rank 1   a1 ─┴─ a0, a1 ──┴─▶ loss 1

    a0.grad    (n0 * the gradient of loss 0 + n1 * that of loss 1) / n0

Gradients in a graph are those of this rank's own loss; those of parameters are multiplied by n / N
later. The sum over the losses, each weighted by its samples, is therefore divided by n0.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from ....processes.group.membership import Group, carrier_of, current_context
from ...gradient_hooks import weighted


class _SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, samples: int, group: Group) -> Any:
        ctx.samples, ctx.group = samples, group
        return whole.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        carried = carrier_of(dist.get_backend_config(), gradient.device) is not None
        sent = gradient if carried else gradient.to(ctx.group.device)
        total = weighted(sent, ctx.samples).contiguous()
        dist.all_reduce(total)
        return total.to(gradient.device) / max(ctx.samples, 1), None, None


def sum_gradients(whole: Tensor, entries: int, group: Group) -> Tensor:
    """Return a gathered tensor whose gradient will be that of the losses of all ranks.

    This rank has as many samples as in its last forward of a spread model, or else as many as it
    gave `entries` to the gathered tensor.
    """
    if not whole.requires_grad:
        return whole
    last = current_context().last_forward
    samples = entries if last is None else last.exchange.samples or 0
    summed: Tensor = _SumGradients.apply(whole, samples, group)  # type: ignore[no-untyped-call]
    return summed
