"""Tensors with a graph that a forward has left in attributes of the module and of its copies.

::

    lead      module.kept  3 samples ─┐
                                      ├─▶ module.kept  5 samples, or the mean of two numbers
    others    copy.kept    2 samples ─┘

A loss that reads the attribute then has one device's value and gradients. A tensor that follows the
parts in neither way stays that of the lead, and a backward pass through it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from ....errors import SpreadError
from ....transfer.beside import copy_in_order
from ...parts.cut import join
from .mirror import Mirror


class _OfOnePart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, name: str) -> Tensor:
        ctx.name = name
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> NoReturn:
        raise SpreadError(
            f"a backward pass has come to {ctx.name}, in which the module's forward has left a "
            "tensor for each part of the batch. They cannot be joined, so the gradients would be "
            "those of the first part. Return the tensor from the module instead"
        )


def join_kept(
    mirrors: Iterable[Mirror], active: Sequence[int], samples: Sequence[int], dim: int
) -> None:
    """Join the tensors that a forward has left in attributes, on the module's device.

    Args:
        mirrors: the module and its layers, each with its copies.
        active: the places of the devices that have computed, the lead's 0 first.
        samples: how many samples each of these has computed.
        dim: the dimension that has the samples.
    """
    for mirror in mirrors:
        for name, value in mirror.assigned():
            parts = [value, *(mirror.copies[i - 1].__dict__.get(name) for i in active[1:])]
            setattr(mirror.module, name, _join(parts, samples, dim, _name(mirror.module, name)))


def _name(module: torch.nn.Module, name: str) -> str:
    return f"{type(module).__name__}.{name}"


def _join(parts: Sequence[Any], samples: Sequence[int], dim: int, name: str) -> Tensor:
    first: Tensor = parts[0]
    if all(isinstance(part, Tensor) and part.dim() == first.dim() for part in parts):
        if not first.dim():
            total = sum(samples)
            means = [
                copy_in_order(part, first.device) * (count / total)
                for part, count in zip(parts, samples, strict=True)
            ]
            return torch.stack(means).sum(0)
        others = {(*part.shape[:dim], *part.shape[dim:][1:]) for part in parts}
        has_dim = -first.dim() <= dim < first.dim()
        if has_dim and len(others) == 1 and [part.size(dim) for part in parts] == [*samples]:
            return join(parts, first.device, dim)
    found: Tensor = _OfOnePart.apply(first, name)  # type: ignore[no-untyped-call]
    return found
