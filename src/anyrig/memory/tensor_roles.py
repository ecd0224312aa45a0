"""Determine the roles of tensors, and record them in the log."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, MutableMapping
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from ..observe.census import Census, parameters_of, take_census, variables_of
from ..observe.names import ModuleNames
from ..observe.storages import storages_of
from .host_history import HostHistory
from .kinds import Kind
from .operator_log import OperatorLog, Role


class TensorRoles:
    """Records which tensors are parameters, gradients, buffers, optimizer state or others."""

    def __init__(self, log: OperatorLog, modules: ModuleNames, host: HostHistory) -> None:
        self._log = log
        self._modules = modules
        self._host = host
        # parameter -> (its name, its module's name)
        self._names: MutableMapping[Tensor, tuple[str, str]] = WeakIdKeyDictionary()

    def note(
        self,
        value: Any,
        kind: Kind | None,
        name: str | None = None,
        module: str | None = None,
        operator: int | None = None,
    ) -> None:
        """Record the role of every tensor in a value.

        Args:
            value: a tensor, or nested lists, tuples and dicts. Other values are ignored.
            kind: the purpose of the tensors; None if unknown.
            name: the name of the tensors; None if unknown.
            module: the name of the module that owns the tensors; None if unknown.
            operator: the number of the operator after which the tensors have this role; by default
                the last operator.
        """
        operator = self._log.count if operator is None else operator
        for tensor in tensors_in(value):
            for storage in storages_of(tensor):
                if storage.device.type == "cpu":
                    self._host.note(storage, operator, time.time())
                address = storage.data_ptr()
                if address:
                    self._log.roles.append(
                        Role(operator, storage.device, address, kind, name, module)
                    )

    def note_model(self, model: nn.Module) -> None:
        """Record the parameters, gradients and buffers of an outermost module."""
        self._modules.add_outermost(model)
        for part in model.modules():
            if reads_lazily(part):
                continue
            module = self._modules.name_of(part)
            for own, parameter in part.named_parameters(recurse=False):
                self._names[parameter] = (_join(module, own), module)
                self._note_parameter(parameter)
            for own, buffer in part.named_buffers(recurse=False):
                self.note(buffer, Kind.BUFFERS, _join(module, own), module)

    def note_optimizer(self, optimizer: Optimizer) -> None:
        """Record an optimizer's parameters, gradients and state."""
        for parameter in parameters_of(optimizer):
            self._note_parameter(parameter)
        for parameter, state in optimizer.state.items():
            name, module = self._names.get(parameter, (None, None))
            for key, value in state.items() if isinstance(state, dict) else ():
                self.note(value, Kind.OPTIMIZER_STATE, f"{key} of {name}" if name else key, module)

    def note_program(self, frames: Iterable[FrameType | None]) -> Census:
        """Record the roles of all tensors, and return what the program holds.

        The names of variables come from `frames` and their callers, for tensors without a name from
        another role.
        """
        census = take_census()
        self.note(list(census.tensors), None)
        for frame in frames:
            for name, tensor in variables_of(frame):
                self.note(tensor, None, name)
        for model in census.models:
            self.note_model(model)
        for optimizer in census.optimizers:
            self.note_optimizer(optimizer)
        return census

    def _note_parameter(self, parameter: Tensor) -> None:
        self.note(parameter, Kind.PARAMETERS, *self._names.get(parameter, (None, None)))
        self._note_gradient(parameter)

    def _note_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            name, module = self._names.get(parameter, (None, None))
            self.note(parameter.grad, Kind.GRADIENTS, name and f"{name}.grad", module)


def reads_lazily(module: nn.Module) -> bool:
    """Return whether a module is a replica of `anyrig.spread`, whose parameters must not be read.

    Reading a parameter of a replica may wait for its copy, and raises after another replica failed.
    """
    parameters = module._parameters
    return isinstance(parameters, dict) and type(parameters) not in (dict, OrderedDict)


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def _join(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name
