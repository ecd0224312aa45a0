"""Parameters of a model that get gradients, and that no optimizer has."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from ...observe.census import parameters_of
from ..check import Check, Report
from ..hazard import Hazard, HazardKind, Place
from ..models_alive import find_models, find_optimizers, list_names
from ..tensor_numbers import TensorNumbers
from .replaced import ReplacedCheck


@dataclass(frozen=True)
class _Suspect:
    """A parameter with a gradient and without an optimizer, at the first step of an optimizer."""

    name: str
    model: str
    made: Place | None
    step: Place


class UnownedCheck(Check):
    """Looks at all models at the first step of each optimizer."""

    def __init__(self, report: Report, numbers: TensorNumbers, replaced: ReplacedCheck) -> None:
        self._report = report
        self._numbers = numbers
        self._replaced = replaced
        self._sizes: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._made: weakref.WeakKeyDictionary[Optimizer, Place] = weakref.WeakKeyDictionary()
        self._suspects: dict[int, _Suspect] = {}  # by the number of the parameter
        self._has_backward = False
        self._step = Place("step", None)

    def optimizer_made(self, optimizer: Optimizer, place: Place) -> None:
        """Remember where the optimizer was made, and clear its parameters of suspicion."""
        self._made[optimizer] = place
        self._clear(optimizer)

    def before_backward(self, roots: Sequence[Tensor], place: Place) -> None:
        """Remember that the program trains."""
        self._has_backward = True

    def before_step(self, optimizer: Optimizer, place: Place) -> None:
        """Remember the line of the step."""
        self._step = place

    def after_step(self, optimizer: Optimizer) -> None:
        """Find the parameters that have a gradient and no optimizer, at the first step."""
        size = len(parameters_of(optimizer))
        if not self._has_backward or self._sizes.get(optimizer) == size:
            return
        is_first = optimizer not in self._sizes
        self._sizes[optimizer] = size
        self._clear(optimizer)
        if not is_first:
            return
        owned = {id(each) for other in find_optimizers() for each in parameters_of(other)}
        own = {id(parameter) for parameter in parameters_of(optimizer)}
        made = self._made.get(optimizer)
        for model in find_models():
            for name, parameter in unowned_parameters(model, own, owned):
                suspect = _Suspect(name, type(model).__name__, made, self._step)
                self._suspects.setdefault(self._numbers.number(parameter), suspect)

    def end(self) -> None:
        """Report the parameters that no optimizer has had until now."""
        for optimizer in find_optimizers():
            self._clear(optimizer)
        names = defaultdict(list)
        for number, suspect in self._suspects.items():
            if self._replaced.explains(number):
                continue
            names[suspect.model, suspect.made, suspect.step].append(suspect.name)
        for (model, made, step), which in names.items():
            self._report(_describe(model, sorted(which), made, step))

    def _clear(self, optimizer: Optimizer) -> None:
        for parameter in parameters_of(optimizer):
            self._suspects.pop(self._numbers.number(parameter), None)


def unowned_parameters(
    model: nn.Module, own: set[int], owned: set[int]
) -> list[tuple[str, Tensor]]:
    """Return the parameters of a model that have a gradient and no optimizer, with their names.

    Returns none if the optimizer that steps has no parameter of the model.

    Args:
        model: the model.
        own: the ids of the parameters of the optimizer that steps.
        owned: the ids of the parameters of all optimizers.
    """
    named = list(model.named_parameters())
    if not any(id(parameter) in own for _, parameter in named):
        return []
    return [
        (name, parameter)
        for name, parameter in named
        if parameter.requires_grad and parameter.grad is not None and id(parameter) not in owned
    ]


def _describe(model: str, names: list[str], made: Place | None, step: Place) -> Hazard:
    what = (
        f"{len(names)} parameters of {model} get gradients, but no optimizer has them, so they "
        f"never change: {list_names(names)}"
    )
    remedy = (
        "give the optimizer model.parameters() after the model is complete, or call "
        "requires_grad_(False) on what is to stay as it is"
    )
    places = (step,) if made is None else (made, step)
    return Hazard(HazardKind.UNOWNED, what, places, remedy)
