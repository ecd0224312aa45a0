"""Gradients that are never cleared, so that each step adds to those of all previous steps.

Gradients are accumulated on purpose, too: over several backward passes before one step. So what
counts is the first backward pass after a step that changes the gradient: it must not find the
gradient with which the optimizer has stepped. Passes that change nothing, such as those of another
model, do not count. One parameter stands for all parameters of its optimizer.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ...observe.census import parameters_of
from ...observe.storages import local_part
from ..check import Check, Report
from ..hazard import Hazard, HazardKind, Place
from ..tensor_numbers import TensorNumbers

# Gradients may be added over two steps on purpose, but hardly over this many.
_INTERVALS_BEFORE_REPORT = 2


@dataclass
class _Gradient:
    """The gradient of one parameter after a step of its optimizer.

    Attributes:
        parameter: its number, from `TensorNumbers`.
        gradient: the number of the tensor that owns the gradient's memory; see `_owner_of`.
        version: its version at the end of the step.
        is_cleared: whether the program has changed, replaced or removed it since.
        backward: the backward pass that has added to it; None before that.
        intervals: how many intervals in a row it was not cleared.
    """

    parameter: int
    gradient: int
    version: tuple[int, int]
    is_cleared: bool = False
    backward: Place | None = None
    intervals: int = 0
    is_reported: bool = False


class AccumulatedCheck(Check):
    """Follows one gradient of each optimizer from step to step."""

    def __init__(self, report: Report, numbers: TensorNumbers) -> None:
        self._report = report
        self._numbers = numbers
        self._kept: weakref.WeakKeyDictionary[Optimizer, _Gradient] = weakref.WeakKeyDictionary()
        self._place = Place("backward", None)
        # A backward pass may run others, as reentrant checkpoints do.
        self._running_passes = 0

    def before_backward(self, roots: Sequence[Tensor], place: Place) -> None:
        """Compare each gradient with what it was when its optimizer stepped."""
        self._running_passes += 1
        if self._running_passes == 1:
            self._place = place
        for kept in list(self._kept.values()):
            if kept.backward is None and not self._is_unchanged(kept):
                kept.is_cleared = True

    def after_backward(self) -> None:
        """Find the gradients to which the pass has added."""
        self._running_passes -= 1
        for kept in list(self._kept.values()):
            is_waiting = kept.backward is None and not kept.is_cleared
            if is_waiting and not self._is_unchanged(kept):
                kept.backward = self._place

    def backward_failed(self) -> None:
        """End the pass: what the program does from here on is its own."""
        self._running_passes -= 1

    def zeroed(self, owner: Optimizer | nn.Module, place: Place) -> None:
        """Count the gradients of an optimizer, or of all if a module clears its own, as cleared."""
        if isinstance(owner, Optimizer):
            cleared = [self._kept[owner]] if owner in self._kept else []
        else:
            own = {id(parameter) for parameter in owner.parameters()}
            cleared = [
                kept
                for kept in self._kept.values()
                if id(self._numbers.tensor(kept.parameter)) in own
            ]
        for kept in cleared:
            kept.is_cleared = True

    def data_read(self, tensor: Tensor) -> None:
        """Count a gradient whose `data` is read as cleared: `grad.data.zero_()` has no version.

        Reading it during a backward pass does not count: FSDP1 does so to add to it.
        """
        if self._running_passes > 0:
            return
        for kept in self._kept.values():
            if self._numbers.tensor(kept.gradient) is _owner_of(tensor):
                kept.is_cleared = True

    def before_step(self, optimizer: Optimizer, place: Place) -> None:
        """Count the intervals without clearing."""
        kept = self._kept.get(optimizer)
        if kept is None:
            return
        if kept.is_cleared:
            kept.intervals = 0
        elif kept.backward is not None:
            kept.intervals += 1
            if kept.intervals >= _INTERVALS_BEFORE_REPORT and not kept.is_reported:
                kept.is_reported = True
                places = (kept.backward, place)
                self._report(_describe(type(optimizer).__name__, kept.intervals, places))

    def after_step(self, optimizer: Optimizer) -> None:
        """Remember the gradient as the optimizer leaves it."""
        kept = self._kept.get(optimizer)
        parameter = None if kept is None else self._numbers.tensor(kept.parameter)
        if parameter is None or parameter.grad is None:
            having = (each for each in parameters_of(optimizer) if each.grad is not None)
            parameter = next(having, None)
        if parameter is None or parameter.grad is None:
            self._kept.pop(optimizer, None)
            return
        gradient = parameter.grad
        if gradient.is_inference():
            return
        number = self._numbers.number
        now = _Gradient(number(parameter), number(_owner_of(gradient)), _version_of(gradient))
        if kept is not None:
            now.intervals, now.is_reported = kept.intervals, kept.is_reported
        self._kept[optimizer] = now

    def _is_unchanged(self, kept: _Gradient) -> bool:
        parameter = self._numbers.tensor(kept.parameter)
        gradient = self._numbers.tensor(kept.gradient)
        return (
            parameter is not None
            and gradient is not None
            and parameter.grad is not None
            and _owner_of(parameter.grad) is gradient
            and _version_of(gradient) == kept.version
        )


def _owner_of(gradient: Tensor) -> Tensor:
    """Return the tensor that a gradient is a view of; the gradient itself if it is not a view.

    FSDP1 gives parameters new views of the same gradient in each forward pass. `_base` is private:
    no public name finds this tensor. test_hazards_over_ranks.py would notice a change.
    """
    base = gradient._base
    return gradient if base is None or isinstance(gradient, DTensor) else base


def _version_of(gradient: Tensor) -> tuple[int, int]:
    """Return the number of writes to a gradient, and to the local part of a distributed one.

    FSDP2 adds to the local part, and autograd to the whole.
    """
    return gradient._version, local_part(gradient)._version


def _describe(name: str, intervals: int, places: tuple[Place, ...]) -> Hazard:
    what = (
        f"the gradients of {name} are never cleared: for {intervals + 1} steps in a row, the "
        "backward pass added to gradients with which the optimizer had stepped already"
    )
    return Hazard(
        HazardKind.ACCUMULATED, what, places, "call optimizer.zero_grad() after each step()"
    )
