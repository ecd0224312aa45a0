"""Joining values of one structure, one from each device or part of a batch, on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ...devices.place import Place
from ...errors import BatchError
from ...transfer.arguments import move_tensors
from ...transfer.containers import children_of, is_container, items_of, with_children
from ...transfer.move import resolve_device
from ...transfer.tree import ATOM_TYPES, Path, format_path
from ..marks import tensors_with_gradients
from .cut import join
from .objects import (
    RETURN_TENSORS,
    Notion,
    entries_of,
    has_tensors,
    is_object,
    join_objects,
    notion_of,
    with_entries,
)
from .ragged import join_nested, join_packed
from .with_samples import is_list


def gather(values: Sequence[Any], device: Place, dim: int = 0, padding: float | None = None) -> Any:
    """Return one value on `device`, with the parts' tensors joined along `dim`, in order.

    All values have the same structure, and so has the result:

    * Tensors are joined with `torch.cat`. Tensors without dimensions become a vector with one
      element for each part.
    * Packed sequences are joined into one of all sequences, nested tensors into one of all parts.
    * Objects with a notion of samples of their own, such as a TensorDict, are joined by it.
    * Numbers and strings are kept if they are equal in all parts, and so are other objects without
      tensors; otherwise the result has the list of them.
    * Dicts, lists, tuples, named tuples, dataclasses, and objects of attrs or pydantic must have
      equal keys and lengths in all parts: a list with one entry for each sample is refused.

    The host does not wait unless `device` is the CPU. Gradients of any order are supported.

    Args:
        values: at least one value. Leave out devices without samples, or give their empty tensors.
        device: where the result lies.
        dim: a negative value counts from the end of each tensor.
        padding: fills up tensors that are shorter than others in another dimension, such as outputs
            padded to the longest sequence of each part. None refuses such tensors.

    Raises:
        BatchError: the structures differ; a tensor has no dimension `dim`; other dimensions
            differ and `padding` is None; or an object has tensors that cannot be joined.
    """
    if not values:
        raise BatchError("there is nothing to gather: give the values of at least one device")
    to = resolve_device(device)

    def join_tensors(tensors: tuple[Tensor, ...], path: Path) -> Tensor:
        return _join(tensors, path, to, dim, padding)

    def join_others(others: tuple[Any, ...], _: Path) -> Any:
        return others[0] if are_equal(others) else list(others)

    return Joining(to, join_tensors, join_others, dim).join(tuple(values))


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


class Parts(list[Any]):
    """What the parts returned in one place, one object for each part, since they are not joined.

    This is a list. An attempt to use it as one of the objects raises an error that says so.
    """

    def __init__(self, values: Iterable[Any] = (), path: Path = ()) -> None:
        super().__init__(values)
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not self:
            raise AttributeError(name)
        raise NotJoinedError(
            f"{format_path(self._path)} of what the replicas returned is a "
            f"{type(self[0]).__name__} for each part, which cannot be joined to one, in a list: "
            f"it has no {name!r}. {RETURN_TENSORS}"
        )


class NotJoinedError(BatchError, AttributeError):
    """A list of the parts' objects was used as one of them."""


