"""What workers must know of a module and its loss, and whether it has changed since a call.

::

    in each call   ids of attributes, layers and hooks;    one differs    the whole is pickled
                   what by-value functions refer to;     ─────────────▶  without its tensors,
                   the contents of containers                             and workers unpickle it

Comparing costs about what the replicas of threads pay to notice changes (`replicas/mirror.py`).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from ....errors import MoveError, SpreadError
from ....transfer.tree import ATOM_TYPES, list_leaves
from ...own_class import require_frozen
from ...spread_module import SpreadModule
from ..replicas.mirror import HOOKS_OF_CALLS, OF_EVERY_MODULE, names_and_ids
from ..replicas.replicas import check_place
from .link import dump, lies_in_memory
from .shared_tensors import SharedTensors, require_apart
from .watched_code import classes_of, constants_of, facts_of, functions_of, names_in_code

_REMEDY = "use the threads of plan=Replicas()"
# Values whose identity says all.
_FIXED = (
    *(Tensor, nn.Module, type, FunctionType, BuiltinFunctionType, MethodType, ModuleType),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
)


class ModuleState:
    """The module and the loss as workers have them, and the memory of their tensors."""

    def __init__(self, module: nn.Module, loss: Any) -> None:
        self._root = (module, loss)
        self._facts: Any = None
        self.version = 0  # of `text`
        self.text = b""  # the module and the loss, pickled without their tensors
        self.facts: dict[str, Any] = {}  # of imported code
        self.tensors: SharedTensors
        self._modules: list[nn.Module] = []
        self._classes: list[type] = []
        self._changing: list[Any] = []
        self._watched: list[tuple[Any, str]] = []
        # Compared by identity, so they must stay alive.
        self._kept: list[Any] = []

    def follow(self) -> None:
        """Notice what has changed since the last call.

        Raise SpreadError if other processes cannot have the module as it is.
        """
        known = self._facts
        if known is None or self._read_facts() != known or not self.tensors.are_in_place():
            self._pack()

    def _read_facts(self) -> Any:
        facts: list[Any] = []
        for module in self._modules:
            facts += names_and_ids(module)
        for cls in self._classes:
            facts += map(id, vars(cls).values())
        facts += [id(_value_of(holder, name)) for holder, name in self._watched]
        facts += [each.tensor.requires_grad for each in self.tensors.parameters]
        if self._changing:
            known = {id(slot.tensor): i for i, slot in enumerate(self.tensors.slots)}
            pickler = _Pickler(io.BytesIO(), known)
            _dump(self._changing, pickler, self._root[0])
            facts.append(pickler.stream.getvalue())
        return facts

    def _pack(self) -> None:
        module, loss = self._root
        pickler = _packed(module, loss)
        self.text, tensors = pickler.stream.getvalue(), pickler.tensors
        self.version += 1
        known = getattr(self, "tensors", None)
        same = known is not None and [id(slot.tensor) for slot in known.slots] == [
            *map(id, tensors)
        ]
        if not same or not self.tensors.are_in_place():
            with torch.inference_mode(False), torch.no_grad():
                self.tensors = SharedTensors(tensors)
        self._modules = pickler.modules
        self._classes = classes_of(self._modules, loss)
        by_value = set(map(id, pickler.functions))
        known_by_name = functions_of(self._modules, loss).items()
        functions = {name: each for name, each in known_by_name if id(each) not in by_value}
        self.facts = facts_of(functions)
        self._watched = [*_names_of(pickler.functions)]
        self._watched += [
            (each.__globals__, name) for each in functions.values() for name in constants_of(each)
        ]
        values = [
            value
            for each in self._modules
            for name, value in each.__dict__.items()
            if name not in OF_EVERY_MODULE and not isinstance(each, nn.RNNBase)
        ]
        values += [_value_of(holder, name) for holder, name in self._watched]
        values += [] if isinstance(loss, (FunctionType, nn.Module)) else [loss]
        self._kept = [*values, *(value for cls in self._classes for value in vars(cls).values())]
        self._changing = [value for value in values if _may_change(value)]
        self._facts = self._read_facts()

    def tensors_in_attributes(self) -> dict[int, tuple[str, Tensor]]:
        """Return the tensors that modules hold in attributes, by ids, with their names."""
        found: dict[int, tuple[str, Tensor]] = {}
        for module in self._modules:
            for name, value in module.__dict__.items():
                if name in OF_EVERY_MODULE:
                    continue
                try:
                    leaves = list_leaves(value)
                except MoveError:
                    continue
                for leaf, _ in leaves:
                    if isinstance(leaf, Tensor):
                        found[id(leaf)] = f"{type(module).__name__}.{name}", leaf
        return found

    def refuse_kept(self, before: dict[int, tuple[str, Tensor]]) -> None:
        """Raise SpreadError if a forward has left a tensor in an attribute of a module."""
        for key, (name, _) in self.tensors_in_attributes().items():
            if key not in before:
                raise SpreadError(
                    f"the forward keeps a tensor in {name}, where this process would have that of "
                    f"its part of the batch alone. Return it from the forward, or {_REMEDY}"
                )


def require_sendable(module: nn.Module, loss: Any) -> None:
    """Raise SpreadError if other processes cannot have a module and a loss; change neither."""
    require_apart(_packed(module, loss).tensors)


def _packed(module: nn.Module, loss: Any) -> _Pickler:
    check_place(module, torch.device("cpu"))
    require_frozen(module)
    pickler = _Pickler(io.BytesIO(), {})
    _dump((module, loss), pickler, module)
    for each in pickler.modules:
        _refuse_hooks(each)
    _require_leaves(module, pickler.tensors)
    return pickler


def _dump(value: Any, pickler: _Pickler, module: nn.Module) -> None:
    problem = (
        f"{type(module).__name__} or its loss has an object that cannot be sent to other processes"
    )
    dump(value, pickler, problem, f"Create it inside of the forward, or {_REMEDY}")


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a module without its tensors, and notes what may change."""

    def __init__(self, stream: io.BytesIO, known: dict[int, int]) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self.stream = stream
        self._known = known  # the numbers of tensors, by ids
        self.tensors: list[Tensor] = []
        self.modules: list[nn.Module] = []
        self.functions: list[FunctionType] = []

    def persistent_id(self, value: Any) -> int | None:
        if isinstance(value, Tensor):
            if id(value) not in self._known:
                self._known[id(value)] = len(self._known)
                self.tensors.append(value)
            return self._known[id(value)]
        if isinstance(value, nn.Module) and not isinstance(value, SpreadModule):
            self.modules.append(value)
        return None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, SpreadModule):  # within a part, it is called as the module inside
            return _itself, (value.module,)
        reduced = super().reducer_override(value)
        if isinstance(value, FunctionType) and reduced is not NotImplemented:
            self.functions.append(value)
        return reduced


