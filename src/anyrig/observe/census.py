"""The models, optimizers, tensors and variables that a program holds now."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .source_line import is_library_code
from .storages import storages_of

_LONGEST_CONTAINER = 10_000
_DEEPEST = 3


@dataclass(frozen=True)
class Census:
    """The models, optimizers and tensors that the garbage collector of this process tracks.

    Attributes:
        models: the modules that no other module contains.
        tensors: all tensors that have a Python object.
    """

    models: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...]
    tensors: tuple[Tensor, ...]

    @property
    def own_models(self) -> tuple[nn.Module, ...]:
        """The models without the replicas of `anyrig.spread`."""
        return tuple(model for model in self.models if not is_replica(model))

    @property
    def graph_memory(self) -> frozenset[tuple[torch.device, int]]:
        """The devices and addresses of tensors that keep a graph for a backward pass.

        A tensor that only a graph holds is among them if it ever had a Python object, because
        PyTorch keeps the object for as long as the tensor.
        """
        with_graphs = (tensor for tensor in self.tensors if tensor.grad_fn is not None)
        storages = (storage for tensor in with_graphs for storage in storages_of(tensor))
        return frozenset((storage.device, storage.data_ptr()) for storage in storages)


def take_census() -> Census:
    """Return the models, optimizers and tensors of this process."""
    found = find_instances(nn.Module, Optimizer, Tensor)
    # A module has no `_modules` until `nn.Module.__init__` has run.
    modules = [module for module in found[nn.Module] if "_modules" in vars(module)]
    inner = {id(child) for module in modules for child in module.children()}
    outermost = tuple(module for module in modules if id(module) not in inner)
    return Census(outermost, tuple(found[Optimizer]), tuple(found[Tensor]))


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of all groups of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def is_replica(module: nn.Module) -> bool:
    """Return whether a module is a replica, whose parameters are copies.

    Replicas keep their parameters in a special mapping, and reading it may raise an exception.
    """
    return type(vars(module).get("_parameters")) not in (dict, OrderedDict)


def find_instances(*kinds: type) -> dict[type, list[Any]]:
    """Return the objects of each class, and of its subclasses, that the garbage collector tracks.

    An object of several of the classes is listed under the first of them.
    """
    found: dict[type, list[Any]] = {kind: [] for kind in kinds}
    lists: dict[type, list[Any] | None] = {}
    for item in gc.get_objects():
        # `isinstance` would run the code of proxy objects with a `__class__` property.
        kind = type(item)
        if kind not in lists:
            lists[kind] = next((found[base] for base in found if issubclass(kind, base)), None)
        matching = lists[kind]
        if matching is not None:
            matching.append(item)
    return found


def variables_of(frame: FrameType | None) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of the local and global variables of running functions.

    Args:
        frame: the innermost function. Its callers are searched too, except those in PyTorch and
            anyrig.
    """
    seen: set[int] = set()
    while frame is not None:
        if not is_library_code(frame.f_code):
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
    """Yield the names and tensors of a variable, including tensors in lists, tuples and dicts."""
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
