"""Batch objects whose class defines what a sample is, and how to count, divide and join samples.

============  =========================  ==============================  ========================
notion        samples                    a part                          joined
============  =========================  ==============================  ========================
a batch size  ``value.batch_size[dim]``  ``value[start:stop]``           ``torch.cat``
graphs        ``value.num_graphs``       ``from_data_list`` of some of   ``from_data_list`` of
                                         its ``to_data_list()``          all
a length      ``len(value)``             ``value[start:stop]``           its class's ``cat``
============  =========================  ==============================  ========================

TensorDict has a batch size, a Batch of PyTorch Geometric has graphs, Detectron2's Instances have a
length. They are recognised by these attributes of their class, so none of their packages is needed.
Any other object is divided field by field if it consists of fields (a dataclass, an object of attrs
or pydantic), and refused if it has tensors anywhere else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ...errors import BatchError
from ...transfer.containers import has_method, is_container
from ...transfer.tree import ATOM_TYPES, Path, format_path
from ...transfer.unreachable import tensors_within

_BUILT_IN = frozenset({dict, list, tuple, set, frozenset, *ATOM_TYPES})
_REMEDY = (
    "Pass its tensors, or make it a dataclass of tensors; or give it `to(device)`, `__len__`, the "
    "number of its samples, and `__getitem__`, which takes a slice of them; or start a process for "
    "each device, with anyrig run, where the module gets the object itself"
)

RETURN_TENSORS = (
    "Return its tensors, in a dict or a dataclass for example; or take the parts as they are: "
    "model.scattered(...)"
)


class Notion(ABC):
    """How objects of a class count, divide and join their samples."""

    @abstractmethod
    def count(self, value: Any, dim: int) -> int | None:
        """Return the number of samples along `dim`; None if the value has none there."""

    @abstractmethod
    def take(self, value: Any, start: int, stop: int, dim: int) -> Any:
        """Return the samples from `start` to `stop`; the value's class may raise any exception."""

    @abstractmethod
    def join(self, parts: Sequence[Any], dim: int) -> Any:
        """Return one object with the samples of all parts. Their class may raise any error."""


class _BatchSize(Notion):
    def count(self, value: Any, dim: int) -> int | None:
        return int(value.batch_size[dim]) if 0 <= dim < len(value.batch_size) else None

    def take(self, value: Any, start: int, stop: int, dim: int) -> Any:
        index = (*([slice(None)] * dim), slice(start, stop))
        return value[index]

    def join(self, parts: Sequence[Any], dim: int) -> Any:
        return torch.cat(list(parts), dim)


class _Graphs(Notion):
    def count(self, value: Any, dim: int) -> int | None:
        return int(value.num_graphs) if dim == 0 else None

    def take(self, value: Any, start: int, stop: int, dim: int) -> Any:
        # PyTorch Geometric makes no batch of no graphs; a device without samples is not called.
        graphs = value.to_data_list()[start:stop]
        return type(value).from_data_list(graphs) if graphs else None

    def join(self, parts: Sequence[Any], dim: int) -> Any:
        graphs = [graph for part in parts for graph in part.to_data_list()]
        return type(parts[0]).from_data_list(graphs)


class _Length(Notion):
    def count(self, value: Any, dim: int) -> int | None:
        try:
            return len(value) if dim == 0 else None
        except TypeError:  # of its tensor, which has no dimensions
            return None

    def take(self, value: Any, start: int, stop: int, dim: int) -> Any:
        part = value[start:stop]
        if type(part) is not type(value) or len(part) != stop - start:
            raise TypeError(
                f"value[{start}:{stop}] is a {type(part).__name__} and not {stop - start} samples"
            )
        return part

    def join(self, parts: Sequence[Any], dim: int) -> Any:
        return type(parts[0]).cat(list(parts))


_BATCH_SIZE, _GRAPHS, _LENGTH = _BatchSize(), _Graphs(), _Length()


def notion_of(value: Any) -> Notion | None:
    """Return the notion of samples that an object has of its own, or None."""
    kind = type(value)
    if kind in _BUILT_IN or isinstance(value, (torch.Tensor, torch.nn.Module, type)):
        return None
    # Such a property may raise, as it does for a cache of transformers.
    if hasattr(kind, "batch_size") and isinstance(getattr(value, "batch_size", None), torch.Size):
        return _BATCH_SIZE
    if hasattr(kind, "num_graphs") and has_method(value, "to_data_list"):
        return _GRAPHS
    if not has_method(value, "__len__") or not has_method(value, "__getitem__"):
        return None
    if isinstance(value, Mapping):
        # The length of a mapping is the number of its keys, unless its class says otherwise.
        return _LENGTH if len(value) != sum(1 for _ in value) else None
    if is_container(value, movable=True):
        return None
    return _LENGTH if has_method(value, "to") or has_tensors(value) else None


