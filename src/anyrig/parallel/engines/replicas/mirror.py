"""One module of the caller, and its copies on the other devices."""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ....errors import MoveError
from ....transfer.tree import ATOM_TYPES, map_leaves
from ...own_class import WholeCopies, carried_objects, has_own_class
from .buckets import Slot
from .replica_tensors import Reader, ReplicaTensors

_TENSORS_AND_CHILDREN = ("_parameters", "_buffers", "_modules")
_CONTAINERS = (tuple, list, dict, set, deque)
Slots = Mapping[int, Slot]  # by the ids of tensors
Mirrors = Mapping[int, "Mirror"]  # by the ids of modules
# For an attribute that is a plain tensor: the tensor, its version, and its copies.
_Seen = tuple["weakref.ref[torch.Tensor]", int | None, list[torch.Tensor]]


class Mirror:
    """A module, and a copy of it for each of `readers`.

    A copy has the module's class and attributes, the copies of its children, and parameters and
    buffers that it reads through its `Reader`. It has the module's hooks, also those registered
    between two steps, in dicts of its own: a forward that registers hooks registers them once for
    the module and once for each copy.
    """

    def __init__(self, module: torch.nn.Module, readers: Sequence[Reader]) -> None:
        self.module = module
        self.copies = [type(module).__new__(type(module)) for _ in readers]
        self._readers = readers
        self._names_and_ids: list[str | int] = []
        # Kept alive, since ids identify them. Tensors, which may be large, are only watched.
        self._kept: list[Any] = []
        self._tensors_seen: list[weakref.ref[torch.Tensor]] = []
        self.varying: list[str] = []  # the attributes for `vary`
        self._copied: dict[str, _Seen] = {}
        self._whole: list[tuple[str, str]] = []  # (table, name) of tensors of their own class
        self._whole_copies = WholeCopies()

    @property
    def varies(self) -> bool:
        """Whether the copies need `vary`."""
        return bool(self.varying or self._whole)

    def forget(self) -> None:
        """Copy tensors of a custom class again, whatever their versions."""
        self._whole_copies.forget()

    def has_changed(self) -> bool:
        """Return whether attributes, children, hooks or tensors were replaced since `build`."""
        return self._names_and_ids != names_and_ids(self.module) or any(
            seen() is None for seen in self._tensors_seen
        )

    def assigned(self) -> list[tuple[str, torch.Tensor]]:
        """Return the tensors with a graph that were assigned to attributes since `build`."""
        return [
            (name, value)
            for name, value in self.module.__dict__.items()
            if isinstance(value, torch.Tensor)
            and value.requires_grad
            and not value.is_leaf
            and all(seen() is not value for seen in self._tensors_seen)
        ]

    def build(self, slots: Slots, mirrors: Mirrors) -> None:
        """Give the copies the module's present attributes, except for `varying`."""
        state = self.module.__dict__
        self._names_and_ids = names_and_ids(self.module)
        own = [name for name in state if name not in _TENSORS_AND_CHILDREN]
        self.varying = [name for name in own if _may_vary(self.module, name, state[name])]
        self._kept = [state[name] for name in own if name not in self.varying]
        self._kept += state["_modules"].values()
        values = state.values()
        self._tensors_seen = [weakref.ref(v) for v in values if isinstance(v, torch.Tensor)]
        self._whole = [
            (table, name)
            for table in ("_parameters", "_buffers")
            for name, tensor in state[table].items()
            if tensor is not None and has_own_class(tensor)
        ]
        for device, (copy, reader) in enumerate(zip(self.copies, self._readers, strict=True)):
            new = {name: state[name] for name in own}
            new.update({name: state[name].copy() for name in _HOOKS if name in state})
            for name in ("_parameters", "_buffers"):
                tensors = state[name].items()
                new[name] = ReplicaTensors(
                    reader, {key: None if t is None else slots.get(id(t)) for key, t in tensors}
                )
            new["_modules"] = {
                key: None if child is None else mirrors[id(inner_module(child))].copies[device]
                for key, child in state["_modules"].items()
            }
            # Only the module has gradients to clear.
            new["zero_grad"] = _do_nothing
            # torch.compile's version of the module calls the module, not the copy.
            new["_compiled_call_impl"] = None
            if isinstance(self.module, torch.nn.RNNBase):
                # An RNN's forward collects new weights by name and flattens them; buckets keep them
                # flat.
                new["_flat_weights"] = list(new["_flat_weights"])
                new["flatten_parameters"] = _do_nothing
            copy.__dict__ = new

    def vary(self, device: int, place: torch.device, slots: Slots, mirrors: Mirrors) -> None:
        """Update what may change in a copy in each step: containers, methods, plain tensors."""
        translation = _Translation(device, place, self._readers[device], slots, mirrors)
        translate, state = translation.translate, self.copies[device].__dict__
        for name in self.varying:
            value = self.module.__dict__.get(name)
            if isinstance(value, torch.Tensor) and not value.requires_grad:
                state[name] = self._copy_once(name, value, device, translate)
                continue
            try:
                state[name] = map_leaves(value, translate)
            except MoveError:  # it contains itself, or cannot be rebuilt: share it
                state[name] = value
        for table, name in self._whole:
            tensor = self.module.__dict__[table][name]
            state[table][name] = self._whole_copies.of_tensor(device, name, tensor, place)
        for name, value in carried_objects(self.module).items() if self._whole else ():
            state[name] = self._whole_copies.of_object(device, name, value, place)

    def _copy_once(
        self, name: str, tensor: torch.Tensor, device: int, copy: Callable[[Any], Any]
    ) -> Any:
        version = None if tensor.is_inference() else tensor._version
        seen = self._copied.get(name)
        if seen is None or seen[0]() is not tensor or seen[1] != version or version is None:
            seen = (weakref.ref(tensor), version, [tensor] * len(self.copies))
            self._copied[name] = seen
        if seen[2][device] is tensor:
            seen[2][device] = copy(tensor)
        return seen[2][device]


