"""Weights on the gradients that enter a module from its outputs, and off those that leave it.

::

    forward     x ── take off ─▶ module ── put on ─▶ outputs ─▶ the caller's loss
    backward    ◀─── / weight ◀──────── ◀─ * weight ◀────────── its gradient

    forward     x ── take off ─▶ module ─▶ the loss of the global batch
    backward    ◀─── / ranks  ◀──────── ◀─ * ranks

Inside, gradients are scaled so that the mean over the ranks, which DDP and FSDP2 take, is that of
the global batch. Outside they are the gradients of the loss that this rank holds: its own, or with
`loss=` that of the global batch.

Between two spread modules a gradient is always that of a loss of this rank's own, since the first
module cannot know what its output will be used for:

::

    x ── / ranks ─▶ encoder ── * weight ─▶ hidden ── / weight ─▶ decoder ── * ranks ─▶ global loss

What a loss takes from parameters directly has no weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...errors import SpreadError
from ...transfer.tree import ATOM_TYPES, format_path, map_leaves
from .exchange import Exchange


class _PutOn(torch.autograd.Function):
    """The identity. Its outputs are no views, so that they may be changed in place."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, begin: Callable[[], None], *outputs: Tensor) -> Any:
        ctx.exchange, ctx.begin = exchange, begin
        ctx.set_materialize_grads(False)
        same = tuple([output.detach() for output in outputs])
        return same if len(same) > 1 else same[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.begin()
        weight = ctx.exchange.weight
        if weight == 1.0:
            return (None, None, *gradients)
        weighed = [
            None if gradient is None else _multiply(gradient, weight) for gradient in gradients
        ]
        return (None, None, *weighed)


def _multiply(gradient: Tensor, weight: float) -> Tensor:
    # Of no rows a mean is not a number, and times zero it stays none.
    return gradient * weight if weight else torch.zeros_like(gradient)


class _TakeOff(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, follows: bool, given: Tensor) -> Any:
        ctx.exchange, ctx.follows = exchange, follows
        return given.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        exchange = ctx.exchange
        of_global_loss = exchange.leads_to_global_loss and not ctx.follows
        weight = exchange.world_size if of_global_loss else exchange.weight
        return None, None, gradient / weight if weight not in (0.0, 1.0) else gradient


def put_weight_on(output: Any, exchange: Exchange, begin: Callable[[], None]) -> Any:
    """Return a module's outputs so that gradients enter the module multiplied by the weight.

    Args:
        output: any structure of tensors.
        exchange: the rows of this forward; asked when the backward pass begins.
        begin: called when the backward pass begins, before anything else.

    Raises:
        SpreadError: tensors are hidden in an object that is no container.
    """
    if type(output) is Tensor:  # as most are
        return _PutOn.apply(exchange, begin, output) if output.requires_grad else output  # type: ignore[no-untyped-call]
    found = tensors_with_gradients(output)
    if not found:
        return output
    weighed = _PutOn.apply(exchange, begin, *found)  # type: ignore[no-untyped-call]
    several = weighed if isinstance(weighed, tuple) else (weighed,)
    by_id = dict(zip(map(id, found), several, strict=True))
    return map_leaves(output, lambda leaf, path: by_id.get(id(leaf), leaf))


def tensors_with_gradients(tree: Any) -> list[Tensor]:
    """Return the tensors in a structure that gradients come from, each once.

    Raises:
        SpreadError: tensors are hidden in an object that is no container.
    """
    found: dict[int, Tensor] = {}

    def collect(leaf: Any, path: Any) -> Any:
        if isinstance(leaf, Tensor):
            if leaf.requires_grad:
                found[id(leaf)] = leaf
        elif type(leaf) not in ATOM_TYPES:
            _require_no_tensors(leaf, format_path(path))
        return leaf

    map_leaves(tree, collect)
    return list(found.values())


def take_weight_off(given: Tensor, exchange: Exchange) -> Tensor:
    """Return an input so that its gradient leaves the module as if it had not been weighted."""
    before, has_other = _find_sources(given)
    exchange.before.extend(before)
    exchange.has_mixed_input |= has_other and bool(before)
    same: Tensor = _TakeOff.apply(exchange, bool(before), given)  # type: ignore[no-untyped-call]
    return same


def lead_to_global_loss(exchange: Exchange) -> None:
    """Note that a forward, and those whose outputs it was given, lead to a loss of all ranks.

    Raises:
        SpreadError: an input was computed both from the output of a spread module and from
            something outside, whose gradients would need different scales.
    """
    pending = [exchange]
    while pending:
        each = pending.pop()
        if each.leads_to_global_loss:
            continue
        each.leads_to_global_loss = True
        if each.has_mixed_input:
            raise SpreadError(
                "an input of a model spread with loss= was computed from the output of another "
                "spread model and from a tensor outside both that requires a gradient, such as a "
                "parameter. Only one of their gradients would be that of the global loss. Make "
                "that parameter a part of one of the spread modules, detach() it, or spread "
                "without loss= and compute the loss from the outputs"
            )
        pending.extend(each.before)


def _find_sources(given: Tensor) -> tuple[list[Exchange], bool]:
    """Return the forwards of spread modules that a tensor was computed from, and whether it was
    computed from anything else that requires a gradient.
    """
    before: list[Exchange] = []
    has_other = given.grad_fn is None
    pending: list[Any] = [given.grad_fn]
    seen = {None}
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if getattr(type(node), "_forward_cls", None) is _PutOn:
            before.append(node.exchange)
            continue
        has_other |= hasattr(node, "variable")
        pending.extend(parent for parent, _ in node.next_functions)
    return before, has_other


def _require_no_tensors(leaf: Any, place: str) -> None:
    held = [*vars(leaf).values()] if hasattr(leaf, "__dict__") else []
    held += [*leaf.values()] if isinstance(leaf, dict) else []
    if any(isinstance(value, Tensor) and value.requires_grad for value in held):
        raise SpreadError(
            f"the module returned a {type(leaf).__name__} ({place}), which has tensors that "
            "gradients come from, but is no container that can be looked into. Return a dict, a "
            "tuple or a dataclass without a method `to`"
        )
