"""An optimizer that is made again for each step, so that its momentum never has an effect.

An optimizer is made again on purpose, too: for a new model, with other settings, for the next task.
What counts is a line that makes optimizers of the same parameters for one step each, several times
in a row, while nothing but these steps changes the parameters. One parameter stands for all
parameters of its optimizer.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from ...observe.census import parameters_of
from ..check import Check, Report
from ..hazard import Hazard, HazardKind, Place
from ..tensor_numbers import TensorNumbers

# This number of optimizers in a row is no coincidence.
_OPTIMIZERS_BEFORE_REPORT = 4
_RATES = ("params", "lr", "initial_lr")


@dataclass
class _Made:
    """An optimizer, and those that its line has made before it.

    Attributes:
        made: the line that made it.
        kind: its class, the numbers of its parameters, and its settings except the learning rate.
        before: the last optimizer of the line, if it was like this one and made one step.
        steps: its steps.
        in_a_row: how many optimizers in a row, this one included, have started without the state of
            the one before.
        followed: the number of the parameter that stands for all; None if it has no momentum.
        version: the version of this parameter after the first step; -1 if it was changed since by
            an assignment or through `data`.
    """

    made: Place
    kind: tuple[object, ...]
    before: _Made | None
    steps: int = 0
    in_a_row: int = 1
    followed: int | None = None
    version: int = 0


class RebuiltCheck(Check):
    """Compares each optimizer with the last one that the same line has made."""

    def __init__(self, report: Report, numbers: TensorNumbers) -> None:
        self._report = report
        self._numbers = numbers
        self._last: dict[Place, _Made] = {}
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, _Made] = weakref.WeakKeyDictionary()
        self._stepping: _Made | None = None

    def optimizer_made(self, optimizer: Optimizer, place: Place) -> None:
        """Find the last optimizer of this line."""
        if place.file is None:
            return
        settings = (
            (key, repr(value))
            for group in optimizer.param_groups
            for key, value in group.items()
            if key not in _RATES
        )
        parameters = map(self._numbers.number, parameters_of(optimizer))
        kind = (type(optimizer), *parameters, *settings)
        before = self._last.get(place)
        if before is not None:
            before.before = None  # else the first one would be kept
            if before.kind != kind or before.steps != 1 or before.followed is None:
                before = None
        self._last[place] = self._optimizers[optimizer] = _Made(place, kind, before)

    def before_step(self, optimizer: Optimizer, place: Place) -> None:
        """Count the optimizer, unless it continues from another state or other values."""
        made = self._stepping = self._optimizers.get(optimizer)
        if made is None or made.before is None or made.before.followed is None:
            return
        followed = self._numbers.tensor(made.before.followed)
        is_unchanged = followed is not None and followed._version == made.before.version
        if made.steps == 0 and is_unchanged and not optimizer.state:
            made.in_a_row = made.before.in_a_row + 1
        made.before = None
        if made.in_a_row == _OPTIMIZERS_BEFORE_REPORT:
            self._report(_describe(optimizer, made, place))

    def before_backward(self, roots: Sequence[Tensor], place: Place) -> None:
        """Leave out an optimizer whose step computes gradients: it may make many steps in one."""
        if self._stepping is not None:
            self._stepping.steps += 1

    def after_step(self, optimizer: Optimizer) -> None:
        """Choose the parameter that stands for all: the first one that has momentum."""
        made = self._stepping
        self._stepping = None
        if made is None:
            return
        made.steps += 1
        if made.steps > 1:
            return  # the state had an effect
        for parameter in parameters_of(optimizer):
            values = optimizer.state.get(parameter, {}).values()
            if any(isinstance(each, Tensor) and each.shape == parameter.shape for each in values):
                made.followed = self._numbers.number(parameter)
                made.version = parameter._version
                return

    def data_read(self, tensor: Tensor) -> None:
        """Count a parameter whose `data` is read as changed: `p.data.copy_()` has no version."""
        for last in self._last.values():
            for made in (last, last.before):  # the next optimizer may have been made already
                if made is None or made.followed is None:
                    continue
                if self._numbers.tensor(made.followed) is tensor:
                    made.version = -1

    def data_assigned(self, tensor: Tensor, place: Place) -> None:
        """Count a parameter that gets other memory as changed."""
        self.data_read(tensor)


def _describe(optimizer: Optimizer, made: _Made, step: Place) -> Hazard:
    what = (
        f"{type(optimizer).__name__} was made {made.in_a_row} times in a row for the same "
        "parameters and one step each: its state, such as momentum, is lost after each step and "
        "has no effect"
    )
    remedy = "make the optimizer once, before the loop"
    return Hazard(HazardKind.REBUILT, what, (made.made, step), remedy)