@dataclass(frozen=True)
class _Translation:
    """Replaces the module's values by those of its copy on one device."""

    device: int
    place: torch.device
    reader: Reader
    slots: Slots
    mirrors: Mirrors

    def translate(self, value: Any, path: object = None) -> Any:
        if isinstance(value, torch.Tensor):
            slot = self.slots.get(id(value))
            if slot is not None:
                return self.reader.read(slot)
            # A tensor on the CPU stays there.
            return value.to(self.place, non_blocking=True) if value.device.type != "cpu" else value
        if isinstance(value, torch.nn.Module):
            mirror = self.mirrors.get(id(inner_module(value)))
            return value if mirror is None else mirror.copies[self.device]
        if isinstance(value, types.MethodType) and isinstance(value.__self__, torch.nn.Module):
            return types.MethodType(value.__func__, self.translate(value.__self__))
        if isinstance(value, functools.partial):
            arguments = map_leaves((value.args, value.keywords), self.translate)
            return functools.partial(self.translate(value.func), *arguments[0], **arguments[1])
        return value


def names_and_ids(module: torch.nn.Module) -> list[str | int]:
    """Return names and ids of a module's attributes, tensors and children, and ids of its hooks."""
    state = module.__dict__
    found: list[str | int] = [*state, *map(id, state.values())]
    for kind in _TENSORS_AND_CHILDREN:
        found += state[kind]
        found += map(id, state[kind].values())
    for kind in HOOKS_OF_CALLS:
        found += state.get(kind, ())
    return found


def _may_vary(module: torch.nn.Module, name: str, value: Any) -> bool:
    """Return whether copies need a value of their own."""
    if type(value) in ATOM_TYPES or name in OF_EVERY_MODULE:
        return False
    if isinstance(module, torch.nn.RNNBase) and name == "_flat_weights":
        return False
    if isinstance(value, (torch.Tensor, torch.nn.Module, types.MethodType, functools.partial)):
        return True
    if not isinstance(value, _CONTAINERS):
        return False
    items = value.values() if isinstance(value, dict) else value
    if not value:  # a forward may fill it
        return not isinstance(value, tuple)
    return any(type(item) not in ATOM_TYPES for item in items)


# The containers of torch.nn.Module itself: hooks, and names of buffers.
OF_EVERY_MODULE = frozenset(
    name for name, value in torch.nn.Module().__dict__.items() if isinstance(value, (dict, set))
)
_HOOKS = tuple(name for name in OF_EVERY_MODULE if "hooks" in name)
HOOKS_OF_CALLS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def inner_module(module: Any) -> Any:
    """Return the inner module of a spread module, or the module itself."""
    return module.__dict__.get("_anyrig_module", module)


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    pass
