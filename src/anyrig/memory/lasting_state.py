"""The memory that training holds from the end of its first step on, however small the batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..observe.storages import local_part
from ..units import format_bytes

# How many tensors of a parameter's size these keep in `state`; torch/optim of PyTorch 2.13.
_MOMENTS = {"Adam": 2, "AdamW": 2, "Adamax": 2, "NAdam": 2, "RAdam": 2, "Adadelta": 2, "RMSprop": 1}
# These options of a group add one tensor each.
_OPTIONS = ("amsgrad", "momentum", "centered")


@dataclass(frozen=True)
class LastingState:
    """What training holds on one device between its steps.

    Attributes:
        parameter_bytes: the parameters, trained or not.
        gradient_bytes: the gradients of those that are trained.
        optimizer_bytes: the optimizers' state. For a class that is not in `torch.optim`, only what
            it holds now counts.
        optimizers: the names of the optimizers' classes.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    optimizers: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    def describe_excess(self, total_bytes: int) -> str | None:
        """Return why no batch size fits a device with `total_bytes`; None if one may."""
        if self.bytes <= total_bytes:
            return None
        what = "Parameters"
        if self.optimizers:
            what += f", gradients and the state of {' and '.join(self.optimizers)}"
        return (
            f"{what} need {format_bytes(self.bytes)}, without activations. The GPU has less, so no "
            "batch size fits"
        )


def lasting_state(
    device: torch.device, models: Iterable[nn.Module], optimizers: Iterable[Optimizer]
) -> LastingState:
    """Return what the parameters of models, and training them with optimizers, hold on a device.

    Of a parameter that is divided among ranks, the part of this rank counts.
    """
    parameters = {id(each): each for model in models for each in model.parameters()}
    trained: dict[int, Tensor] = {}
    optimizer_bytes = 0
    names: dict[str, None] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for each in group["params"]:
                if id(each) in trained or not _bytes_on(device, each):
                    continue
                parameters[id(each)] = trained[id(each)] = each
                names[type(optimizer).__name__] = None
                optimizer_bytes += _state_bytes(device, optimizer, group, each)
    return LastingState(
        sum(_bytes_on(device, each) for each in parameters.values()),
        sum(_bytes_on(device, each) for each in trained.values() if each.requires_grad),
        optimizer_bytes,
        tuple(names),
    )


def _bytes_on(device: torch.device, tensor: Tensor) -> int:
    part = local_part(tensor)
    return part.nbytes if part.device == device else 0


def _state_bytes(
    device: torch.device, optimizer: Optimizer, group: dict[str, Any], parameter: Tensor
) -> int:
    """Return the bytes of a parameter's state, as it is or as the first step will make it."""
    state = optimizer.state.get(parameter)
    if state:
        tensors = (each for each in state.values() if isinstance(each, Tensor))
        return sum(_bytes_on(device, each) for each in tensors)
    kind = next(
        (cls for cls in type(optimizer).__mro__ if cls.__module__.startswith("torch.")), None
    )
    if kind in (None, Optimizer) or not parameter.requires_grad:
        return 0
    count = _MOMENTS.get(kind.__name__, 0) + sum(bool(group.get(option)) for option in _OPTIONS)
    return count * _bytes_on(device, parameter)
