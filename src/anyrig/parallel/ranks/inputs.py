"""Inputs that require a gradient, of a model over ranks.

::

    x ─▶ encoder ─▶ hidden ─▶ decoder ─▶ the loss of the global batch
    x.grad: of the global batch's loss; in between, of this rank's own samples

In the graph, gradients are those of this rank's own loss, because the parameters' gradients are
multiplied by n * R / N. Where such a gradient leaves all spread models, and the loss is that of the
global batch, it is multiplied by n / N.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from ...errors import BatchError, SpreadError
from ..gradient_hooks import hooks_of
from .exchange import Exchange
from .passes import GradientHook, Passes


class _Input(torch.autograd.Function):
    """An input, whose gradient leaves the module as that of the loss that the caller has."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, exchange: Exchange) -> Any:
        ctx.exchange = exchange
        return given.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        exchange = ctx.exchange
        return gradient * exchange.part if exchange.leads_to_global_loss else gradient, None


def take_input(given: Tensor, exchange: Exchange) -> Tensor:
    """Return an input that requires a gradient, for a forward with gradients.

    Its gradient is taken of this rank's own loss, or of the global loss if one is computed from the
    outputs. An input computed by another model over ranks is returned unchanged: the parameters of
    that model get the weight n * R / N, too. Raise SpreadError if the input of a model with a
    global loss was computed from a spread model and from another tensor that requires a gradient;
    and BatchError for a nested tensor of the strided layout.
    """
    if given.is_nested and given.layout is torch.strided:
        raise BatchError(
            f"an input is a nested tensor of {given.size(0)} parts that requires a gradient, in "
            "the strided layout, which no torch.autograd.Function takes, so its gradient cannot be "
            "that of the global batch. Make it with layout=torch.jagged, or detach() it"
        )
    before, is_other = _models_before(given)
    if exchange.leads_to_global_loss:
        if before and is_other:
            raise SpreadError(
                "an input of a model spread with loss= was computed from the output of another "
                "spread model and from a tensor outside both that requires a gradient, such as a "
                "parameter. Only one of their gradients would be that of the global loss. Make "
                "that parameter a part of one of the spread modules, detach() it, or spread "
                "without loss= and compute the loss from the outputs"
            )
        for model in before:
            if model.newest is not None:
                model.newest.exchange.leads_to_global_loss = True
    if before:
        return given
    same: Tensor = _Input.apply(given, exchange)  # type: ignore[no-untyped-call]
    return same


def _models_before(tensor: Tensor) -> tuple[list[Passes], bool]:
    """Return the models over ranks from whose parameters a tensor was computed, and whether another
    tensor that requires a gradient took part.
    """
    models: list[Passes] = []
    has_other = False
    pending: list[Any] = [get_gradient_edge(tensor).node]
    seen: set[Any] = {None}
    while pending:
        node = pending.pop()
        if node in seen or getattr(type(node), "_forward_cls", None) is _Input:
            continue  # what lies before another model's input is that model's
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            hooks = hooks_of(variable).values()
            found = [hook.passes() for hook in hooks if isinstance(hook, GradientHook)]
            models += [each for each in found if each is not None and each not in models]
            has_other |= not any(found)
        pending.extend(parent for parent, _ in node.next_functions)
    return models, has_other
