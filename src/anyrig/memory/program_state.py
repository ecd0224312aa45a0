"""Save the state of a program that training steps change, and restore it."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler

from ..errors import ValueNeededError
from ..observe.census import find_instances
from ..observe.storages import local_part

_KINDS = (nn.Module, Optimizer, LRScheduler, GradScaler, DataLoader, Sampler)


class ProgramState:
    """The state of all modules, optimizers, schedulers and random numbers of this process.

    ::

        modules        parameters, buffers, gradients, training mode
        optimizers     state, and the options of their parameter groups
        schedulers     and `GradScaler`s: their attributes
        generators     PyTorch's of all devices, Python's, NumPy's, those of loaders and samplers

    The values are kept on the CPU, so that the steps have as much device memory as before.
    """

    def __init__(self) -> None:
        found = find_instances(*_KINDS)
        self._modules = [each for each in found[nn.Module] if "_modules" in vars(each)]
        self._put_back: list[Callable[[], None]] = [
            *map(_keep_module, self._modules),
            *map(_keep_optimizer, found[Optimizer]),
            *map(_keep_attributes, (*found[LRScheduler], *found[GradScaler])),
        ]
        for owner in (*found[DataLoader], *found[Sampler]):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator):
                self._put_back.append(_keep_generator(generator))
        self._put_back.append(keep_random_numbers())

    def restore(self) -> None:
        """Restore the state. What optimizers have stored since then is dropped."""
        with torch.no_grad():
            for put_back in self._put_back:
                put_back()

    def with_gradients(self) -> set[nn.Parameter]:
        """Return the parameters that have a gradient now."""
        return {each for each in self._parameters() if each.grad is not None}

    def drop_gradients(self, but: set[nn.Parameter]) -> None:
        """Drop the gradients of all parameters except those in `but`."""
        for parameter in self._parameters():
            if parameter not in but:
                parameter.grad = None

    def _parameters(self) -> Iterable[nn.Parameter]:
        for module in self._modules:
            yield from module.parameters(recurse=False)


def _keep(tensor: Tensor) -> Callable[[], None]:
    """Return a function that puts a tensor's values back."""
    inner = local_part(tensor.detach())
    try:
        values = inner.to("cpu", copy=True)
    except (NotImplementedError, ValueNeededError):  # it has no values: meta, or shape-only
        return lambda: None

    def put_back() -> None:
        inner.copy_(values)

    return put_back


def _keep_all(tensors: Iterable[Tensor | None]) -> Callable[[], None]:
    kept = [_keep(tensor) for tensor in tensors if tensor is not None]

    def put_back() -> None:
        for each in kept:
            each()

    return put_back


def _keep_module(module: nn.Module) -> Callable[[], None]:
    parameters, buffers = module._parameters.copy(), module._buffers.copy()
    gradients = {each: each.grad for each in parameters.values() if each is not None}
    training = module.training
    values = _keep_all((*parameters.values(), *buffers.values(), *gradients.values()))

    def put_back() -> None:
        module._parameters.update(parameters)
        module._buffers.update(buffers)
        module.training = training
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        values()

    return put_back


def _keep_optimizer(optimizer: Optimizer) -> Callable[[], None]:
    groups = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    state = {
        parameter: dict(values) if isinstance(values, dict) else values
        for parameter, values in optimizer.state.items()
    }
    tensors = [
        value
        for values in (*groups, *state.values())
        if isinstance(values, dict)
        for value in values.values()
        if isinstance(value, Tensor)
    ]
    values = _keep_all(tensors)

    def put_back() -> None:
        for group, options in zip(optimizer.param_groups, groups, strict=False):
            group.update(options)
        optimizer.state.clear()
        optimizer.state.update(copy.copy(state))
        values()

    return put_back


def _keep_attributes(owner: object) -> Callable[[], None]:
    attributes = vars(owner).copy()
    containers = {
        name: copy.copy(value)
        for name, value in attributes.items()
        if isinstance(value, (dict, list, set))
    }
    values = _keep_all(value for value in attributes.values() if isinstance(value, Tensor))

    def put_back() -> None:
        vars(owner).update(attributes | containers)
        values()

    return put_back


def _keep_generator(generator: torch.Generator) -> Callable[[], None]:
    state = generator.get_state()

    def put_back() -> None:
        generator.set_state(state)

    return put_back


def keep_random_numbers() -> Callable[[], None]:
    """Return a function that restores the generators of PyTorch, Python and NumPy."""
    of_python, of_host = random.getstate(), torch.get_rng_state()
    has_devices = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    of_devices = torch.cuda.get_rng_state_all() if has_devices else []
    numpy = sys.modules.get("numpy")  # anyrig does not need it
    of_numpy = numpy and numpy.random.get_state()

    def put_back() -> None:
        random.setstate(of_python)
        torch.set_rng_state(of_host)
        torch.cuda.set_rng_state_all(of_devices)
        if numpy is not None:
            numpy.random.set_state(of_numpy)

    return put_back
