"""A scheduled run as a part of the caller's graph.

::

    model(x, target=y)    learning tensors ─▶ Deliver ─▶ token ─┐
                             of cuda:0                          ├─▶ Step ─▶ loss
                          learning tensors ─▶ Deliver ─▶ token ─┘   all tasks of the schedule;
                             of cuda:1                              gradients of the sum of losses
                                                                    are kept
    loss.backward()       the gradient of the loss / what the mean divides by  =  a factor;
                          each Deliver multiplies the kept gradients of its device by the factor

The learning tensors are the module's parameters, and arguments that require grad. The gradient of a
token is the factor. There is a Deliver for each device, since autograd expects the gradients of a
device from a node on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...errors import SpreadError
from ..losses.loss import LossPart, combine_counts, combine_losses, divisor_of_gradients
from .parcel import send
from .scheduled_run import ScheduledRun
from .stage import tensors_of


@dataclass(eq=False)
class _Kept:
    """The gradients of the sum of losses, by tensor, until they are delivered."""

    gradients: dict[Tensor, Tensor] = field(default_factory=dict)


def compute_loss(
    run: ScheduledRun, output_device: torch.device, dim: int
) -> tuple[Tensor, list[LossPart]]:
    """Run a step; return the loss of the batch, and the loss of each micro-batch without a graph.

    The backward pass of the batch's loss delivers the gradients.
    """
    tensors: dict[Tensor, None] = {one.tensor: None for one in run.held}
    for bound in run.bound:
        for value in bound.values():
            tensors.update(dict.fromkeys(tensors_of(value)))
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.requires_grad:
            by_device.setdefault(tensor.device, []).append(tensor)
    double = any(tensor.dtype is torch.float64 for tensor in tensors)
    dtype = torch.float64 if double else torch.float32
    kept = _Kept()
    tokens = [
        _Deliver.apply(kept, device, dtype, *learning)  # type: ignore[no-untyped-call]
        for device, learning in by_device.items()
    ]
    if not tokens:  # no tensor that learns takes part
        run.run()
        return combine_losses(run.parts, output_device, dim), run.parts
    loss: Tensor = _Step.apply(run, kept, output_device, dim, *tokens)  # type: ignore[no-untyped-call]
    return loss, run.parts


class _Deliver(torch.autograd.Function):
    """Forward: a device's learning tensors to a token. Backward: the factor to the gradients."""

    @staticmethod
    def forward(
        ctx: Any, kept: _Kept, device: torch.device, dtype: torch.dtype, *learning: Tensor
    ) -> Tensor:
        ctx.kept, ctx.learning = kept, learning
        # Reading this saved tensor in a second backward pass raises PyTorch's error.
        ctx.save_for_backward(torch.empty(0, device="cpu"))
        return torch.zeros((), device=device, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise SpreadError(
                "this step has computed its gradients already, so create_graph=True has no graph "
                'of them; use schedule="gpipe", whose backward passes begin with loss.backward()'
            )
        # Private, as there is no public way to learn what `retain_graph` was given to backward();
        # `test_a_second_backward_pass` covers it.
        keeps = torch._C._autograd._get_current_graph_task_keep_graph()
        _ = ctx.saved_tensors
        found = ctx.kept.gradients
        taken = [found.get(one) if keeps else found.pop(one, None) for one in ctx.learning]
        return None, None, None, *_scale(taken, factor, copies=keeps)


class _Step(torch.autograd.Function):
    """Forward: run all tasks. Backward: the gradient of the loss to the factor."""

    @staticmethod
    def forward(
        ctx: Any,
        run: ScheduledRun,
        kept: _Kept,
        output_device: torch.device,
        dim: int,
        *tokens: Tensor,
    ) -> Tensor:
        kept.gradients = run.run()
        ctx.devices = [token.device for token in tokens]
        ctx.dtype = tokens[0].dtype
        count = combine_counts(run.parts, output_device)
        ctx.divisor = divisor_of_gradients(run.parts, count)
        return combine_losses(run.parts, output_device, dim)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        factor = upstream.to(ctx.dtype)
        if ctx.divisor is not None:
            factor = factor / ctx.divisor
        return None, None, None, None, *(send(factor, device).take() for device in ctx.devices)


def _scale(gradients: Sequence[Tensor | None], factor: Tensor, copies: bool) -> list[Tensor | None]:
    """Return gradients of one device times a factor: new tensors, or the same ones."""
    kinds: dict[torch.dtype, list[int]] = {}
    for number, gradient in enumerate(gradients):
        if gradient is not None:
            kinds.setdefault(gradient.dtype, []).append(number)
    scaled: list[Tensor | None] = list(gradients)
    for numbers in kinds.values():
        chosen = [gradient for gradient in (gradients[i] for i in numbers) if gradient is not None]
        if copies:
            products: Sequence[Tensor] = torch._foreach_mul(chosen, factor)
        else:
            products = chosen
            torch._foreach_mul_(chosen, factor)
        for number, product in zip(numbers, products, strict=True):
            scaled[number] = product
    return scaled