def is_object(value: Any) -> bool:
    """Return whether `value` is divided as a whole, by its own notion of samples."""
    return notion_of(value) is not None


def has_tensors(value: Any) -> bool:
    """Return whether an object that is neither tensor nor container has tensors."""
    return next(_tensors(value), None) is not None


def _tensors(value: Any) -> Iterator[tuple[Path, torch.Tensor]]:
    held = [((), value)] if isinstance(value, torch.nn.Module) else tensors_within(value)
    for path, found in held:
        if isinstance(found, torch.Tensor):
            yield path, found
        elif isinstance(found, torch.nn.Module):
            named = (*found.named_parameters(), *found.named_buffers())
            yield from (((*path, (".{}", name)), tensor) for name, tensor in named)


def take_samples(
    value: Any, notion: Notion, counts: Sequence[int], dim: int, name: str
) -> list[Any]:
    """Return ``counts[i]`` samples of `value` for each i, in order, on its devices.

    Raise BatchError, with the object's `name`, if its class does not divide it.
    """
    parts, start = [], 0
    for count in counts:
        stop = start + count
        try:
            part = notion.take(value, start, stop, dim) if count < sum(counts) else value
        except Exception as error:
            raise _refusal(value, name, f"dividing it failed ({_describe(error)})") from error
        parts.append(part)
        start = stop
    return parts


def refuse_undivided(value: Any, name: str) -> None:
    """Raise BatchError if `value`, which is not divided, cannot be passed to several devices.

    An object has no samples that it says, but has tensors, which would lie on another device than
    the replica; or it is an iterator, which the replicas would share.
    """
    if isinstance(value, Iterator):
        raise BatchError(
            f"{name} is a {type(value).__name__}, which yields its values only once, so the "
            "devices cannot share it. Pass a list or a tensor of its values"
        )
    found = next(_tensors(value), None)
    if found is None:
        return
    path, tensor = found
    if isinstance(value, torch.nn.Module):
        raise BatchError(
            f"{name} is a module, {type(value).__name__}, whose {format_path(path)[1:]} is on "
            f"{tensor.device}, so replicas on other devices cannot call it. Make it a submodule of "
            "the spread module"
        )
    place = f"a tensor of shape {tuple(tensor.shape)} in {format_path(path)}"
    raise _refusal(value, name, f"it has {place}, but nothing says which samples it has")


def refuse_uncounted(value: Any, name: str) -> None:
    """Raise BatchError if `value` is not a module and has tensors: nothing counts its samples."""
    found = None if isinstance(value, torch.nn.Module) else next(_tensors(value), None)
    if found is not None:
        raise BatchError(
            f"{name} is a {type(value).__name__} with a tensor of shape {tuple(found[1].shape)} in "
            f"{format_path(found[0])}, but nothing says how many samples it has"
        )


def join_objects(parts: Sequence[Any], notion: Notion, dim: int, name: str) -> Any:
    """Return the joined samples of the parts, which are on one device; raise BatchError if none."""
    try:
        joined = notion.join(parts, dim)
        counts = [notion.count(part, dim) for part in parts]
        found, expected = notion.count(joined, dim), sum(count or 0 for count in counts)
        if found != expected:
            raise TypeError(f"the joined object has {found} samples, and the parts {expected}")
    except Exception as error:
        kind = type(parts[0]).__name__
        raise BatchError(
            f"cannot join {kind} at {name} of what the replicas returned: {_describe(error)}. "
            f"{RETURN_TENSORS}"
        ) from error
    return joined


def entries_of(value: Any) -> dict[Any, Any] | None:
    """Return the entries of an object with an empty batch size, or None if it has none."""
    if notion_of(value) is not _BATCH_SIZE or not has_method(value, "set"):
        return None
    return dict(value.items())


def with_entries(value: Any, entries: dict[Any, Any]) -> Any:
    """Return an object with an empty batch size and with other entries."""
    other = value.clone(recurse=False)
    for key, entry in entries.items():
        if entry is not value.get(key):
            other.set(key, entry)
    return other


def _refusal(value: Any, name: str, reason: str) -> BatchError:
    return BatchError(
        f"{name} is a {type(value).__name__} that cannot be divided: {reason}. {_REMEDY}"
    )


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
