"""What came of the parts of a batch, joined on one device, whatever its structure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ...devices.device import Device
from ...errors import BatchError
from ...transfer.containers import attributes_of, is_container, items_of, rebuild
from ...transfer.move import resolve_device
from ...transfer.tree import Path, format_path
from .cut import join
from .nested import join_nested
from .packed import join_packed


def gather(values: Sequence[Any], device: Device | torch.device | str | int, dim: int = 0) -> Any:
    """Return one value on `device`: the parts' tensors joined along `dim`, in order.

    All values have the same structure, which the result has too:

    * Tensors are joined along `dim`. Where other dimensions differ, as in outputs padded to the
      longest sequence of each part, the shorter ones are padded with zeros to the longest.
    * Tensors without dimensions become a vector with one element a part.
    * Packed sequences become one of all sequences, nested tensors one of all parts.
    * Numbers, texts and other objects that are equal in all parts are themselves; where they
      differ, the result has the list of them, in order.
    * Dicts, lists, tuples, named tuples and dataclasses are rebuilt, and have the same keys or
      length in all parts: a list of one entry a sample cannot be told from one of several outputs.

    Each tensor is copied once, straight to its place, and the host does not wait unless `device`
    is the CPU. Differentiable, as often as wanted.

    Args:
        values: at least one; those of devices that had no rows are left out, or have none.
        device: where the result is to be.
        dim: along which dimension; a negative one counts from the end of each tensor.

    Raises:
        BatchError: the structures differ, or a tensor lacks the dimension; the message says where.
    """
    if not values:
        raise BatchError("there is nothing to gather: give the values of at least one device")
    return _Gathering(resolve_device(device), dim).join(tuple(values), ())


class _Gathering:
    """One pass over values of one structure."""

    def __init__(self, device: torch.device, dim: int) -> None:
        self._device = device
        self._dim = dim
        # What lies at two places of every part is joined once. The originals are kept, so that no
        # id is given to a second object.
        self._done: dict[tuple[int, ...], tuple[tuple[Any, ...], Any]] = {}

    def join(self, values: tuple[Any, ...], path: Path) -> Any:
        key = tuple(map(id, values))
        if key not in self._done:
            self._done[key] = values, self._join(values, path)
        return self._done[key][1]

    def _join(self, values: tuple[Any, ...], path: Path) -> Any:
        first = values[0]
        for kind in (Tensor, PackedSequence):
            if any(isinstance(value, kind) for value in values) and not all(
                isinstance(value, kind) for value in values
            ):
                raise self._refuse(values, path)
        if isinstance(first, Tensor):
            return self._join_tensors(values, path)
        if isinstance(first, PackedSequence):
            return join_packed(values, self._device)
        if is_container(first) and not isinstance(first, torch.Size):
            return self._join_containers(values, path)
        return first if all(_same(first, other) for other in values[1:]) else list(values)

    def _join_tensors(self, tensors: tuple[Tensor, ...], path: Path) -> Tensor:
        if all(tensor.is_nested for tensor in tensors):
            return join_nested(tensors, self._device)
        dimensions = {tensor.dim() for tensor in tensors}
        if len(dimensions) > 1 or any(tensor.is_nested for tensor in tensors):
            raise self._refuse_shapes(tensors, path, "their numbers of dimensions differ")
        (count,) = dimensions
        if count == 0:
            return join([tensor.reshape(1) for tensor in tensors], self._device)
        if not -count <= self._dim < count:
            raise self._refuse_shapes(tensors, path, f"they have no dimension {self._dim}")
        dim = self._dim % count
        return join(_pad_to_longest(tensors, dim), self._device, dim)

    def _join_containers(self, containers: tuple[Any, ...], path: Path) -> Any:
        first = containers[0]
        if any(type(container) is not type(first) for container in containers):
            raise self._refuse(containers, path)
        items = [list(items_of(container)) for container in containers]
        attributes = [attributes_of(container) for container in containers]
        if any(
            [part for part, _ in of_one] != [part for part, _ in items[0]] for of_one in items
        ) or any(of_one.keys() != attributes[0].keys() for of_one in attributes):
            keys = "; ".join(str([key for (_, key), _ in of_one]) for of_one in items)
            raise BatchError(
                f"cannot gather {type(first).__name__} at {format_path(path)}: the devices "
                f"returned different keys or lengths ({keys}). Return the same from every part "
                "of a batch; for one entry a sample, return a tensor with a row for each"
            )
        joined = [
            self.join(tuple(item for _, item in same), (*path, same[0][0]))
            for same in zip(*items, strict=True)
        ]
        joined_attributes = {
            name: self.join(tuple(of_one[name] for of_one in attributes), (*path, (".{}", name)))
            for name in attributes[0]
        }
        if all(new is old for new, (_, old) in zip(joined, items[0], strict=True)) and all(
            joined_attributes[name] is attributes[0][name] for name in joined_attributes
        ):
            return first
        return rebuild(first, joined, joined_attributes)

    def _refuse(self, values: tuple[Any, ...], path: Path) -> BatchError:
        types = ", ".join(type(value).__name__ for value in values)
        return BatchError(
            f"cannot gather {format_path(path)}: the devices returned different things there "
            f"({types}). Return the same structure from every part of a batch"
        )

    def _refuse_shapes(self, tensors: tuple[Tensor, ...], path: Path, why: str) -> BatchError:
        shapes = ", ".join("nested" if t.is_nested else str(tuple(t.shape)) for t in tensors)
        return BatchError(
            f"cannot gather {format_path(path)} along dimension {self._dim}: {why} ({shapes}). "
            "Return tensors with the rows of the batch in that dimension"
        )


def _pad_to_longest(tensors: Sequence[Tensor], dim: int) -> list[Tensor]:
    """Return `tensors` with zeros at the end of every dimension but `dim`, alike in size."""
    longest = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    padded = []
    for tensor in tensors:
        lacking = [0 if i == dim else size - tensor.size(i) for i, size in enumerate(longest)]
        # torch.nn.functional.pad counts from the last dimension, before and after in turn.
        amounts = [amount for lack in reversed(lacking) for amount in (0, lack)]
        padded.append(torch.nn.functional.pad(tensor, amounts) if any(lacking) else tensor)
    return padded


def _same(first: Any, other: Any) -> bool:
    if first is other:
        return True
    if type(first) is not type(other):
        return False
    try:
        return bool(first == other or (first != first and other != other))
    except (TypeError, ValueError, RuntimeError):  # an array answers for each of its elements
        return False
