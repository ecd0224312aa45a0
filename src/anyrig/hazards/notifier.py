"""`Notifier`, which turns what a program does with PyTorch into events for the checks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.optim import Optimizer
from torch.utils.data.distributed import DistributedSampler

from ..observe.events import Events
from ..observe.hooks import Observer, is_replaced
from .check import Check
from .lines import place_here

# PyTorch's own function: a pipeline replaces `torch.is_grad_enabled` while it traces a module.
is_grad_enabled = torch.is_grad_enabled

Function = Callable[..., Any]


class Notifier(Observer):
    """Calls the checks.

    What torch.compile traces is not observed: the checks would become a part of the program.
    """

    def __init__(self, checks: Sequence[Check]) -> None:
        # For each event, named by the method of `Check`, the checks' methods that override it.
        self._handlers = {
            event: [getattr(one, name) for one in checks if getattr(type(one), name) is not event]
            for name, event in vars(Check).items()
            if callable(event)
        }
        super().__init__(
            Events(
                backward_begun=self._before_backward,
                backward_ended=functools.partial(self._notify, Check.after_backward),
                backward_failed=functools.partial(self._notify, Check.backward_failed),
                step_begun=functools.partial(self._notify, Check.before_step, role="step"),
                step_ended=functools.partial(self._notify, Check.after_step),
                zeroed=functools.partial(self._notify, Check.zeroed, role="cleared"),
            )
        )

    @staticmethod
    def is_running() -> bool:
        """Return whether a notifier of this process has started and not stopped."""
        return is_replaced(nn.Parameter, "__new__")  # which nothing else in anyrig replaces

    def start(self) -> None:
        """Call the checks from now on."""
        super().start()
        replacements = self.replacements
        replacements.around(nn.Parameter, "__new__", self._make_parameter)
        replacements.around(Optimizer, "__init__", self._make_optimizer)
        scaler = torch.amp.GradScaler
        replacements.around(scaler, "step", self._step_scaler)
        replacements.around(scaler, "scale", self._scale)
        replacements.around(scaler, "unscale_", self._read_scaler)
        replacements.around(scaler, "get_scale", self._read_scaler)
        replacements.around(Tensor, "detach", self._detach)
        replacements.around_property(Tensor, "data", self._read_data, self._assign_data)
        # The position of the argument `training`, whose default is True for dropout only.
        dropout, batch_norm = (functools.partial(self._run_layer, place) for place in (2, 5))
        replacements.around(nn.functional, "dropout", dropout)
        replacements.around(nn.functional, "batch_norm", batch_norm)
        replacements.around(DistributedSampler, "__iter__", self._sample)

    def _notify(self, event: Function, *facts: Any, role: str | None = None) -> None:
        """Call what the checks have for a method of `Check`; with this line if it has a role."""
        if is_compiling():
            return
        if role is not None:
            facts = *facts, place_here(role)
        for handle in self._handlers[event]:
            handle(*facts)

    def _before_backward(self, tensors: Any, gradients: Any) -> None:
        roots = [tensors] if isinstance(tensors, Tensor) else tensors
        roots = [root for root in roots if isinstance(root, Tensor)]
        self._notify(Check.before_backward, roots, role="backward")

    def _make_parameter(self, make: Function, *arguments: Any, **options: Any) -> Any:
        parameter = make(*arguments, **options)
        self._notify(Check.parameter_made, parameter)
        return parameter

    def _make_optimizer(
        self, make: Function, optimizer: Optimizer, *arguments: Any, **options: Any
    ) -> None:
        make(optimizer, *arguments, **options)
        self._notify(Check.optimizer_made, optimizer, role="made")

    def _step_scaler(
        self, step: Function, scaler: Any, optimizer: Optimizer, *arguments: Any, **options: Any
    ) -> Any:
        if not scaler.is_enabled():
            return step(scaler, optimizer, *arguments, **options)
        self._notify(Check.before_scaler_step, scaler, optimizer, role="step")
        result = step(scaler, optimizer, *arguments, **options)
        self._notify(Check.after_scaler_step, scaler, optimizer)
        return result

    def _scale(self, scale: Function, scaler: Any, outputs: Any) -> Any:
        if scaler.is_enabled():
            self._notify(Check.scaled, scaler, role="scaled")
        return scale(scaler, outputs)

    def _read_scaler(self, read: Function, scaler: Any, *arguments: Any) -> Any:
        self._notify(Check.unscaled_by_hand, scaler)
        return read(scaler, *arguments)

    def _detach(self, detach: Function, tensor: Tensor) -> Any:
        self._cut(tensor, ".detach()")
        return detach(tensor)

    def _read_data(self, read: Function, tensor: Tensor) -> Any:
        self._cut(tensor, ".data")
        self._notify(Check.data_read, tensor)
        return read(tensor)

    def _assign_data(self, assign: Function, tensor: Tensor, value: Tensor) -> None:
        assign(tensor, value)
        self._notify(Check.data_assigned, tensor, role="written")

    def _cut(self, tensor: Tensor, how: str) -> None:
        if not is_compiling() and tensor.grad_fn is not None:
            self._notify(Check.cut, tensor, how, role="cut")

    def _run_layer(self, training_at: int, layer: Function, *arguments: Any, **options: Any) -> Any:
        if not is_compiling() and not is_grad_enabled():
            is_training = options.get("training")
            if is_training is None and len(arguments) > training_at:
                is_training = arguments[training_at]
            if is_training is True or (is_training is None and training_at == 2):
                self._notify(Check.layer_of_training, options)
        return layer(*arguments, **options)

    def _sample(self, iterate: Function, sampler: Any) -> Any:
        self._notify(Check.sampled, sampler, role="loaded")
        return iterate(sampler)
