"""Joining values of one structure, one from each device or part of a batch, on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ...devices.place import Place
from ...errors import BatchError
from ...transfer.containers import children_of, is_container, with_children
from ...transfer.move import Mover, resolve_device
from ...transfer.tree import Path, format_path
from .cut import join
from .ragged import join_nested, join_packed
from .samples import is_list


def gather(values: Sequence[Any], device: Place, dim: int = 0, padding: float | None = None) -> Any:
    """Return one value on `device`, with the parts' tensors joined along `dim`, in order.

    All values have the same structure, and so has the result:

    * Tensors are joined as by `torch.cat`. Tensors without dimensions become a vector with one
      element for each part.
    * Packed sequences are joined into one of all sequences, nested tensors into one of all parts.
    * Numbers, strings and other objects are kept if they are equal in all parts; otherwise the
      result has the list of them.
    * Dicts, lists, tuples, named tuples and dataclasses must have equal keys and lengths in all
      parts: a list with one entry for each sample is refused.

    The host does not wait unless `device` is the CPU. Gradients of any order are supported.

    Args:
        values: at least one value. Leave out devices without samples, or give their empty tensors.
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
    # Fill up at the end of every dimension but `dim`.
    longest = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]

    def pad(tensor: Tensor) -> Tensor:
        missing = [0 if i == dim else size - tensor.size(i) for i, size in enumerate(longest)]
        # torch.nn.functional.pad counts from the last dimension, before and after in turn.
        amounts = [amount for count in reversed(missing) for amount in (0, count)]
        return torch.nn.functional.pad(tensor, amounts, value=padding) if any(missing) else tensor

    return join(list(map(pad, tensors)), device, dim)


@dataclass
class Joining:
    """A walk over the values of all parts. It joins packed sequences and nested tensors itself."""

    device: torch.device
    join_tensors: Callable[[tuple[Tensor, ...], Path], Tensor]  # of equal dimensionality
    join_others: Callable[[tuple[Any, ...], Path], Any]  # leaves that are not tensors
    lengths: tuple[int, ...] | None = None  # of the parts' lists of samples, if there are any
    # The originals and their joined value, by the originals' ids, which are unique while they live.
    _done: dict[tuple[int, ...], tuple[tuple[Any, ...], Any]] = field(default_factory=dict)

    def join(self, values: tuple[Any, ...], path: Path = ()) -> Any:
        """Join the parts' values at `path`; raise BatchError if their structures differ."""
        key = tuple(map(id, values))
        if key not in self._done:
            self._done[key] = values, self._join(values, path)
        return self._done[key][1]

    def _join(self, values: tuple[Any, ...], path: Path) -> Any:
        kinds, kind = set(map(_kind, values)), _kind(values[0])
        if len(kinds) > 1 and (kind is not None or kinds & {Tensor, PackedSequence}):
            types = ", ".join(type(value).__name__ for value in values)
            raise BatchError(
                f"cannot gather {format_path(path)}: the devices returned different things there "
                f"({types}). Return the same structure from every part of a batch"
            )
        if kind is None:
            return self.join_others(values, path)
        if kind is PackedSequence:
            return join_packed(values, self.device)
        if kind is not Tensor:
            return self._join_containers(values, path)
        nested = {tensor.is_nested for tensor in values}
        if nested == {True}:
            return join_nested(values, self.device)
        if len({tensor.dim() for tensor in values}) > 1 or len(nested) > 1:
            raise BatchError(
                f"cannot gather {format_path(path)}: the numbers of dimensions differ "
                f"({format_shapes(values)}). Return tensors of the same number of dimensions from "
                "every part of a batch"
            )
        return self.join_tensors(values, path)

    def _join_containers(self, containers: tuple[Any, ...], path: Path) -> Any:
        first = containers[0]
        if is_list(first) and tuple(map(len, containers)) == self.lengths:
            return self._chain(containers, path)
        children = [children_of(container) for container in containers]
        keys = [[key for key, _ in pairs] for pairs in children]
        if any(other != keys[0] for other in keys):
            found = "; ".join(str([key for _, key in parts]) for parts in keys)
            raise BatchError(
                f"cannot gather {type(first).__name__} at {format_path(path)}: the devices "
                f"returned different keys or lengths ({found}). Return the same from every part "
                "of a batch; instead of a list with an entry for each sample, return a tensor"
            )
        joined = [
            self.join(tuple(child for _, child in pairs), (*path, pairs[0][0]))
            for pairs in zip(*children, strict=True)
        ]
        return with_children(first, children[0], joined)

    def _chain(self, lists: tuple[Any, ...], path: Path) -> Any:
        if len(lists) > 1 and not all(isinstance(each, Mapping) for part in lists for each in part):
            raise BatchError(
                f"cannot gather {format_path(path)}: the batch was divided by the entries of a "
                "list, and it is not clear whether this list has an entry for each sample. Return "
                "a list with a dict for each sample, or a tensor"
            )
        entries = [each for part in lists for each in part]
        moved = Mover(self.device, non_blocking=True).map(entries)
        return moved if isinstance(lists[0], list) else tuple(moved)


def are_equal(values: tuple[Any, ...]) -> bool:
    """Return whether all values are the same object, or of one type and equal; NaN equals NaN."""
    first = values[0]
    try:
        return all(
            first is other
            or (
                type(first) is type(other)
                and bool(first == other or (first != first and other != other))
            )
            for other in values[1:]
        )
    except (TypeError, ValueError, RuntimeError):  # an array compares element by element
        return False


def format_shapes(tensors: Sequence[Tensor]) -> str:
    """Return the shapes of the parts' tensors for an error message."""
    return ", ".join("nested" if t.is_nested else str(tuple(t.shape)) for t in tensors)


def _kind(value: Any) -> type | None:
    """Return the type that all parts must have; None if `value` is neither tensor nor container."""
    for kind in (Tensor, PackedSequence):
        if isinstance(value, kind):
            return kind
    return type(value) if is_container(value) and not isinstance(value, torch.Size) else None
