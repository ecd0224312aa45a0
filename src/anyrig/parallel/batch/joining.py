"""Values of one structure, one from each part of a batch, made into one value of that structure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ...errors import BatchError
from ...transfer.containers import attributes_of, is_container, items_of, rebuild
from ...transfer.tree import Path, format_path
from .nested import join_nested
from .packed import join_packed


class Joining(ABC):
    """One pass over the values of all parts.

    Packed sequences, nested tensors and containers are joined here. A subclass decides what
    becomes of other tensors, and of objects that are no containers.

    Args:
        device: where the result is to be, with its index.
        dim: the dimension along which the batch was divided.
    """

    def __init__(self, device: torch.device, dim: int) -> None:
        self.device = device
        self.dim = dim
        # What lies at two places of every part is joined once. The originals are kept, so that no
        # id is given to a second object.
        self._done: dict[tuple[int, ...], tuple[tuple[Any, ...], Any]] = {}

    @abstractmethod
    def join_tensors(self, tensors: tuple[Tensor, ...], path: Path) -> Tensor:
        """Return one tensor for tensors that have the same number of dimensions.

        Raises:
            BatchError: they cannot be joined.
        """

    @abstractmethod
    def join_others(self, values: tuple[Any, ...], path: Path) -> Any:
        """Return one value for objects that are neither tensors nor containers.

        Raises:
            BatchError: there is no such value.
        """

    def join(self, values: tuple[Any, ...], path: Path = ()) -> Any:
        """Return one value for those of all parts, which lie at `path` in each."""
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
                raise _refuse(values, path)
        if isinstance(first, Tensor):
            return self._join_alike(values, path)
        if isinstance(first, PackedSequence):
            return join_packed(values, self.device)
        if is_container(first) and not isinstance(first, torch.Size):
            return self._join_containers(values, path)
        return self.join_others(values, path)

    def _join_alike(self, tensors: tuple[Tensor, ...], path: Path) -> Tensor:
        if all(tensor.is_nested for tensor in tensors):
            return join_nested(tensors, self.device)
        dimensions = {tensor.dim() for tensor in tensors}
        if len(dimensions) > 1 or any(tensor.is_nested for tensor in tensors):
            raise BatchError(
                f"cannot gather {format_path(path)}: the numbers of dimensions differ "
                f"({format_shapes(tensors)}). Return tensors of the same number of dimensions from "
                "every part of a batch"
            )
        return self.join_tensors(tensors, path)

    def _join_containers(self, containers: tuple[Any, ...], path: Path) -> Any:
        first = containers[0]
        if any(type(container) is not type(first) for container in containers):
            raise _refuse(containers, path)
        items = [list(items_of(container)) for container in containers]
        attributes = [attributes_of(container) for container in containers]
        if any(
            [part for part, _ in of_one] != [part for part, _ in items[0]] for of_one in items
        ) or any(of_one.keys() != attributes[0].keys() for of_one in attributes):
            keys = "; ".join(str([key for (_, key), _ in of_one]) for of_one in items)
            raise BatchError(
                f"cannot gather {type(first).__name__} at {format_path(path)}: the devices "
                f"returned different keys or lengths ({keys}). Return the same from every part "
                "of a batch; for one entry a sample, return a tensor with an entry for each"
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


def are_equal(values: tuple[Any, ...]) -> bool:
    """Say whether all values are the same object, or of one type and equal; NaN equals NaN."""
    return all(_same(values[0], other) for other in values[1:])


def format_shapes(tensors: Sequence[Tensor]) -> str:
    """Return the shapes of the parts' tensors, as errors list them."""
    return ", ".join("nested" if t.is_nested else str(tuple(t.shape)) for t in tensors)


def _refuse(values: tuple[Any, ...], path: Path) -> BatchError:
    types = ", ".join(type(value).__name__ for value in values)
    return BatchError(
        f"cannot gather {format_path(path)}: the devices returned different things there "
        f"({types}). Return the same structure from every part of a batch"
    )


def _same(first: Any, other: Any) -> bool:
    if first is other:
        return True
    if type(first) is not type(other):
        return False
    try:
        return bool(first == other or (first != first and other != other))
    except (TypeError, ValueError, RuntimeError):  # an array answers for each of its elements
        return False
