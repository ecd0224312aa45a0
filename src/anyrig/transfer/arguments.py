"""Change or move the tensors among the arguments of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from .beside import copy_in_order
from .tree import ATOM_TYPES, map_leaves

T = TypeVar("T")


def change_tensors(
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_meant: Callable[[Tensor], bool],
    change: Callable[[Tensor], Tensor],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's arguments with ``change(tensor)`` in place of each tensor that `is_meant`.

    Each call of a model passes through here, so this function is written for speed: walking the
    tree takes 35 µs.
    """
    meant = {}
    for value in (*inputs, *kwargs.values()) if kwargs else inputs:
        kind = type(value)
        if kind is Tensor:
            if is_meant(value):
                meant[id(value)] = value
        elif kind not in ATOM_TYPES:
            changed: tuple[tuple[Any, ...], dict[str, Any]] = map_leaves(
                (inputs, kwargs),
                lambda leaf, _: (
                    change(leaf) if isinstance(leaf, Tensor) and is_meant(leaf) else leaf
                ),
            )
            return changed
    if not meant:
        return inputs, kwargs
    new = {key: change(value) for key, value in meant.items()}
    return (
        tuple([new.get(id(value), value) for value in inputs]),
        {name: new.get(id(value), value) for name, value in kwargs.items()},
    )


def move_arguments(
    inputs: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's arguments with their tensors on `device`.

    This is `change_tensors` written out: calling its two functions would take several microseconds.
    """
    elsewhere = {}
    for value in (*inputs, *kwargs.values()) if kwargs else inputs:
        kind = type(value)
        if kind is Tensor:
            if value.device != device:
                elsewhere[id(value)] = value
        elif kind not in ATOM_TYPES:
            return move_tensors((inputs, kwargs), device)
    if not elsewhere:
        return inputs, kwargs
    new = {}
    for key, value in elsewhere.items():
        new[key] = copy_in_order(value, device)
    moved = tuple([new.get(id(value), value) for value in inputs])
    if kwargs:
        kwargs = {name: new.get(id(value), value) for name, value in kwargs.items()}
    return moved, kwargs


def move_tensors(tree: T, device: torch.device) -> T:
    """Return arguments or outputs with their tensors on `device`."""
    moved: T = map_leaves(
        tree, lambda leaf, _: copy_in_order(leaf, device) if isinstance(leaf, Tensor) else leaf
    )
    return moved
