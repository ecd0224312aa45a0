"""Gradients that are never cleared, so that each step adds to those of all previous steps.

Gradients are accumulated on purpose, too: over several backward passes before one step. So what
counts is the first backward pass after a step: it must not find the gradients with which the
optimizer has stepped. One parameter stands for all parameters of its optimizer.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from ..check import Check, Report
from ..hazard import Hazard, HazardKind, Place
from ..models_alive import find_homes, parameters_of
from ..tensor_numbers import TensorNumbers
from .cuts import leaves_of

# Gradients may be added over two steps on purpose, but hardly over this many.
_INTERVALS_BEFORE_REPORT = 2


@dataclass
class _Gradient:
    """The gradient of one parameter after a step of its optimizer.

    Attributes:
        parameter, gradient: the numbers of both, from `TensorNumbers`.
        version: its version at the end of the step.
        is_used: whether a backward pass has begun since then.
        is_cleared: whether it was changed, replaced or removed before that pass.
        intervals: how many intervals in a row it was not cleared.
    """

    parameter: int
    gradient: int
    version: int
    is_used: bool = False
    is_cleared: bool = False
    intervals: int = 0
    backward: Place | None = None
    is_reported: bool = False


class AccumulatedCheck(Check):
    """Follows one gradient of each optimizer from step to step."""

    def __init__(self, report: Report, numbers: TensorNumbers) -> None:
        self._report = report
        self._numbers = numbers
        self._kept: weakref.WeakKeyDictionary[Optimizer, _Gradient] = weakref.WeakKeyDictionary()

    def before_backward(self, roots: Sequence[Tensor], place: Place) -> None:
        """Compare each gradient with what it was when its optimizer stepped."""
        for kept in list(self._kept.values()):
            if not kept.is_used:
                kept.is_used, kept.backward = True, place
                kept.is_cleared = kept.is_cleared or not self._is_unchanged(kept)
                is_last = kept.intervals == _INTERVALS_BEFORE_REPORT - 1
                if is_last and not (kept.is_cleared or kept.is_reported):
                    kept.is_cleared = not self._may_be_added_to(kept, roots)

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
        """Count a gradient whose `data` is read as cleared: `grad.data.zero_()` has no version."""
        for kept in self._kept.values():
            if self._numbers.tensor(kept.gradient) is tensor:
                kept.is_cleared = True

    def before_step(self, optimizer: Optimizer, place: Place) -> None:
        """Count the intervals without clearing."""
        kept = self._kept.get(optimizer)
        if kept is None or not kept.is_used:
            return
        kept.intervals = 0 if kept.is_cleared else kept.intervals + 1
        if kept.intervals >= _INTERVALS_BEFORE_REPORT and not kept.is_reported:
            kept.is_reported = True
            self._report(_describe(type(optimizer).__name__, kept, place))

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
        now = _Gradient(number(parameter), number(gradient), gradient._version)
        if kept is not None:
            now.intervals, now.is_reported = kept.intervals, kept.is_reported
        self._kept[optimizer] = now

    def _may_be_added_to(self, kept: _Gradient, roots: Sequence[Tensor]) -> bool:
        """Return whether a backward pass may add to a gradient.

        It does not add to the gradients of copies in another precision, for example: the program
        itself writes these.
        """
        parameter = self._numbers.tensor(kept.parameter)
        return id(parameter) in find_homes() or any(
            leaf is parameter for root in roots for leaf in leaves_of(root.grad_fn)
        )

    def _is_unchanged(self, kept: _Gradient) -> bool:
        parameter = self._numbers.tensor(kept.parameter)
        gradient = self._numbers.tensor(kept.gradient)
        return (
            parameter is not None
            and gradient is not None
            and parameter.grad is gradient
            and gradient._version == kept.version
        )


def _describe(name: str, kept: _Gradient, step: Place) -> Hazard:
    what = (
        f"the gradients of {name} are never cleared: for {kept.intervals + 1} steps in a row, the "
        "backward pass added to gradients with which the optimizer had stepped already"
    )
    places = (step,) if kept.backward is None else (kept.backward, step)
    return Hazard(
        HazardKind.ACCUMULATED, what, places, "call optimizer.zero_grad() after each step()"
    )
