"""Joining values of one structure, one from each part of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ...errors import BatchError
from ...transfer.containers import children_of, is_container, with_children
from ...transfer.move import Mover
from ...transfer.tree import Path, format_path
from .nested import join_nested
from .packed import join_packed
from .samples import is_list


@dataclass
class Joining:
    """A walk over the values of all parts. It joins packed sequences and nested tensors itself."""

    device: torch.device
    join_tensors: Callable[[tuple[Tensor, ...], Path], Tensor]  # with equally many dimensions
    join_others: Callable[[tuple[Any, ...], Path], Any]  # leaves that are not tensors
    lengths: tuple[int, ...] | None = None  # of the parts' lists of samples, if it had such lists
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
    """Say whether all values are the same object, or of one type and equal; NaN equals NaN."""
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
