"""Moves the arguments of a call to one device."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from ..transfer.beside import copy_in_order
from ..transfer.tree import ATOM_TYPES, map_leaves

T = TypeVar("T")


def move_arguments(
    inputs: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's arguments with their tensors on `device`.

    `DataParallel` on one device adds little else to a call, so this function is written for speed:
    walking the tree takes 35 µs.
    """
    elsewhere = {}
    for value in (*inputs, *kwargs.values()) if kwargs else inputs:
        kind = type(value)
        if kind is torch.Tensor:
            if value.device != device:
                elsewhere[id(value)] = value
        elif kind not in ATOM_TYPES:
            return move_tensors((inputs, kwargs), device)
    if not elsewhere:
        return inputs, kwargs
    here = {key: _move_leaf(value, device) for key, value in elsewhere.items()}
    return (
        tuple([here.get(id(value), value) for value in inputs]),
        {name: here.get(id(value), value) for name, value in kwargs.items()},
    )


def move_tensors(tree: T, device: torch.device) -> T:
    """Return arguments or outputs with their tensors on `device`."""
    moved: T = map_leaves(tree, lambda leaf, path: _move_leaf(leaf, device))
    return moved


def _move_leaf(leaf: Any, device: torch.device) -> Any:
    return copy_in_order(leaf, device) if isinstance(leaf, torch.Tensor) else leaf
