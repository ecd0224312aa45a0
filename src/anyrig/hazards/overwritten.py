"""The hazard of a saved value that was overwritten, as every way of watching reports it."""

from __future__ import annotations

import torch
from torch import Tensor

from .hazard import Hazard, HazardKind, Place

_REMEDY = (
    "write a new tensor (y = x * 2) instead of into the old one; to write in place on purpose, use "
    "detach() instead of .data, so that PyTorch notices, or write after backward()"
)
_REMEDY_REBOUND = "assign to .data only before the forward pass or after backward()"


def updates_statistics(operator: str | None) -> bool:
    """Return whether an operator writes to running statistics, which it also saves.

    Its backward pass reads them only if the forward pass did not write to them.
    """
    return operator is not None and "batch_norm" in operator


def describe_overwritten(
    tensor: Tensor, saved: Place, written: Place, operator: str | None, node: str | None
) -> Hazard:
    """Return the hazard of a value that backward saved and that was written to before its use.

    Args:
        tensor: the value as the backward pass gets it.
        saved: the line that saved it.
        written: the line that wrote to it.
        operator: the operator that wrote, such as ``aten::mul_``; None if unknown.
        node: the node of the graph that used the value, such as ``MulBackward0``; None if unknown.
    """
    how = f" by {operator.removeprefix('aten::').split('.')[0]}" if operator else ""
    what = (
        f"{_describe(tensor)}, which backward saved, was overwritten{how} before "
        f"{node or 'the backward pass'} used it, and its version counter did not notice"
    )
    return Hazard(HazardKind.OVERWRITTEN, what, (saved, written), _REMEDY)


def describe_rebound(tensor: Tensor, saved: Place, written: Place, node: str | None) -> Hazard:
    """Return the hazard of a tensor that was given other memory after backward had saved it."""
    what = (
        f"{_describe(tensor)}, which backward saved, was given other memory through .data before "
        f"{node or 'the backward pass'} used it"
    )
    return Hazard(HazardKind.OVERWRITTEN, what, (saved, written), _REMEDY_REBOUND)


def _describe(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested and tensor.layout is torch.strided:  # has no shape
        return f"a nested tensor of {tensor.size(0)} parts, {dtype}, on {tensor.device}"
    return f"a tensor of shape {tuple(tensor.shape)}, {dtype}, on {tensor.device}"