def _names_of(functions: list[FunctionType]) -> Iterator[tuple[Any, str]]:
    """Yield (holder, name) of all that functions which are sent by value refer to."""
    for function in functions:
        for name in names_in_code(function.__code__):
            if name in function.__globals__:
                yield function.__globals__, name
        for cell in function.__closure__ or ():
            yield cell, "cell_contents"


def _value_of(holder: Any, name: str) -> Any:
    if isinstance(holder, dict):
        return holder.get(name)
    return getattr(holder, name, None)  # an empty cell has no contents


def _may_change(value: Any) -> bool:
    """Return whether a value may change and remain the same object."""
    if type(value) in ATOM_TYPES or isinstance(value, _FIXED):
        return False
    if type(value) is tuple:
        return any(map(_may_change, value))
    return True


def _require_leaves(module: nn.Module, tensors: list[Tensor]) -> None:
    for tensor in tensors:
        if tensor.requires_grad and not tensor.is_leaf:
            raise SpreadError(
                f"{type(module).__name__} or its loss holds a tensor of shape "
                f"{tuple(tensor.shape)} with a graph, which only this process has; {_REMEDY}"
            )
        if not lies_in_memory(tensor):
            raise SpreadError(
                f"{type(module).__name__} or its loss holds a {type(tensor).__name__} of shape "
                f"{tuple(tensor.shape)} on {tensor.device}, which processes cannot share; {_REMEDY}"
            )


def _refuse_hooks(module: nn.Module) -> None:
    for kind in HOOKS_OF_CALLS:
        if module.__dict__.get(kind):
            raise SpreadError(
                f"a {type(module).__name__} has a hook ({kind.strip('_').replace('_', ' ')}), "
                "which would see the part of each process apart, and what it keeps in other "
                f"processes is lost; remove the hook, or {_REMEDY}"
            )


def _itself(module: nn.Module) -> nn.Module:
    return module
