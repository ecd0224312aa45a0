"""Gathering the values of all devices on one device, along a given dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...devices.place import Place
from ...errors import BatchError
from ...transfer.move import resolve_device
from ...transfer.tree import Path, format_path
from .cut import join
from .joining import Joining, are_equal, format_shapes


def gather(values: Sequence[Any], device: Place, dim: int = 0, padding: float | None = None) -> Any:
    """Return one value on `device`, with the parts' tensors joined along `dim`, in order.

    All values have the same structure, and so has the result:

    * Tensors are joined as by `torch.cat`. Tensors without dimensions become a vector with one
      element for each part.
    * Packed sequences and nested tensors become one, of all sequences or parts.
    * Numbers, texts and other objects are kept if they are equal in all parts; otherwise the result
      has the list of them.
    * Dicts, lists, tuples, named tuples and dataclasses must have equal keys and lengths in all
      parts: a list with one entry for each sample is refused.

    The host does not wait unless `device` is the CPU. Differentiable any number of times.

    Args:
        values: at least one. Leave out devices without samples, or give their empty tensors.
        device: where the result lies.
        dim: a negative value counts from the end of each tensor.
        padding: fills up tensors that are shorter than others in another dimension, such as outputs
            padded to the longest sequence of each part. None refuses such tensors.

    Raises:
        BatchError: the structures differ; a tensor has no dimension `dim`; or other dimensions
            differ and `padding` is None.
    """
    if not values:
        raise BatchError("there is nothing to gather: give the values of at least one device")
    to = resolve_device(device)

    def join_tensors(tensors: tuple[Tensor, ...], path: Path) -> Tensor:
        return _join(tensors, path, to, dim, padding)

    def join_others(others: tuple[Any, ...], _: Path) -> Any:
        return others[0] if are_equal(others) else list(others)

    return Joining(to, join_tensors, join_others).join(tuple(values))


def _join(
    tensors: tuple[Tensor, ...], path: Path, device: torch.device, dim: int, padding: float | None
) -> Tensor:
    count = tensors[0].dim()
    if count == 0:
        return join([tensor.reshape(1) for tensor in tensors], device)
    if not -count <= dim < count:
        raise BatchError(
            f"cannot gather {format_path(path)} along dimension {dim}: the tensors have no such "
            f"dimension ({format_shapes(tensors)}). Give gather() a dimension that they have"
        )
    dim %= count
    if len({(*tensor.shape[:dim], *tensor.shape[dim + 1 :]) for tensor in tensors}) == 1:
        return join(tensors, device, dim)
    if padding is None:
        raise BatchError(
            f"cannot gather {format_path(path)} along dimension {dim}: other dimensions differ "
            f"({format_shapes(tensors)}). Give the parts the same length, with "
            "pad_packed_sequence(..., total_length=length) where they are padded sequences; "
            "or let gather(..., padding=0.0) fill them up"
        )
    return join(_pad_to_longest(tensors, dim, padding), device, dim)


def _pad_to_longest(tensors: Sequence[Tensor], dim: int, padding: float) -> list[Tensor]:
    """Return `tensors` filled up at the end of every dimension but `dim`, to equal sizes."""
    longest = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]

    def pad(tensor: Tensor) -> Tensor:
        missing = [0 if i == dim else size - tensor.size(i) for i, size in enumerate(longest)]
        # torch.nn.functional.pad counts from the last dimension, before and after in turn.
        amounts = [amount for count in reversed(missing) for amount in (0, count)]
        return torch.nn.functional.pad(tensor, amounts, value=padding) if any(missing) else tensor

    return list(map(pad, tensors))
