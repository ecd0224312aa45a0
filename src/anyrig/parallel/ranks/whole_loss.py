"""The loss of the global batch, from the part of it that each rank computed.

::

    rank 0   sum, count ──┐
    rank 1   sum, count ──┼── all-reduce ──▶  on every rank: sum of sums / sum of counts
    rank 2   sum, count ──┘
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..losses.loss import Criterion, criterion_on, loss_part
from ..losses.loss_part import LossPart
from ..losses.own_loss import HalvesCheck
from ..losses.whole import sums_of, whole_of
from ..marks import tensors_with_gradients
from .exchange import Exchange, Phase


class _WholeLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, sums: Tensor, exchange: Exchange) -> Any:
        ctx.exchange = exchange
        whole, ctx.divisor = whole_of(sums)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        # The loss is a sum over the ranks. Parameters' gradients are multiplied by n * R / N, and
        # the mean over R ranks is taken.
        part = ctx.exchange.part
        return gradient / ctx.divisor * (1 / part if part else 0.0), None, None


def whole_loss(
    criterion: Criterion,
    output: Any,
    target: Any,
    device: torch.device,
    exchange: Exchange,
    check: HalvesCheck | None,
) -> Tensor:
    """Return the loss of the global batch, the same on every rank; every rank must call this.

    A criterion without reduction gives the losses of this rank's samples. `output` and `target`
    are on `device`. `check` is that of a first call.
    """
    exchange.finish()
    samples = exchange.samples or 0
    part = loss_part(criterion_on(criterion, device), output, target, samples, check)
    if part.reduced and not exchange.samples:
        # The mean over zero samples is NaN. Take a zero with a graph through the module.
        part = LossPart(_zero_from(output, part.value), None, True, part.dtype)
    sums = _sum_over_ranks(part, exchange)
    if not part.reduced:
        return part.value
    exchange.divisor = sums[1]
    wide = part.value.to(sums.dtype)
    whole: Tensor = _WholeLoss.apply(wide, sums, exchange)  # type: ignore[no-untyped-call]
    return whole.to(part.dtype)


def _sum_over_ranks(part: LossPart, exchange: Exchange) -> Tensor:
    sums = sums_of([part], part.value.device)
    if not exchange.number:  # the ranks meet here, and one message carries all numbers
        return sums.new_tensor(exchange.add(Phase.FORWARD, *sums.tolist()))
    if sums.device.type == "cpu":  # if a rank has failed, the error names it
        again = Exchange(exchange.context, exchange.model, exchange.samples)
        with exchange.waiting():
            return sums.new_tensor(again.add(Phase.FORWARD, *sums.tolist()))
    with exchange.waiting():
        dist.all_reduce(sums)
    return sums


def _zero_from(output: Any, value: Tensor) -> Tensor:
    """Return a zero that leads back to the outputs' graph, but has none of their elements: an
    output may be a loss that was computed from stand-ins.
    """
    zero = torch.zeros_like(value, requires_grad=False)
    sums = [leaf.reshape(-1)[:0].sum().to(value.dtype) for leaf in tensors_with_gradients(output)]
    total: Tensor = torch.stack([zero, *sums]).sum()
    return total
