"""Marks on a module's outputs: the first thing of a forward that its backward pass reaches.

A mark is a hook on a tensor, so the caller gets the very object that the module returned.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..transfer.tree import ATOM_TYPES, list_leaves
from .gradient_hooks import hook_first, weighted

# The most objects that are looked at in an output of an unknown class.
_MOST_OBJECTS = 100_000

# Objects that belong to the program, not to one output.
_NOT_ENTERED = (type, ModuleType, nn.Module, torch.device, torch.dtype, str, bytes)


def mark_outputs(tensors: list[Tensor], reached: Callable[[], float]) -> None:
    """Multiply the gradients of tensors by ``reached()``, called once in each backward pass."""
    factor_in: dict[int, float] = {}  # by the number of the last backward pass

    def scale(gradient: Tensor) -> Tensor | None:
        this = torch._C._current_graph_task_id()
        if this not in factor_in:
            factor_in.clear()
            factor_in[this] = reached()
        factor = factor_in[this]
        return None if factor == 1.0 else weighted(gradient, factor)

    for tensor in tensors:
        hook_first(tensor, scale)


def tensors_with_gradients(tree: Any) -> list[Tensor]:
    """Return the tensors in a module's output that have a graph, each once.

    Objects of unknown classes, such as a TensorDict or a closure, are searched as well.
    """
    if type(tree) is Tensor:  # the usual case
        return [tree] if tree.requires_grad and not tree.is_leaf else []
    found: dict[int, Tensor] = {}
    for leaf, _ in list_leaves(tree):
        if isinstance(leaf, Tensor):
            found[id(leaf)] = leaf
        elif type(leaf) not in ATOM_TYPES:
            found.update((id(tensor), tensor) for tensor in _tensors_within(leaf))
    return [each for each in found.values() if each.requires_grad and not each.is_leaf]


def _tensors_within(root: Any) -> Iterator[Tensor]:
    """Yield the tensors that an object refers to, as the garbage collector finds them."""
    pending, seen = [root], {id(root)}
    while pending and len(seen) < _MOST_OBJECTS:
        held = pending.pop()
        if isinstance(held, Tensor):
            yield held
            continue
        if isinstance(held, FunctionType):  # not its globals, which are the program's
            parts: list[Any] = [held.__closure__, held.__defaults__, held.__kwdefaults__]
        else:
            parts = gc.get_referents(held)
        for part in parts:
            if id(part) not in seen and _may_hold_tensors(part):
                seen.add(id(part))
                pending.append(part)


def _may_hold_tensors(part: Any) -> bool:
    if isinstance(part, (Tensor, CellType, FunctionType)):
        return True
    return gc.is_tracked(part) and not isinstance(part, _NOT_ENTERED)
