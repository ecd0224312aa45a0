"""What a step changes before the optimizer's step, and how to undo it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from ..errors import ValueNeededError
from ..observe.census import find_instances, is_replica
from ..observe.storages import local_part
from .program_state import keep_random_numbers


class StepState:
    """The gradients and buffers of some modules, and the random numbers of the process.

    Values are copied to the host, without waiting for the devices. Gradients that are None need no
    copy, so a step that begins after ``zero_grad()`` copies only buffers.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._gradients: dict[nn.Parameter, Tensor] = {}
        self._put_back: list[Callable[[], None]] = []
        for module in modules:
            for parameter in module._parameters.values():
                if parameter is not None and parameter.is_leaf and parameter.grad is not None:
                    self._gradients[parameter] = parameter.grad
            buffers = module._buffers.copy()
            if buffers:
                self._put_back.append(lambda held=module._buffers, was=buffers: held.update(was))  # type: ignore[misc]
            self._put_back += [_keep(each) for each in buffers.values() if each is not None]
        self._put_back += map(_keep, self._gradients.values())
        self._put_back.append(keep_random_numbers())

    def restore(self) -> None:
        """Restore all values. Gradients that were None are None again."""
        for parameter in _all_parameters():
            gradient = self._gradients.get(parameter)
            if parameter.grad is not gradient:
                parameter.grad = gradient
        with torch.no_grad():
            for put_back in self._put_back:
                put_back()


def find_modules() -> list[nn.Module]:
    """Return the modules of this process except replicas, whose parameters are copies."""
    return [module for module in find_instances(nn.Module)[nn.Module] if not is_replica(module)]


def _all_parameters() -> set[nn.Parameter]:
    """Return the parameters of this process, whether modules hold them at present or not."""
    # `find_instances(nn.Parameter)` does not find parameters that are DTensors.
    of_modules = (each for module in find_modules() for each in module._parameters.values())
    found = {*find_instances(nn.Parameter)[nn.Parameter], *of_modules}
    return {each for each in found if each is not None and each.is_leaf}


def _keep(tensor: Tensor) -> Callable[[], None]:
    own = local_part(tensor.detach())
    try:
        if own.is_cuda and own.layout is torch.strided:
            copy = torch.empty_like(own, device="cpu", pin_memory=True)
            copy.copy_(own, non_blocking=True)
        else:
            copy = own.to("cpu", copy=True)
    except (NotImplementedError, ValueNeededError):  # it has no values: meta, or shape-only
        return lambda: None

    def put_back() -> None:
        own.copy_(copy, non_blocking=True)

    return put_back
