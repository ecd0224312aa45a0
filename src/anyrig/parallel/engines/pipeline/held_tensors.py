"""Parameters and buffers of all stages, including those that several stages use.

::

    stage 0  embedding.weight ──copy, once per step──▶ stage 3  head.weight
             owner: gradient of its own use      ◀──── gradient of this use
             then that of stage 3, always in this order

The first stage that uses a tensor owns it: the tensor itself lies on the device of that stage, and
the optimizer updates it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ....errors import SpreadError
from .parcel import send
from .slots import Slot, tensors_in
from .stage import Stage


@dataclass(frozen=True)
class HeldTensor:
    """A parameter or buffer, and the places where stages use it.

    Attributes:
        tensor: the module's own.
        places: the places in each stage, by the stage's number, the owner first.
    """

    tensor: Tensor
    places: Mapping[int, list[Slot]]


def list_held(stages: Sequence[Stage]) -> list[HeldTensor]:
    """Return every parameter and buffer of the stages, in order of first use.

    Raises:
        SpreadError: a tensor is not on the device of the first stage that uses it.
    """
    held: dict[int, HeldTensor] = {}
    for stage in stages:
        for slot, tensor in tensors_in(stage.slots):
            if id(tensor) not in held:
                _check_device(stage, slot, tensor)
                held[id(tensor)] = HeldTensor(tensor, {})
            places: Any = held[id(tensor)].places
            places.setdefault(stage.index, []).append(slot)
    return list(held.values())


def lend(held: Sequence[HeldTensor], stages: Sequence[Stage]) -> list[list[tuple[Slot, Tensor]]]:
    """Return, for each stage, copies on its device of the tensors that several stages use.

    The copies are part of the caller's graph, if it is recorded.
    """
    replacements: list[list[tuple[Slot, Tensor]]] = [[] for _ in stages]
    for one in held:
        if len(one.places) == 1:
            continue
        devices = [stages[index].device for index in one.places]
        copies: Sequence[Tensor]
        if one.tensor.requires_grad and torch.is_grad_enabled():
            copies = _Lend.apply(devices, one.tensor)  # type: ignore[no-untyped-call]
        else:
            copies = [send(one.tensor, device).take() for device in devices]
        for (index, slots), tensor in zip(one.places.items(), copies, strict=True):
            replacements[index] += [(slot, tensor) for slot in slots]
    return replacements


def lend_leaves(
    held: Sequence[HeldTensor], stages: Sequence[Stage]
) -> tuple[list[list[tuple[Slot, Tensor]]], dict[int, list[Tensor]]]:
    """Return replacements for each stage that collect gradients instead of the tensors themselves.

    Returns:
        The replacements; and the leaves of each tensor that requires grad, by its position in
        `held`, the owner's leaf first.
    """
    replacements: list[list[tuple[Slot, Tensor]]] = [[] for _ in stages]
    leaves: dict[int, list[Tensor]] = {}
    for number, one in enumerate(held):
        learns = one.tensor.requires_grad
        if len(one.places) == 1 and not learns:
            continue
        for index, slots in one.places.items():
            copy = send(one.tensor, stages[index].device).take()
            if learns:
                copy = _as_leaf(copy, one.tensor)
                leaves.setdefault(number, []).append(copy)
            replacements[index] += [(slot, copy) for slot in slots]
    return replacements, leaves


def add_up(leaves: Sequence[Tensor]) -> Tensor | None:
    """Return the sum of the leaves' gradients on the first leaf's device, and drop them."""
    total: Tensor | None = None
    for leaf in leaves:
        gradient, leaf.grad = leaf.grad, None
        if gradient is None:
            continue
        moved = send(gradient, leaves[0].device).take()
        total = moved if total is None else total + moved
    return total


class _Lend(torch.autograd.Function):
    """Copy a tensor from the first of `devices` to all; add its gradients in the same order."""

    @staticmethod
    def forward(ctx: Any, devices: Sequence[torch.device], tensor: Tensor) -> tuple[Tensor, ...]:
        ctx.device = tensor.device
        ctx.set_materialize_grads(False)
        return tuple(send(tensor, device).take() for device in devices)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        total: Tensor | None = None
        for gradient in gradients:
            if gradient is not None:
                moved = (
                    gradient.to(ctx.device)
                    if torch.is_grad_enabled()
                    else send(gradient, ctx.device).take()
                )
                total = moved if total is None else total + moved
        return None, total


def _as_leaf(copy: Tensor, tensor: Tensor) -> Tensor:
    return nn.Parameter(copy) if type(tensor) is nn.Parameter else copy.requires_grad_()


def _check_device(stage: Stage, slot: Slot, tensor: Tensor) -> None:
    if tensor.device != stage.device:
        raise SpreadError(
            f"{slot.name} of a {type(slot.module).__name__} is on {tensor.device}, but stage "
            f"{stage.index}, which uses it, computes on {stage.device}. Leave a model of several "
            "stages where spread() has put it, and spread it again to use other devices"
        )
