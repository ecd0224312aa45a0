"""How many rows a batch has: one number, on which everything that is split must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from ...errors import BatchError
from ...transfer.tree import Path, format_path, list_leaves

# A packed sequence is split by sequences, not by the time steps its data is laid out in.
WHOLE = (PackedSequence,)


def count_rows(tree: Any, dim: int = 0, name: Callable[[Path], str] = format_path) -> int | None:
    """Return the rows of a batch: the size along `dim` that all its tensors have.

    A packed sequence has as many rows as sequences. Tensors without dimensions have none. None if
    nothing in `tree` can be split.

    Args:
        tree: any nested structure.
        dim: negative ones count from the end of each tensor.
        name: how an error names a place.

    Raises:
        BatchError: a tensor has no such dimension, or two disagree; the message says which, with
            their shapes.
    """
    first: tuple[int, str] | None = None
    for leaf, path in list_leaves(tree, WHOLE):
        if not splits(leaf):
            continue
        if isinstance(leaf, torch.Tensor) and leaf.is_nested and dim not in (0, -leaf.dim()):
            raise BatchError(
                f"{name(path)} is a nested tensor, which can be split along dimension 0 only, not "
                f"{dim}"
            )
        place = f"{name(path)} ({_describe(leaf)})"
        rows = _rows(leaf, dim)
        if rows is None:
            raise BatchError(
                f"{place} cannot be split along dimension {dim}, which it does not have. Give each "
                "tensor of the batch that dimension, or split along another"
            )
        first = first or (rows, place)
        if rows != first[0]:
            raise BatchError(
                f"the batch has {first[0]} rows along dimension {dim} in {first[1]}, but {rows} in "
                f"{place}. What is not split by rows must not be among the inputs as a tensor with "
                "dimensions: give the module a buffer of it, or repeat it for every row, with "
                "tensor.expand() at no cost"
            )
    return first and first[0]


def rows_of_first(tree: Any, dim: int = 0) -> int | None:
    """Return the rows of the first thing in a tree that has any along `dim`, or None."""
    for leaf, _ in list_leaves(tree, WHOLE):
        rows = _rows(leaf, dim) if splits(leaf) else None
        if rows is not None:
            return rows
    return None


def splits(leaf: Any) -> bool:
    """Say whether a leaf is divided between the devices, and not given to each."""
    return isinstance(leaf, PackedSequence) or (
        isinstance(leaf, torch.Tensor) and (leaf.is_nested or leaf.dim() > 0)
    )


def name_argument(path: Path) -> str:
    """Return a place in ``(args, kwargs)`` as the caller wrote it."""
    (_, which), (_, key), *within = path
    place = f"argument {key}" if which == 0 else f"argument {key!r}"
    return place + (format_path(tuple(within)) if within else "")


def _rows(leaf: Any, dim: int) -> int | None:
    if isinstance(leaf, PackedSequence):
        return int(leaf.batch_sizes[0]) if len(leaf.batch_sizes) else 0
    return int(leaf.size(dim)) if -leaf.dim() <= dim < leaf.dim() else None


def _describe(leaf: Any) -> str:
    if isinstance(leaf, PackedSequence):
        return "a packed sequence"
    return "nested" if leaf.is_nested else f"shape {tuple(leaf.shape)}"
