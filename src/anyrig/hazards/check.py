"""`Check`, the events of a program that a check can handle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..observe.hooks import Replacements
from .hazard import Hazard, Place

Report = Callable[[Hazard], None]


class Check:
    """Handles the events of a program; each check overrides the methods that it needs.

    Each method is called in the thread that causes the event.
    """

    def start(self, replacements: Replacements) -> None:
        """Called when the program is watched from now on.

        Args:
            replacements: functions that the check replaces; they are restored after `stop`.
        """

    def stop(self) -> None:
        """Called when the program is no longer watched, with or without an error."""

    def before_backward(self, roots: Sequence[Tensor], place: Place) -> None:
        """Called when a backward pass begins at `roots`."""

    def after_backward(self) -> None:
        """Called when a backward pass has ended without an error."""

    def backward_failed(self) -> None:
        """Called when a backward pass has raised an error."""

    def parameter_made(self, parameter: Tensor) -> None:
        """Called when a parameter was made."""

    def optimizer_made(self, optimizer: Optimizer, place: Place) -> None:
        """Called when an optimizer was made."""

    def before_step(self, optimizer: Optimizer, place: Place) -> None:
        """Called when an optimizer is about to step."""

    def after_step(self, optimizer: Optimizer) -> None:
        """Called when an optimizer has stepped."""

    def zeroed(self, owner: Optimizer | nn.Module, place: Place) -> None:
        """Called when the program calls `owner.zero_grad()`."""

    def scaled(self, scaler: Any, place: Place) -> None:
        """Called when a gradient scaler scales a loss."""

    def unscaled_by_hand(self, scaler: Any) -> None:
        """Called when the program, or the scaler's step, unscales gradients or reads the scale."""

    def before_scaler_step(self, scaler: Any, optimizer: Optimizer, place: Place) -> None:
        """Called before `scaler.step(optimizer)`."""

    def after_scaler_step(self, scaler: Any, optimizer: Optimizer) -> None:
        """Called after `scaler.step(optimizer)`, which may have skipped the step."""

    def cut(self, tensor: Tensor, how: str, place: Place) -> None:
        """Called when a tensor with a graph is detached, by ``.detach()`` or ``.data``."""

    def data_read(self, tensor: Tensor) -> None:
        """Called when `tensor.data` is read."""

    def data_assigned(self, tensor: Tensor, place: Place) -> None:
        """Called when `tensor.data` was assigned."""

    def layer_of_training(self, options: Mapping[str, Any]) -> None:
        """Called when dropout or batch norm runs in training mode without gradients."""

    def sampled(self, sampler: Any, place: Place) -> None:
        """Called when an iteration over a `DistributedSampler` begins."""

    def end(self) -> None:
        """Called when the program has ended without an error."""
