"""Objects with tensors that cannot be replaced from outside, and the remedies."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import torch

from ..errors import MoveError
from .containers import Part, attributes_of
from .tree import ATOM_TYPES, Path, format_path

# An object may refer to half of the program (a logger, a configuration). If the nearest objects, up
# to this many, contain no tensor, assume that there is none.
_OBJECTS_SEARCHED = 1000
_NEVER_SEARCHED = (type, ModuleType, FunctionType)
_ITEMS = (list, tuple, set, frozenset, deque)


def refuse_unreachable(leaf: object, path: Path) -> None:
    """Raise an error for a leaf that contains tensors which cannot be replaced.

    A leaf without tensors, such as a string, a date or a NumPy array, passes.

    Raises:
        MoveError: `leaf` contains tensors, or yields them when it is iterated; the message names
            its type, its place and the remedy.
    """
    reason = _reason(leaf)
    if reason is not None:
        raise MoveError(f"cannot move {type(leaf).__name__} at {format_path(path)}: {reason}")


def _reason(leaf: object) -> str | None:
    if isinstance(leaf, torch.optim.Optimizer):
        return (
            "an optimizer keeps its state on the device of the parameters it was given. Move the "
            "model first and build the optimizer from its parameters; load_state_dict() puts a "
            "saved state on the device of the parameters"
        )
    if isinstance(leaf, torch.utils.data.DataLoader):
        return (
            "a loader has no device; only its batches do. "
            "Use anyrig.prefetch(loader, rig), or move each batch"
        )
    if isinstance(leaf, Iterator) and not isinstance(leaf, io.IOBase):
        return (
            "its values do not exist yet, and reading them would consume them. "
            "Move each value when it is yielded, or make a list of them first"
        )
    found = next(tensors_within(leaf), None)
    if found is not None:
        return (
            f"it holds a {type(found[1]).__name__} in {format_path(found[0])} and has no method "
            "`to`. Give its class a method `to(device)` that returns the moved object, make it a "
            "dataclass, or pass its contents"
        )
    return None


def tensors_within(leaf: object) -> Iterator[tuple[Path, Any]]:
    """Yield the tensors, modules and optimizers within `leaf`, the nearest first, with their paths.

    A function has none, nor has a method: what it refers to is not part of a value.
    """
    if isinstance(leaf, (*_NEVER_SEARCHED, MethodType)):
        return
    met = {id(leaf): leaf}
    waiting: deque[tuple[object, Path]] = deque([(leaf, ())])
    while waiting:
        value, path = waiting.popleft()
        for part, child in _inside(value):
            if type(child) in ATOM_TYPES or isinstance(child, _NEVER_SEARCHED) or id(child) in met:
                continue
            if len(met) >= _OBJECTS_SEARCHED:
                return
            met[id(child)] = child
            if isinstance(child, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)):
                yield (*path, part), child
            else:
                waiting.append((child, (*path, part)))


def _inside(value: Any) -> Iterable[tuple[Part, Any]]:
    yield from (((".{}", name), child) for name, child in attributes_of(value).items())
    # Look only into built-in containers, and into subclasses as into these: other code that
    # iterates may compute or consume values.
    base = next((kind for kind in _ITEMS if isinstance(value, kind)), None)
    if base is not None:
        yield from ((("[{}]", index), child) for index, child in enumerate(base.__iter__(value)))
    elif isinstance(value, (dict, MappingProxyType)):
        yield from ((("[{!r}]", key), child) for key, child in Mapping.items(value))
