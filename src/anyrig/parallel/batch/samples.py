"""Counting the samples of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from ...errors import BatchError
from ...transfer.arguments import move_tensors
from ...transfer.tree import ATOM_TYPES, Path, format_path, list_leaves
from .ragged import count_sequences

# A packed sequence is divided by sequences, not by the time steps of its data.
WHOLE = (PackedSequence,)


class Listed:
    """A list or tuple that has a sample in each entry, while a batch is divided.

    It is not a dataclass, so a walk over a tree does not enter it.
    """

    def __init__(self, entries: Any) -> None:
        self.entries = entries

    def cut(self, counts: Sequence[int], devices: Sequence[torch.device] | None) -> list[Any]:
        """Return ``counts[i]`` entries for each i, on ``devices[i]`` unless `devices` is None."""
        parts, start = [], 0
        for index, count in enumerate(counts):
            part = self.entries[start : start + count]
            parts.append(part if devices is None else move_tensors(part, devices[index]))
            start += count
        return parts


def is_list(value: Any) -> bool:
    """Return whether `value` is a list or a tuple without field names."""
    return isinstance(value, (list, tuple)) and not hasattr(value, "_fields")


def count_samples(tree: Any, dim: int = 0, name: Callable[[Path], str] = format_path) -> int | None:
    """Return the number of samples: each tensor's size along `dim`, or the number of sequences.

    Tensors without dimensions are ignored; if there are no others, return None. Raise BatchError if
    a tensor has no dimension `dim`, or two differ in size along it; `name` formats their paths.
    """
    first: tuple[int, str] | None = None
    for leaf, path in list_leaves(tree, WHOLE):
        if not has_samples(leaf):
            continue
        if isinstance(leaf, torch.Tensor) and leaf.is_nested and dim not in (0, -leaf.dim()):
            raise BatchError(
                f"{name(path)} is a nested tensor, which can be divided along dimension 0 only, "
                f"not {dim}"
            )
        place = f"{name(path)} ({_describe(leaf)})"
        count = count_of(leaf, dim)
        if count is None:
            raise BatchError(
                f"{place} cannot be divided along dimension {dim}, which it does not have. Give "
                "each tensor of the batch that dimension, or divide along another"
            )
        first = first or (count, place)
        if count != first[0]:
            raise BatchError(
                f"the batch has {first[0]} samples along dimension {dim} in {first[1]}, but "
                f"{count} in {place}. Every tensor argument with dimensions needs an entry for "
                "each sample: make any other tensor a buffer of the module, or repeat it for each "
                "sample, with tensor.expand() at no cost. If a list has a sample in each entry, "
                "collate the entries into tensors, or make each a dict"
            )
    return first and first[0]


def find_sample_count(tree: Any, dim: int = 0) -> int | None:
    """Return the number of samples in the first leaf that has samples along `dim`, or None."""
    counts = (count_of(leaf, dim) for leaf, _ in list_leaves(tree, WHOLE) if has_samples(leaf))
    return next((count for count in counts if count is not None), None)


def count_listed(inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Return how many samples a call's arguments list; None if they do not list samples.

    Models for detection take lists, because images differ in size:
    ``model([image, image], [{"boxes": …}, {"boxes": …}])``. A list or tuple of dicts among the
    arguments has a sample in each entry, and so has every list or tuple of the same length.
    """
    lists = [value for value in (*inputs, *kwargs.values()) if is_list(value)]
    for value in lists:
        if value and all(isinstance(entry, Mapping) for entry in value):
            return len(value)
    is_empty = lists and not any(lists) and find_sample_count((inputs, kwargs)) is None
    return 0 if is_empty else None


def count_arguments(inputs: tuple[Any, ...], kwargs: dict[str, Any], dim: int) -> int | None:
    """Return the number of samples in the arguments of a call; None if unknown."""
    values = (*inputs, *kwargs.values())
    # Written for speed, as `change_tensors` is.
    if all(type(value) is torch.Tensor or type(value) in ATOM_TYPES for value in values):
        tensors = (value for value in values if type(value) is torch.Tensor and value.dim())
        return next((count for each in tensors if (count := count_of(each, dim)) is not None), None)
    listed = count_listed(inputs, kwargs)
    return find_sample_count((inputs, kwargs), dim) if listed is None else listed


def has_samples(leaf: Any) -> bool:
    """Return whether a leaf is divided between devices; any other leaf is given to each device."""
    return isinstance(leaf, (PackedSequence, Listed)) or (
        isinstance(leaf, torch.Tensor) and (leaf.is_nested or leaf.dim() > 0)
    )


def name_argument(path: Path) -> str:
    """Return a path in ``(args, kwargs)`` as the caller wrote it."""
    (_, which), (_, key), *within = path
    place = f"argument {key}" if which == 0 else f"argument {key!r}"
    return place + (format_path(tuple(within)) if within else "")


def count_of(leaf: Any, dim: int) -> int | None:
    """Return the sample count of a leaf with samples; None for a tensor without dimension `dim`."""
    if isinstance(leaf, Listed):
        return len(leaf.entries)
    if isinstance(leaf, PackedSequence):
        return count_sequences(leaf)
    return int(leaf.size(dim)) if -leaf.dim() <= dim < leaf.dim() else None


def _describe(leaf: Any) -> str:
    if isinstance(leaf, PackedSequence):
        return "a packed sequence"
    if isinstance(leaf, Listed):
        return f"a list of {len(leaf.entries)}"
    return "nested" if leaf.is_nested else f"shape {tuple(leaf.shape)}"
