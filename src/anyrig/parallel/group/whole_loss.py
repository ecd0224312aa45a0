"""The loss of the global batch, from what each rank computed of it.

::

    rank 0   sum, count ──┐
    rank 1   sum, count ──┼── all-reduce ──▶  on every rank: sum of sums / sum of counts
    rank 2   sum, count ──┘
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..losses.loss import Criterion, LossPart, criterion_on, loss_part
from .announcement import Phase
from .channel import tell_all
from .exchange import Exchange
from .weighing import lead_to_global_loss, put_weight_on, tensors_with_gradients


class _WholeLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, totals: Tensor, begin: Callable[[], None]) -> Any:
        total, count, divides = totals.unbind()
        ctx.begin, ctx.divisor = begin, torch.where(divides > 0, count, 1)
        return total / ctx.divisor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.begin()
        # DDP and FSDP2 take the mean over the ranks of what is a sum over them.
        return gradient / ctx.divisor * dist.get_world_size(), None, None


def whole_loss(
    criterion: Criterion,
    output: Any,
    target: Any,
    device: torch.device,
    exchange: Exchange,
    begin: Callable[[], None],
) -> Tensor:
    """Return the loss of the global batch, the same on every rank; all ranks call this.

    Of losses that are not reduced, those of this rank's rows, weighted as outputs are.

    Args:
        criterion: as `loss_part` takes it.
        output: what the module returned.
        target: the same rows of the target.
        device: where both are.
        exchange: the rows of this forward.
        begin: called when the backward pass begins, before anything else.
    """
    exchange.finish()
    part = loss_part(criterion_on(criterion, device), output, target, exchange.rows or 0)
    if part.reduced and not exchange.rows:
        # The mean of nothing is not a number. This is zero, and leads back to the module.
        part = LossPart(_nothing_of(output, part.value), None, True, part.dtype)
    totals = _sum_over_ranks(part, exchange)
    if not part.reduced:
        own: Tensor = put_weight_on(part.value, exchange, begin)
        return own
    lead_to_global_loss(exchange)
    wide = part.value.to(totals.dtype)
    whole: Tensor = _WholeLoss.apply(wide, totals, begin)  # type: ignore[no-untyped-call]
    return whole.to(part.dtype)


def _sum_over_ranks(part: LossPart, exchange: Exchange) -> Tensor:
    """Return sum, count, and how many ranks divide the one by the other, of all ranks."""
    value = part.value.detach()
    # Where the device has it: of a large batch, counts are more than float32 holds.
    wide = torch.float32 if value.device.type in ("mps", "xpu") else torch.float64
    totals = value.new_zeros(3, dtype=wide)
    if part.reduced:
        totals[0] = value
    if part.count is not None:
        totals[1], totals[2] = part.count, 1
    if not exchange.has_started:  # ranks meet here, and all numbers travel in one piece
        exchange.start(Phase.FORWARD, beside=totals)
        exchange.finish()
        assert exchange.beside is not None
        return exchange.beside.sum(0)
    if exchange.time is not None:
        exchange.time.toggle()
    if totals.is_cpu:
        rows, work = tell_all(totals)
        work.wait()
        totals = rows.sum(0)
    else:
        dist.all_reduce(totals)
    if exchange.time is not None:
        exchange.time.toggle()
    return totals


def _nothing_of(output: Any, value: Tensor) -> Tensor:
    zero = torch.zeros_like(value, requires_grad=False)
    # Of no elements: a loss among the outputs is that of the samples that stand in.
    sums = [leaf.reshape(-1)[:0].sum().to(value.dtype) for leaf in tensors_with_gradients(output)]
    nothing: Tensor = torch.stack([zero, *sums]).sum()
    return nothing
