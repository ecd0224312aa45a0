"""Counting the samples of a batch, or of the arguments of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...errors import BatchError
from ...transfer.arguments import name_argument as name_argument
from ...transfer.tree import ATOM_TYPES, Path, format_path, list_leaves
from .find_listed import UnclearError, mark_listed
from .objects import refuse_uncounted
from .with_samples import count_of, describe_leaf, has_samples, is_whole
from .with_samples import is_list as is_list


def count_samples(tree: Any, dim: int = 0, name: Callable[[Path], str] = format_path) -> int | None:
    """Return the number of samples: each tensor's size along `dim`, or the number of sequences.

    Tensors without dimensions are ignored; if there are no others, return None. Raise BatchError if
    a tensor has no dimension `dim`, or two differ in size along it; `name` formats their paths.
    """
    first: tuple[int, str] | None = None
    for leaf, path in list_leaves(tree, is_whole, movable=True):
        if not has_samples(leaf):
            continue
        if isinstance(leaf, torch.Tensor) and leaf.is_nested and dim not in (0, -leaf.dim()):
            raise BatchError(
                f"{name(path)} is a nested tensor, which can be divided along dimension 0 only, "
                f"not {dim}"
            )
        place = f"{name(path)} ({describe_leaf(leaf)})"
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
    counts = (
        count_of(leaf, dim)
        for leaf, _ in list_leaves(tree, is_whole, movable=True)
        if has_samples(leaf)
    )
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
    """Return the number of samples in the arguments of a call; None if they show no samples.

    The samples are those that one process divides: in each tensor along `dim`, in each object with
    samples of its own, or in the entries of lists. Raise BatchError if two of these differ, or if
    a list may be read in two ways, or if an object has tensors and nothing else shows samples; the
    message names ``samples=``.
    """
    values = (*inputs, *kwargs.values())
    # Written for speed, as `change_tensors` is.
    if all(type(value) is torch.Tensor or type(value) in ATOM_TYPES for value in values):
        tensors = [value for value in values if type(value) is torch.Tensor and value.dim()]
        counts = {count_of(each, dim) for each in tensors}
        if len(counts) < 2 and None not in counts:
            return counts.pop() if counts else None
    try:
        marked = mark_listed((inputs, kwargs), dim, name_argument, is_call=True)
        counted = count_samples(marked, dim, name_argument)
        if counted is None:
            counted = count_listed(inputs, kwargs)  # of empty lists: 0
        if counted is None:
            for leaf, path in list_leaves(marked, is_whole, movable=True):
                refuse_uncounted(leaf, name_argument(path))
        return counted
    except BatchError as error:
        if isinstance(error, UnclearError) and error.samples is not None:
            return error.samples
        if "samples=" in str(error):
            raise
        raise BatchError(
            f"{error}. Or say how many samples the call has: model(…, samples=5)"
        ) from error.__cause__
