"""`Observer`, which turns what a program does with PyTorch into events for the checks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data.distributed import DistributedSampler
from torch.utils.hooks import RemovableHandle

from .check import Check
from .lines import place_here
from .replacements import Replacements

# PyTorch's own function: a pipeline replaces `torch.is_grad_enabled` while it traces a module.
is_grad_enabled = torch.is_grad_enabled

# An attribute of the function that replaces `torch.autograd.backward`.
_MARK = "watched_for_hazards"


class Observer:
    """Replaces a few functions of PyTorch by versions that also call the checks.

    What torch.compile traces is not observed: the checks would become a part of the program.
    """

    def __init__(self, checks: Sequence[Check]) -> None:
        self._checks = checks
        self._handles: list[RemovableHandle] = []

    @staticmethod
    def is_running() -> bool:
        """Return whether an observer of this process has started and not stopped."""
        return hasattr(torch.autograd.backward, _MARK)

    def start(self, replacements: Replacements) -> None:
        """Call the checks from now on, until the replacements are undone."""
        replacements.replace(torch.autograd, "backward", self._watched_backward)
        replacements.replace(nn.Parameter, "__new__", self._watched_parameter)
        self._watch_optimizers(replacements)
        self._watch_scalers(replacements)
        self._watch_cuts(replacements)
        self._watch_layers(replacements)
        replacements.replace(DistributedSampler, "__iter__", self._watched_sampler)

    def stop(self) -> None:
        """Stop what `Replacements.restore` does not undo."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for check in self._checks:
            check.unwatched()

    def end(self) -> None:
        """Tell the checks that the program has ended."""
        for check in self._checks:
            check.end()

    def _watched_backward(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def backward(tensors: Any, *arguments: Any, **options: Any) -> None:
            if is_compiling():
                return original(tensors, *arguments, **options)
            roots = [tensors] if isinstance(tensors, Tensor) else tensors
            roots = [root for root in roots if isinstance(root, Tensor)]
            place = place_here("backward")
            for check in self._checks:
                check.before_backward(roots, place)
            try:
                original(tensors, *arguments, **options)
            except BaseException:
                for check in self._checks:
                    check.backward_failed()
                raise
            for check in self._checks:
                check.after_backward()
            return None

        setattr(backward, _MARK, True)
        return backward

    def _watched_parameter(self, original: Callable[..., Tensor]) -> Any:
        @functools.wraps(original)
        def make(*arguments: Any, **options: Any) -> Tensor:
            parameter = original(*arguments, **options)
            if not is_compiling():
                for check in self._checks:
                    check.parameter_made(parameter)
            return parameter

        return staticmethod(make)

    def _watch_optimizers(self, replacements: Replacements) -> None:
        def before_step(optimizer: Optimizer, *_: Any) -> None:
            if not is_compiling():
                place = place_here("step")
                for check in self._checks:
                    check.before_step(optimizer, place)

        def after_step(optimizer: Optimizer, *_: Any) -> None:
            if not is_compiling():
                for check in self._checks:
                    check.after_step(optimizer)

        def watched_init(original: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(original)
            def init(optimizer: Optimizer, *arguments: Any, **options: Any) -> None:
                original(optimizer, *arguments, **options)
                for check in self._checks:
                    check.optimizer_made(optimizer, place_here("made"))

            return init

        def watched_zero_grad(original: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(original)
            def zero_grad(owner: Optimizer | nn.Module, *arguments: Any, **options: Any) -> None:
                if not is_compiling():
                    place = place_here("cleared")
                    for check in self._checks:
                        check.zeroed(owner, place)
                return original(owner, *arguments, **options)

            return zero_grad

        self._handles += [
            register_optimizer_step_pre_hook(before_step),
            register_optimizer_step_post_hook(after_step),
        ]
        replacements.replace(Optimizer, "__init__", watched_init)
        replacements.replace(Optimizer, "zero_grad", watched_zero_grad)
        replacements.replace(nn.Module, "zero_grad", watched_zero_grad)

    def _watch_scalers(self, replacements: Replacements) -> None:
        def watched_step(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def step(scaler: Any, optimizer: Optimizer, *arguments: Any, **options: Any) -> Any:
                if not scaler.is_enabled():
                    return original(scaler, optimizer, *arguments, **options)
                place = place_here("step")
                for check in self._checks:
                    check.before_scaler_step(scaler, optimizer, place)
                result = original(scaler, optimizer, *arguments, **options)
                for check in self._checks:
                    check.after_scaler_step(scaler, optimizer)
                return result

            return step

        def watched_scale(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def scale(scaler: Any, outputs: Any) -> Any:
                if scaler.is_enabled():
                    for check in self._checks:
                        check.scaled(scaler, place_here("scaled"))
                return original(scaler, outputs)

            return scale

        def watched_reading(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def read(scaler: Any, *arguments: Any) -> Any:
                for check in self._checks:
                    check.unscaled_by_hand(scaler)
                return original(scaler, *arguments)

            return read

        replacements.replace(torch.amp.GradScaler, "step", watched_step)
        replacements.replace(torch.amp.GradScaler, "scale", watched_scale)
        replacements.replace(torch.amp.GradScaler, "unscale_", watched_reading)
        replacements.replace(torch.amp.GradScaler, "get_scale", watched_reading)

    def _watch_cuts(self, replacements: Replacements) -> None:
        def cut(tensor: Tensor, how: str) -> None:
            if not is_compiling() and tensor.grad_fn is not None:
                place = place_here("cut")
                for check in self._checks:
                    check.cut(tensor, how, place)

        def watched_detach(original: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
            @functools.wraps(original)
            def detach(tensor: Tensor) -> Tensor:
                cut(tensor, ".detach()")
                return original(tensor)

            return detach

        def watched_data(original: Any) -> property:
            def get(tensor: Tensor) -> Tensor:
                cut(tensor, ".data")
                if not is_compiling():
                    for check in self._checks:
                        check.data_read(tensor)
                data: Tensor = original.__get__(tensor)
                return data

            def assign(tensor: Tensor, value: Tensor) -> None:
                original.__set__(tensor, value)
                if not is_compiling():
                    place = place_here("written")
                    for check in self._checks:
                        check.data_assigned(tensor, place)

            return property(get, assign)

        replacements.replace(Tensor, "detach", watched_detach)
        replacements.replace(Tensor, "data", watched_data)

    def _watch_layers(self, replacements: Replacements) -> None:
        def watched(original: Callable[..., Tensor], training_at: int) -> Callable[..., Tensor]:
            @functools.wraps(original)
            def layer(*arguments: Any, **options: Any) -> Tensor:
                if not is_compiling() and not is_grad_enabled():
                    is_training = options.get("training")
                    if is_training is None and len(arguments) > training_at:
                        is_training = arguments[training_at]
                    if is_training is True or (is_training is None and training_at == 2):
                        for check in self._checks:
                            check.layer_of_training(options)
                return original(*arguments, **options)

            return layer

        # The position of the argument `training`, whose default is True for dropout only.
        replacements.replace(nn.functional, "dropout", lambda original: watched(original, 2))
        replacements.replace(nn.functional, "batch_norm", lambda original: watched(original, 5))

    def _watched_sampler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def iterate(sampler: Any) -> Any:
            for check in self._checks:
                check.sampled(sampler, place_here("loaded"))
            return original(sampler)

        return iterate
