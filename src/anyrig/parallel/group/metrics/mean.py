"""Means over ranks, weighted by what each rank counted."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

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
    means = _reduce(leaves, counted, device, alone=group is None)
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
    leaves: Sequence[tuple[str, Any]], weight: float, device: torch.device, *, alone: bool
) -> dict[str, Any]:
    """Return the means by place; over all ranks by way of `device`, or of this one alone."""
    averaged = [(place, leaf) for place, leaf in leaves if isinstance(leaf, (Tensor, Number))]
    one = torch.ones(1, dtype=torch.float64, device=device)
    parts = [one, *(_double(leaf).to(device) for _, leaf in averaged)]
    values = parameters_to_vector(parts)
    # Not a product, which would be NaN of what does not count.
    total = values * weight if weight else torch.zeros_like(values)
    if not alone:
        dist.all_reduce(total)
    vector_to_parameters(total / total[0], parts)
    means = zip(averaged, parts[1:], strict=True)
    return {place: _like(leaf, mean) for (place, leaf), mean in means}


def _double(leaf: Any) -> Tensor:
    """Return a leaf in float64; a complex number is two."""
    if not isinstance(leaf, Tensor):
        parts = [leaf.real, leaf.imag] if isinstance(leaf, complex) else float(leaf)
        return torch.tensor(parts, dtype=torch.float64, device="cpu")
    if leaf.is_complex():
        return torch.view_as_real(leaf.detach().resolve_conj().to(torch.complex128))
    return leaf.detach().to(torch.float64)


def _like(leaf: Any, mean: Tensor) -> Any:
    if not isinstance(leaf, Tensor):
        return complex(*mean.tolist()) if isinstance(leaf, complex) else mean.item()
    if leaf.is_complex():
        return torch.view_as_complex(mean.clone()).to(leaf.device, leaf.dtype)
    dtype = leaf.dtype if leaf.is_floating_point() else torch.get_default_dtype()
    return mean.to(leaf.device, dtype)
