"""What a program holds at this moment: its models, its optimizers and its tensors."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .source_line import is_of_a_library

_LONGEST_CONTAINER = 10_000
_DEEPEST = 3


@dataclass(frozen=True)
class Census:
    """What the garbage collector knows of this process.

    Attributes:
        models: modules that no other module contains.
        tensors: all tensors that have a Python object.
    """

    models: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...]
    tensors: tuple[Tensor, ...]

    @property
    def graph_devices(self) -> frozenset[torch.device]:
        """The devices of tensors that keep a graph for a backward pass."""
        return frozenset(each.device for each in self.tensors if each.grad_fn is not None)


def take_census() -> Census:
    """Return the models, optimizers and tensors of this process."""
    found: dict[type, list[Any]] = {nn.Module: [], Optimizer: [], Tensor: []}
    lists: dict[type, list[Any] | None] = {}
    for thing in gc.get_objects():
        # Not isinstance: it runs code of objects that pretend to be of another class.
        kind = type(thing)
        if kind not in lists:
            lists[kind] = next((found[base] for base in found if issubclass(kind, base)), None)
        same = lists[kind]
        if same is not None:
            same.append(thing)
    # A module whose constructor has not run yet has no children.
    modules = [module for module in found[nn.Module] if "_modules" in vars(module)]
    inner = {id(child) for module in modules for child in module.children()}
    outermost = tuple(module for module in modules if id(module) not in inner)
    return Census(outermost, tuple(found[Optimizer]), tuple(found[Tensor]))


def variables_of(frame: FrameType | None) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of variables that a program's functions and scripts have now.

    Args:
        frame: the innermost function. Its callers are looked through too, those in PyTorch and
            anyrig aside.
    """
    seen: set[int] = set()
    while frame is not None:
        if not is_of_a_library(frame.f_code):
            for variables in (frame.f_locals, frame.f_globals):
                if id(variables) not in seen:
                    seen.add(id(variables))
                    for name, value in list(variables.items()):
                        if not name.startswith("__"):
                            yield from tensors_of_variable(name, value)
        frame = frame.f_back


def tensors_of_variable(
    name: str, value: Any, depth: int = _DEEPEST
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a variable, in lists, tuples and dicts as well, with their names."""
    if isinstance(value, ModuleType):
        return
    if issubclass(type(value), Tensor):
        yield name, value
    elif depth and type(value) in (list, tuple) and len(value) <= _LONGEST_CONTAINER:
        for index, item in enumerate(value):
            yield from tensors_of_variable(f"{name}[{index}]", item, depth - 1)
    elif depth and type(value) is dict and len(value) <= _LONGEST_CONTAINER:
        for key, item in list(value.items()):
            yield from tensors_of_variable(f"{name}[{key!r}]", item, depth - 1)
