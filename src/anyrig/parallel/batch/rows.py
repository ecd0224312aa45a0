"""How many rows a batch has: one number, on which everything that is split must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from ...errors import BatchError
from ...transfer.tree import Path, format_path, map_leaves

# A packed sequence is split by sequences, not by the time steps its data is laid out in.
WHOLE = (PackedSequence,)


def count_rows(tree: Any, dim: int = 0, name: Callable[[Path], str] = format_path) -> int | None:
    """Return the rows of a batch: the size along `dim` that all its tensors have.

    A packed sequence has as many rows as sequences. Tensors without dimensions have none. None if
    nothing in `tree` can be split.

    Args:
        tree: any nested structure.
        dim: the dimension along which it would be split; negative ones count from the end of each
            tensor.
        name: how an error names a place.

    Raises:
        BatchError: a tensor has no such dimension, or two disagree; the message says which, with
            their shapes.
    """
    first: tuple[int, str] | None = None

    def look(leaf: Any, path: Path) -> Any:
        nonlocal first
        rows = _rows_of_leaf(leaf, dim, path, name)
        if rows is None:
            return leaf
        if first is None:
            first = rows, _describe(leaf, path, name)
        elif rows != first[0]:
            raise BatchError(
                f"the batch has {first[0]} rows along dimension {dim} in {first[1]}, but {rows} in "
                f"{_describe(leaf, path, name)}. What is not split by rows must not be among the "
                "inputs as a tensor with dimensions: give the module a buffer of it, or repeat "
                "it for every row, with tensor.expand() at no cost"
            )
        return leaf

    map_leaves(tree, look, WHOLE)
    return first[0] if first is not None else None


def rows_of_first(tree: Any, dim: int = 0) -> int | None:
    """Return the rows of the first thing in a tree that has any; None if nothing has.

    Args:
        tree: any nested structure.
        dim: the dimension that has the rows; what lacks it is passed over.
    """
    found: list[int] = []

    def look(leaf: Any, path: Path) -> Any:
        if not found and splits(leaf):
            if isinstance(leaf, PackedSequence):
                found.append(int(leaf.batch_sizes[0]) if len(leaf.batch_sizes) else 0)
            elif -leaf.dim() <= dim < leaf.dim():
                found.append(int(leaf.size(dim)))
        return leaf

    map_leaves(tree, look, WHOLE)
    return found[0] if found else None


def splits(leaf: Any) -> bool:
    """Say whether a leaf is divided between the devices, and not given to each."""
    return isinstance(leaf, PackedSequence) or (
        isinstance(leaf, torch.Tensor) and (leaf.is_nested or leaf.dim() > 0)
    )


def _rows_of_leaf(leaf: Any, dim: int, path: Path, name: Callable[[Path], str]) -> int | None:
    if isinstance(leaf, PackedSequence):
        return int(leaf.batch_sizes[0]) if len(leaf.batch_sizes) else 0
    if not splits(leaf):
        return None
    if not -leaf.dim() <= dim < leaf.dim():
        raise BatchError(
            f"{_describe(leaf, path, name)} cannot be split along dimension {dim}, which it does "
            "not have. Give each tensor of the batch that dimension, or split along another"
        )
    if leaf.is_nested and dim not in (0, -leaf.dim()):
        raise BatchError(
            f"{name(path)} is a nested tensor, which can be split along dimension 0 only, not {dim}"
        )
    return int(leaf.size(dim))


def _describe(leaf: Any, path: Path, name: Callable[[Path], str]) -> str:
    shape = "a packed sequence" if isinstance(leaf, PackedSequence) else _format_shape(leaf)
    return f"{name(path)} ({shape})"


def _format_shape(tensor: torch.Tensor) -> str:
    return "nested" if tensor.is_nested else f"shape {tuple(tensor.shape)}"