@dataclass
class Joining:
    """A walk over the values of all parts.

    It joins packed sequences, nested tensors, and objects with a notion of samples itself.
    """

    device: torch.device
    join_tensors: Callable[[tuple[Tensor, ...], Path], Tensor]  # of equal dimensionality
    join_others: Callable[[tuple[Any, ...], Path], Any]  # leaves that are not tensors
    dim: int = 0  # which has the samples of objects with a batch size
    samples: tuple[int, ...] | None = None  # of each part; None if not known
    # Whether a list at a path has more entries for more samples. Asked if parts have equally many.
    grows: Callable[[Path], bool] = lambda _: False
    # The originals and their joined value, by the originals' ids, which are unique while they live.
    _done: dict[tuple[int, ...], tuple[tuple[Any, ...], Any]] = field(default_factory=dict)
    _entered: set[tuple[int, ...]] = field(default_factory=set)

    def join(self, values: tuple[Any, ...], path: Path = ()) -> Any:
        """Join the parts' values at `path`; raise BatchError if their structures differ."""
        key = tuple(map(id, values))
        if key in self._entered:
            raise BatchError(
                f"cannot gather {format_path(path)}: the {type(values[0]).__name__} there contains "
                "itself. Return its tensors"
            )
        if key not in self._done:
            self._entered.add(key)
            self._done[key] = values, self._join(values, path)
            self._entered.discard(key)
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
            return self._join_leaves(values, path)
        if kind is PackedSequence:
            return join_packed(values, self.device)
        if kind is not Tensor:
            notion = notion_of(values[0])
            if notion is not None:
                return self._join_objects(values, notion, path)
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

    def _join_leaves(self, values: tuple[Any, ...], path: Path) -> Any:
        first = values[0]
        if len(values) == 1 and not path:
            return move_tensors(first, self.device)
        if len(values) == 1 or type(first) in ATOM_TYPES or isinstance(first, torch.Size):
            return self.join_others(values, path)
        if isinstance(first, Iterator):
            raise BatchError(
                f"cannot gather {format_path(path)}: a {type(first).__name__} yields its values "
                "later. Return a list or a tensor of them"
            )
        is_closure = isinstance(first, FunctionType) and bool(tensors_with_gradients(first))
        if not is_closure and not has_tensors(first):
            return self.join_others(values, path)
        if not path or any(value is first for value in values[1:]):
            shared = (
                ""
                if all(value is not first for value in values[1:])
                else ", which the replicas share"
            )
            raise BatchError(
                f"cannot gather {format_path(path)}: it is a {type(first).__name__}{shared}, and "
                f"nothing says how its tensors are joined. {RETURN_TENSORS}"
            )
        return Parts(values, path)

    def _join_containers(self, containers: tuple[Any, ...], path: Path) -> Any:
        first = containers[0]
        if is_list(first) and self._have_entry_for_each_sample(containers, path):
            return self._chain(containers)
        if isinstance(first, (set, frozenset)):
            return self._join_sets(containers, path)
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

    def _have_entry_for_each_sample(self, lists: tuple[Any, ...], path: Path) -> bool:
        if len(lists) < 2 or tuple(map(len, lists)) != self.samples:
            return False
        return len(set(self.samples)) > 1 or self.grows(path)

    def _join_objects(self, values: tuple[Any, ...], notion: Notion, path: Path) -> Any:
        parts = tuple(move_tensors(value, self.device) for value in values)
        counts = tuple(notion.count(part, self.dim) for part in parts)
        if len(parts) == 1:
            return parts[0]
        entries = [entries_of(part) for part in parts] if set(counts) == {None} else [None]
        first = entries[0]
        if first is not None and all(each is not None and [*each] == [*first] for each in entries):
            joined = {
                key: self.join(
                    tuple(each[key] for each in entries if each), (*path, ("[{!r}]", key))
                )
                for key in first
            }
            return with_entries(parts[0], joined)
        if self.samples is not None and counts != self.samples:
            raise BatchError(
                f"cannot join {format_path(path)} of what the replicas returned: each "
                f"{type(parts[0]).__name__} there has {', '.join(map(str, counts))} samples along "
                f"dimension {self.dim}, but the parts of the batch have "
                f"{', '.join(map(str, self.samples))}. {RETURN_TENSORS}"
            )
        return join_objects(parts, notion, self.dim, format_path(path))

    def _join_sets(self, sets: tuple[Any, ...], path: Path) -> Any:
        """Join sets of one element, or equal sets; others have no order in which to join them."""
        if all(len(each) == 1 for each in sets):
            (part,) = items_of(sets[0])
            joined = self.join(tuple(next(iter(each)) for each in sets), (*path, part[0]))
            return with_children(sets[0], [part], [joined])
        if all(each == sets[0] for each in sets):
            return move_tensors(sets[0], self.device)
        raise BatchError(
            f"cannot gather {format_path(path)}: a set has no order, so its elements cannot be "
            "joined with those of other parts. Return a list or a dict"
        )

    def _chain(self, lists: tuple[Any, ...]) -> Any:
        entries = move_tensors([each for part in lists for each in part], self.device)
        return tuple(entries) if isinstance(lists[0], tuple) else entries


def format_shapes(tensors: Sequence[Tensor]) -> str:
    """Return the shapes of the parts' tensors for an error message."""
    return ", ".join("nested" if t.is_nested else str(tuple(t.shape)) for t in tensors)


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


def _kind(value: Any) -> type | None:
    """Return the type that all parts must have; None if `value` is neither tensor nor container."""
    for kind in (Tensor, PackedSequence):
        if isinstance(value, kind):
            return kind
    if isinstance(value, torch.Size):
        return None
    return type(value) if is_container(value, movable=True) or is_object(value) else None
