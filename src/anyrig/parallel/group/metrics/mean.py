"""Means over ranks, weighted by what each rank counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from numbers import Number
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ....errors import RankMismatchError
from ..leaves import is_dense, leaves_of, replace_leaves
from ..membership import join_group
from .exchange import Announcement, agree

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
    Texts and None must be the same on every rank. It takes two small collectives and one for all
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
    error = _refuse(leaves, counted)
    device = torch.device("cpu")
    if group is not None:
        kinds = frozenset(leaf.device.type for _, leaf in leaves if isinstance(leaf, Tensor))
        said = ["no weight" if weight is None else "a weight"]
        said += [f"{_describe(leaf)} at {place}" for place, leaf in leaves]
        _, device = agree(group, Announcement(_CALL, said, error, kinds))
    elif error:
        raise RankMismatchError(f"{_CALL}: {error}")
    averaged = {
        place: leaf if isinstance(leaf, Tensor) else _tensor_of(leaf)
        for place, leaf in leaves
        if isinstance(leaf, (Tensor, Number))
    }
    means = _reduce(averaged, counted, device, alone=group is None)

    def mean_of(place: str, leaf: Any) -> Any:
        return means[place].item() if isinstance(leaf, Number) else means.get(place, leaf)

    return replace_leaves(value, mean_of)


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
    leaves: Mapping[str, Tensor], weight: float, device: torch.device, *, alone: bool
) -> dict[str, Tensor]:
    """Return the means by place; over all ranks by way of `device`, or of this one alone."""
    one = torch.ones(1, dtype=torch.float64, device=device)
    parts = [one, *(_doubles(leaf).to(device) for leaf in leaves.values())]
    values = torch.cat(parts)
    # Not a product, which would be NaN of what does not count.
    total = values * weight if weight else torch.zeros_like(values)
    if not alone:
        dist.all_reduce(total)
    means = total / total[0]
    # One copy to each device, and not one a leaf.
    means_on = {to: means.to(to) for to in {leaf.device for leaf in leaves.values()}}
    starts = accumulate(map(len, parts))
    return {
        place: _shape_like(leaf, means_on[leaf.device][start : start + len(part)])
        for (place, leaf), part, start in zip(leaves.items(), parts[1:], starts, strict=False)
    }


def _tensor_of(number: Any) -> Tensor:
    if isinstance(number, complex):
        return torch.tensor(number, dtype=torch.complex128, device="cpu")
    return torch.tensor(float(number), dtype=torch.float64, device="cpu")


def _doubles(leaf: Tensor) -> Tensor:
    """Return the values of a leaf as a vector of float64; a complex one is two."""
    flat = leaf.detach().reshape(-1)
    if flat.is_complex():
        return torch.view_as_real(flat.to(torch.complex128)).reshape(-1)
    return flat.to(torch.float64)


def _shape_like(leaf: Tensor, mean: Tensor) -> Tensor:
    if leaf.is_complex():
        mean = torch.view_as_complex(mean.reshape(-1, 2).clone())  # which aligns it
    fractional = leaf.is_floating_point() or leaf.is_complex()
    return mean.reshape(leaf.shape).to(leaf.dtype if fractional else torch.get_default_dtype())
