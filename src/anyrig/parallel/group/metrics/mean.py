"""Means over ranks, weighted by what each rank counted."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ....errors import RankMismatchError
from ..board import board_of
from ..leaves import is_dense, leaves_of, replace_leaves
from ..membership import join_group
from .agreement import agree
from .wire import data_device, where

_CALL = "mean_over_ranks()"


def mean_over_ranks(value: Any, weight: float | Tensor | None = None) -> Any:
    """Return the mean over all ranks of every number and tensor of a nested value, on every rank.

    ::

        accuracy = anyrig.mean_over_ranks(correct / rows, weight=rows)
        metrics = anyrig.mean_over_ranks({"loss": loss, "accuracy": accuracy}, weight=rows)

    The result is ``sum(weight * value) / sum(weight)``, computed in float64; with the rows that
    each rank counted as its weight, it is the mean over all rows, also where ranks have different
    numbers of them. What a rank of weight zero gives does not count, even if it is NaN. If all
    weights are zero the result is NaN.

    The structure stays. Numbers become float or complex. Tensors, elementwise, keep their shape,
    device and floating dtype, and have no graph; those of whole numbers get the default dtype.
    Texts and None must be the same on every rank. It takes one small collective and one for all
    values. In a process that is the only rank, the mean is of its value alone.

    Args:
        value: numbers, tensors, or dicts, lists, tuples, named tuples and dataclasses of them.
        weight: how much this rank's value counts, from zero up; without it all count alike.

    Raises:
        RankMismatchError: on every rank: two ranks differ in structure or shape, or one gave what
            has no mean; the message says which rank, and where.
    """
    group = join_group()
    counted = 1.0 if weight is None else float(weight)
    leaves = leaves_of(value)
    said = ["no weight" if weight is None else "a weight"]
    said += [f"{_describe(leaf)} at {place}" for place, leaf in leaves]
    error = _refuse(leaves, counted)
    if group is None:
        if error:
            raise RankMismatchError(f"{_CALL}: {error}")
        device = None
    else:
        board_of(group).come_to(_CALL)
        heard = agree(_CALL, said, group, where(leaf for _, leaf in leaves), error)
        device = data_device(group, heard)
    means = _reduce(leaves, counted, device)
    return replace_leaves(value, lambda place, leaf: means.get(place, leaf))


def _describe(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        dtype = str(leaf.dtype).removeprefix("torch.")
        return f"a tensor of {dtype} and shape {tuple(leaf.shape)}"
    if isinstance(leaf, Number):
        return "a complex number" if isinstance(leaf, complex) else "a number"
    return repr(leaf)


def _refuse(leaves: Sequence[tuple[str, Any]], weight: float) -> str:
    """Return why there is no mean, or nothing."""
    for place, leaf in leaves:
        kept = (Number, str, type(None))
        if not (is_dense(leaf) if isinstance(leaf, Tensor) else isinstance(leaf, kept)):
            return (
                f"there is no mean of the {type(leaf).__name__} at {place}; give numbers, dense "
                "tensors (of a DTensor its full_tensor()), or containers of them"
            )
    if not 0 <= weight < float("inf"):
        return f"a weight is a number from zero up; got {weight}"
    return ""


def _reduce(
    leaves: Sequence[tuple[str, Any]], weight: float, device: torch.device | None
) -> dict[str, Any]:
    """Return the means by place; over all ranks by way of `device`, or of this one alone."""
    averaged = [(place, leaf) for place, leaf in leaves if isinstance(leaf, (Tensor, Number))]
    parts = [_doubles(leaf).to(device or "cpu") for _, leaf in averaged]
    values = torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64, device=device)
    # Not a product, which would be NaN of what does not count.
    weighted = values * weight if weight else torch.zeros_like(values)
    total = torch.cat([weighted.new_full((1,), weight), weighted])
    if device is not None:
        dist.all_reduce(total)
    means = total[1:] / total[0]
    lengths = [len(part) for part in parts]
    numbers = not all(isinstance(leaf, Tensor) for _, leaf in averaged)
    on_host = means.cpu() if numbers else means  # read at once, not one by one
    return {
        place: _tensor_like(leaf, mean) if isinstance(leaf, Tensor) else _number_like(leaf, there)
        for (place, leaf), mean, there in zip(
            averaged, torch.split(means, lengths), torch.split(on_host, lengths), strict=True
        )
    }


def _doubles(leaf: Any) -> Tensor:
    """Return the values of a leaf as a vector of float64; a complex one is two."""
    if not isinstance(leaf, Tensor):
        parts = [leaf.real, leaf.imag] if isinstance(leaf, complex) else [float(leaf)]
        return torch.tensor(parts, dtype=torch.float64, device="cpu")
    flat = leaf.detach().reshape(-1)
    if flat.is_complex():
        return torch.view_as_real(flat.to(torch.complex128)).reshape(-1)
    return flat.to(torch.float64)


def _tensor_like(leaf: Tensor, mean: Tensor) -> Tensor:
    if leaf.is_complex():
        mean = torch.view_as_complex(mean.reshape(-1, 2).clone())  # which aligns it
    fractional = leaf.is_floating_point() or leaf.is_complex()
    dtype = leaf.dtype if fractional else torch.get_default_dtype()
    return mean.reshape(leaf.shape).to(leaf.device, dtype)


def _number_like(leaf: Any, mean: Tensor) -> float | complex:
    parts = mean.tolist()
    return complex(*parts) if isinstance(leaf, complex) else float(parts[0])
