"""A scheduled run as a part of the caller's graph.

::

    model(x, target=y)    learning tensors ─▶ a node ─▶ token ─┐
                             of cuda:0                         ├─▶ a node ─▶ loss
                          learning tensors ─▶ a node ─▶ token ─┘   all tasks of the schedule;
                             of cuda:1                             gradients of the sum of losses
                                                                   are kept
    loss.backward()       the gradient of the loss / what the mean divides by  =  a factor;
                          each node multiplies the kept gradients of its device by the factor

The learning tensors are the module's parameters, and arguments that require grad. The gradient of a
token is the factor. There is a node for each device, since autograd expects the gradients of a
device from a node on it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...losses.delivery import Delivery, deliver, scale
from ...losses.loss_part import LossPart
from ...losses.whole import combine_counts, combine_losses, divisor_of_gradients
from .parcel import send
from .scheduled_run import ScheduledRun
from .stage import tensors_of


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
    kept: dict[Tensor, Tensor] = {}
    tokens = [
        deliver(_OfDevice(kept, learning, torch.zeros((), device=device, dtype=dtype)), learning)[0]
        for device, learning in by_device.items()
    ]
    if not tokens:  # no tensor that learns takes part
        run.run()
        return combine_losses(run.parts, output_device, dim), run.parts
    (loss,) = deliver(_WholeStep(run, kept, output_device, dim, tokens), tokens)
    return loss, run.parts


class _Ahead(Delivery):
    no_graph = (
        "this step has computed its gradients already, so create_graph=True has no graph of them; "
        'use schedule="gpipe", whose backward passes begin with loss.backward()'
    )


class _OfDevice(_Ahead):
    """Forward: a device's learning tensors to a token. Backward: the factor to the gradients."""

    def __init__(
        self, kept: dict[Tensor, Tensor], learning: Sequence[Tensor], token: Tensor
    ) -> None:
        self._kept, self._learning, self._token = kept, learning, token

    def forward(self) -> tuple[list[Tensor], list[bool]]:
        return [self._token], [True]

    def backward(self, upstream: Sequence[Tensor | None], keeps: bool) -> Sequence[Tensor | None]:
        (factor,) = upstream
        if factor is None:
            return [None] * len(self._learning)
        kept = self._kept
        taken = [kept.get(one) if keeps else kept.pop(one, None) for one in self._learning]
        return scale(taken, factor, in_place=not keeps)


class _WholeStep(_Ahead):
    """Forward: run all tasks. Backward: the gradient of the loss to the factor."""

    def __init__(
        self,
        run: ScheduledRun,
        kept: dict[Tensor, Tensor],
        output_device: torch.device,
        dim: int,
        tokens: Sequence[Tensor],
    ) -> None:
        self._run, self._kept, self._output_device, self._dim = run, kept, output_device, dim
        self._devices, self._dtype = [token.device for token in tokens], tokens[0].dtype

    def forward(self) -> tuple[list[Tensor], list[bool]]:
        self._kept.update(self._run.run())
        parts = self._run.parts
        count = combine_counts(parts, self._output_device)
        self._divisor = divisor_of_gradients(parts, count)
        del self._run  # and what it holds of the micro-batches
        return [combine_losses(parts, self._output_device, self._dim)], [True]

    def backward(self, upstream: Sequence[Tensor | None], keeps: bool) -> Sequence[Tensor | None]:
        (given,) = upstream
        if given is None:
            return [None] * len(self._devices)
        factor = given.to(self._dtype)
        if self._divisor is not None:
            factor = factor / self._divisor
        return [send(factor, device).take() for device in self._devices]
