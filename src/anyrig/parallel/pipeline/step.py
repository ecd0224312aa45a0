"""A scheduled run as one node of the caller's graph.

::

    model(x, target=y)    all tasks of the schedule; gradients of the sum of losses   ─┐ kept
    loss.backward()       upstream gradient / count  x  those                        ◀─┘
                          ▼
                          the module's parameters, and arguments that require grad
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ...errors import SpreadError
from ...transfer.streams import using
from ..losses.loss import LossPart, combine_counts, combine_losses
from .parcel import send
from .scheduled_run import ScheduledRun
from .stage import tensors_of

_HALF = (torch.float16, torch.bfloat16)


def compute_loss(
    run: ScheduledRun, output_device: torch.device, dim: int
) -> tuple[Tensor, list[LossPart]]:
    """Run a step; return the loss of the batch, and the loss of each micro-batch without a graph.

    The backward pass of the batch's loss delivers the gradients.
    """
    inputs: dict[Tensor, None] = {one.tensor: None for one in run.held}
    for bound in run.bound:
        for value in bound.values():
            inputs.update(dict.fromkeys(tensors_of(value)))
    learning = [tensor for tensor in inputs if tensor.requires_grad]
    loss: Tensor = _Step.apply(run, output_device, dim, learning, *learning)  # type: ignore[no-untyped-call]
    return loss, run.parts


class _Step(torch.autograd.Function):
    """All that a step computes, as one node between what learns and the loss."""

    @staticmethod
    def forward(
        ctx: Any,
        run: ScheduledRun,
        output_device: torch.device,
        dim: int,
        learning: Sequence[Tensor],
        *inputs: Tensor,
    ) -> Tensor:
        found = run.run()
        loss = combine_losses(run.parts, output_device, dim)
        ctx.count = combine_counts(run.parts, output_device)
        ctx.gradients = [found.get(tensor) for tensor in learning]
        ctx.streams = {
            gradient.device: torch.accelerator.current_stream(gradient.device)
            for gradient in found.values()
            if gradient.device.type != "cpu"
        }
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        gradients = ctx.gradients
        if torch.is_grad_enabled():
            raise SpreadError(
                "this step has computed its gradients already, so create_graph=True has no graph "
                'of them; use schedule="gpipe", whose backward passes begin with loss.backward()'
            )
        if gradients is None:
            raise RuntimeError(
                "the gradients of this step were delivered by an earlier backward pass. Call the "
                "model again, or pass retain_graph=True to the earlier pass"
            )
        # Private, as there is no public way to learn what `retain_graph` was given to backward();
        # `test_a_second_backward_pass` covers it.
        keeps = torch._C._autograd._get_current_graph_task_keep_graph()
        if not keeps:
            ctx.gradients = None
        factor = upstream.float() if upstream.dtype in _HALF else upstream
        if ctx.count is not None:
            factor = factor / ctx.count
        return None, None, None, None, *_scale(gradients, factor, ctx.streams, copies=keeps)


def _scale(
    gradients: Sequence[Tensor | None],
    factor: Tensor,
    streams: Mapping[torch.device, torch.Stream],
    copies: bool,
) -> list[Tensor | None]:
    """Return gradients times a factor: new tensors, or the same ones."""
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, gradient in enumerate(gradients):
        if gradient is not None:
            kinds.setdefault((gradient.device, gradient.dtype), []).append(number)
    scaled: list[Tensor | None] = list(gradients)
    for (device, _), numbers in kinds.items():
        parcel = send(factor, device)
        chosen = [gradient for gradient in (gradients[i] for i in numbers) if gradient is not None]
        stream = streams.get(device)
        with nullcontext() if stream is None else using(stream):
            products: Sequence[Tensor] = chosen
            if copies:
                products = torch._foreach_mul(chosen, parcel.take())
            else:
                torch._foreach_mul_(chosen, parcel.take())
        for number, product in zip(numbers, products, strict=True):
            scaled[number] = product
        if stream is not None:
            # Autograd expects results on the current streams of the thread that made them.
            torch.accelerator.current_stream(device).wait_stream(stream)
    return scaled
