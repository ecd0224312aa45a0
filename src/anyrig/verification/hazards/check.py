"""`Check`, what a check hears about a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .hazard import Hazard, Place

Report = Callable[[Hazard], None]


class Check:
    """Hears the events of a program; each check overrides those that it needs.

    Events come in the thread that causes them.
    """

    def before_backward(self, roots: Sequence[Tensor], place: Place) -> None:
        """Hear that a backward pass begins at `roots`."""

    def after_backward(self) -> None:
        """Hear that a backward pass has ended without an error."""

    def parameter_made(self, parameter: Tensor) -> None:
        """Hear that a parameter was made."""

    def optimizer_made(self, optimizer: Optimizer, place: Place) -> None:
        """Hear that an optimizer was made."""

    def before_step(self, optimizer: Optimizer, place: Place) -> None:
        """Hear that an optimizer is about to step."""

    def after_step(self, optimizer: Optimizer) -> None:
        """Hear that an optimizer has stepped."""

    def zeroed(self, owner: Optimizer | nn.Module, place: Place) -> None:
        """Hear that `owner.zero_grad()` is called."""

    def scaled(self, scaler: Any, place: Place) -> None:
        """Hear that a gradient scaler scales a loss."""

    def unscaled_by_hand(self, scaler: Any) -> None:
        """Hear that the program, or the scaler's step, unscales gradients or reads the scale."""

    def before_scaler_step(self, scaler: Any, optimizer: Optimizer, place: Place) -> None:
        """Hear that a scaler is asked to let an optimizer step."""

    def after_scaler_step(self, scaler: Any, optimizer: Optimizer) -> None:
        """Hear that a scaler has let an optimizer step, or has skipped its step."""

    def cut(self, tensor: Tensor, how: str, place: Place) -> None:
        """Hear that a tensor with a graph is detached, by ``.detach()`` or ``.data``."""

    def data_read(self, tensor: Tensor) -> None:
        """Hear that `tensor.data` is read."""

    def data_assigned(self, tensor: Tensor, place: Place) -> None:
        """Hear that `tensor.data` was assigned."""

    def layer_of_training(self, options: Mapping[str, Any]) -> None:
        """Hear that dropout or batch norm runs in training mode without gradients."""

    def sampled(self, sampler: Any, place: Place) -> None:
        """Hear that an iteration over a `DistributedSampler` begins."""

    def unwatched(self) -> None:
        """Hear that the program is watched no longer, with or without an error."""

    def end(self) -> None:
        """Hear that the program has ended without an error."""
