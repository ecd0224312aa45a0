"""Values that carry tensors which cannot be moved from outside, and what to do about them."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import torch

from ..errors import MoveError
from .containers import Part, attributes_of
from .tree import ATOM_TYPES, Path, format_path

# An object may hang on half the program (a logger, a configuration). What has not shown a tensor
# among this many objects, the nearest first, is taken to have none.
_OBJECTS_SEARCHED = 1000
_NEVER_SEARCHED = (type, ModuleType, FunctionType)


def refuse_unreachable(leaf: object, path: Path) -> None:
    """Do nothing for a leaf without tensors, such as a text, a date or a NumPy array.

    Raises:
        MoveError: `leaf` carries tensors, or hands them out when it is iterated over; the message
            names its type, its place and what to do.
    """
    reason = _reason(leaf)
    if reason is not None:
        raise MoveError(f"cannot move {type(leaf).__name__} at {format_path(path)}: {reason}")


def _reason(leaf: object) -> str | None:
    if isinstance(leaf, torch.optim.Optimizer):
        return (
            "an optimizer keeps its state beside the parameters it was given. Move the model "
            "first and build the optimizer from its parameters; for a saved state, "
            "load_state_dict() puts it where the parameters are"
        )
    if isinstance(leaf, torch.utils.data.DataLoader):
        return (
            "a loader has no device, its batches have. "
            "Use anyrig.prefetch(loader, rig), or move each batch"
        )
    if isinstance(leaf, Iterator) and not isinstance(leaf, io.IOBase):
        return (
            "its values do not exist yet, and looking at them would use them up. "
            "Move each value as it comes, or make a list of them first"
        )
    found = _find_tensor(leaf)
    if found is not None:
        return (
            f"it holds a {found[1]} in {format_path(found[0])} and has no method `to`. "
            "Give its class a method `to(device)` that returns the moved object, make it a "
            "dataclass, or pass what it holds"
        )
    return None


def _find_tensor(leaf: object) -> tuple[Path, str] | None:
    """Return the path to the nearest tensor, module or optimizer within `leaf`, and its type."""
    met = {id(leaf): leaf}
    waiting: deque[tuple[object, Path]] = deque([(leaf, ())])
    while waiting:
        value, path = waiting.popleft()
        for part, child in _inside(value):
            if isinstance(child, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)):
                return (*path, part), type(child).__name__
            if type(child) in ATOM_TYPES or isinstance(child, _NEVER_SEARCHED) or id(child) in met:
                continue
            if len(met) >= _OBJECTS_SEARCHED:
                return None
            met[id(child)] = child
            waiting.append((child, (*path, part)))
    return None


def _inside(value: Any) -> Iterable[tuple[Part, Any]]:
    yield from (((".{}", name), child) for name, child in attributes_of(value).items())
    # Only built-in containers are looked into: to iterate over others may compute, or consume.
    if type(value) in (list, tuple, set, frozenset, deque):
        yield from ((("[{}]", index), child) for index, child in enumerate(value))
    elif isinstance(value, dict):
        yield from ((("[{!r}]", key), child) for key, child in Mapping.items(value))
