"""Optimizers whose parameters never get a gradient.

Three mistakes look alike: the loss does not depend on the parameters, a line of the program cuts
them off, or the optimizer has tensors that are not the model's.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor
from torch.optim import Optimizer

from ...observe.census import parameters_of
from ..check import Check, Report
from ..hazard import Hazard, HazardKind, Place
from ..models_alive import find_models, find_optimizers, list_names, names_of
from ..tensor_numbers import TensorNumbers
from .cuts import Cuts
from .new_parameters import NewParameters
from .replaced import ReplacedCheck

# An optimizer without a single gradient is reported after this many steps, or at the end.
_STEPS_BEFORE_REPORT = 3


@dataclass
class _Steps:
    """What is known of an optimizer.

    Attributes:
        name: its class.
        made: where it was made.
        made_after: the number of parameters that were made before it; None if it was made before
            the watch began.
        waiting: the numbers of its parameters that have had no gradient at any of its steps.
        size: the number of its parameters when `waiting` was made.
        count: its steps that followed a backward pass.
        blame: why parameters are waiting, as far as is known.
        blamed: the number of waiting parameters when `blame` was found.
    """

    optimizer: weakref.ref[Optimizer]
    name: str
    made: Place | None
    made_after: int | None
    waiting: set[int] = field(default_factory=set)
    size: int = 0
    count: int = 0
    backward: Place | None = None
    step: Place | None = None
    blame: _Blame | None = None
    blamed: int = 0
    is_reported: bool = False


@dataclass(frozen=True)
class _Blame:
    """Why parameters get no gradient: a line that cuts them off, or new tensors, or the loss."""

    cut: Place | None = None
    how: str = ""
    names: tuple[str, ...] = ()
    is_replaced: bool = False
    replaced: Place | None = None


class MissingGradientsCheck(Check):
    """Follows which parameters of each optimizer get gradients."""

    def __init__(
        self,
        report: Report,
        numbers: TensorNumbers,
        cuts: Cuts,
        new: NewParameters,
        replaced: ReplacedCheck,
    ) -> None:
        self._report = report
        self._numbers = numbers
        self._cuts = cuts
        self._new = new
        self._replaced = replaced
        self._steps: dict[int, _Steps] = {}
        self._made: weakref.WeakKeyDictionary[Optimizer, tuple[Place, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._backward: Place | None = None
        self._has_new_leaf = False

    def optimizer_made(self, optimizer: Optimizer, place: Place) -> None:
        """Remember where the optimizer was made, and which parameters were made before it."""
        self._made[optimizer] = place, self._new.count

    def before_backward(self, roots: Sequence[Tensor], place: Place) -> None:
        """Remember the backward pass, and whether its loss has no graph at all."""
        self._backward = place
        self._has_new_leaf = any(root.is_leaf for root in roots)

    def before_step(self, optimizer: Optimizer, place: Place) -> None:
        """Look for gradients of the parameters that have had none."""
        if self._backward is None:
            return  # a step that is not the program's training
        steps = self._find(optimizer)
        steps.count += 1
        steps.backward, steps.step = self._backward, place
        self._drop_those_with_gradients(steps)

    def after_step(self, optimizer: Optimizer) -> None:
        """Look again, since a step with a closure computes its gradients itself, and decide."""
        steps = self._steps.get(id(optimizer))
        if steps is None or not steps.waiting or steps.optimizer() is not optimizer:
            return
        self._drop_those_with_gradients(steps)
        waiting = len(steps.waiting)
        if waiting != steps.blamed or steps.count <= _STEPS_BEFORE_REPORT:
            steps.blame, steps.blamed = self._find_blame(steps), waiting
        if steps.count == _STEPS_BEFORE_REPORT and waiting == steps.size:
            self._decide(steps)

    def end(self) -> None:
        """Report the optimizers that have parameters which never had a gradient."""
        for steps in self._steps.values():
            self._decide(steps)

    def _find(self, optimizer: Optimizer) -> _Steps:
        steps = self._steps.get(id(optimizer))
        if steps is None or steps.optimizer() is not optimizer:
            if steps is not None:
                self._decide(steps)  # of an optimizer that is gone
            made, made_after = self._made.get(optimizer, (None, None))
            name = type(optimizer).__name__
            steps = _Steps(weakref.ref(optimizer), name, made, made_after)
            self._steps[id(optimizer)] = steps
        parameters = parameters_of(optimizer)
        if steps.size != len(parameters):
            steps.size = len(parameters)
            steps.waiting = set(map(self._numbers.number, parameters))
        return steps

    def _find_blame(self, steps: _Steps) -> _Blame | None:
        missing = [
            each for number in steps.waiting if (each := self._numbers.tensor(number)) is not None
        ]
        for each in missing:
            cut = self._cuts.find(each)
            if cut is not None:
                place, how = cut
                cut_off = [other for other in missing if self._cuts.find(other) == cut]
                return _Blame(place, how, tuple(names_of(cut_off)))
        if not missing or len(missing) < steps.size:
            return None  # parts of a model may be unused
        others = [each for each in _find_unowned() if self._is_later(each, steps)]
        others = _take_shapes(missing, others)
        places = (self._new.find(self._numbers.number(each)) for each in others)
        return _Blame(is_replaced=bool(others), replaced=next(places, None))

    def _is_later(self, parameter: Tensor, steps: _Steps) -> bool:
        """Return whether a parameter was made after the optimizer, or may have been."""
        if steps.made_after is None:
            return True
        return self._new.find(self._numbers.number(parameter), steps.made_after) is not None

    def _drop_those_with_gradients(self, steps: _Steps) -> None:
        if steps.waiting:
            steps.waiting = {
                number
                for number in steps.waiting
                if (each := self._numbers.tensor(number)) is not None
                and each.grad is None
                and each.requires_grad
            }
            if not steps.waiting:
                steps.blame = None

    def _decide(self, steps: _Steps) -> None:
        if steps.blame is None or steps.is_reported:
            return
        optimizer = steps.optimizer()
        is_cut = steps.blame.cut is not None
        if not is_cut and optimizer is not None and self._replaced.accuses(optimizer):
            return
        steps.is_reported = True
        if is_cut:
            self._report(_describe_cut(steps, steps.blame))
        elif steps.blame.is_replaced:
            self._report(_describe_replaced(steps, steps.blame))
        else:
            self._report(_describe_without(steps, self._has_new_leaf))


def _find_unowned() -> list[Tensor]:
    """Return the parameters of models that have gradients and no optimizer."""
    owned = {id(each) for optimizer in find_optimizers() for each in parameters_of(optimizer)}
    return [
        each
        for model in find_models()
        for each in model.parameters()
        if each.grad is not None and id(each) not in owned
    ]


def _take_shapes(parameters: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    """Return those of `others` with the shapes of `parameters`; none if there are too few."""
    shapes = Counter(tuple(each.shape) for each in parameters)
    found = Counter(tuple(each.shape) for each in others)
    return [each for each in others if tuple(each.shape) in shapes] if shapes <= found else []


def _places(*places: Place | None) -> tuple[Place, ...]:
    return tuple(place for place in places if place is not None)


def _describe_cut(steps: _Steps, blame: _Blame) -> Hazard:
    what = (
        f"{len(blame.names)} of the {steps.size} parameters that {steps.name} updates got no "
        f"gradient in {steps.count} steps ({list_names(blame.names)}): {blame.how} cuts them off "
        "from the loss"
    )
    remedy = (
        f"remove {blame.how} from this line; if these parameters are to stay as they are, give the "
        "optimizer only the others"
    )
    return Hazard(HazardKind.CUT, what, _places(blame.cut, steps.step), remedy)


def _describe_replaced(steps: _Steps, blame: _Blame) -> Hazard:
    what = (
        f"none of the {steps.size} parameters of {steps.name} got a gradient in {steps.count} "
        "steps, but a model has gradients for other tensors of the same shapes: it was moved, "
        "wrapped or built again after the optimizer was made"
    )
    remedy = "make the optimizer after the model has its final parameters"
    places = _places(steps.made, blame.replaced, steps.step)
    return Hazard(HazardKind.REPLACED, what, places, remedy)


def _describe_without(steps: _Steps, is_new_leaf: bool) -> Hazard:
    why = (
        "the loss is a new tensor without a graph"
        if is_new_leaf
        else "the loss does not depend on them, or their gradients were cleared before the step"
    )
    what = (
        f"none of the {steps.size} parameters of {steps.name} had a gradient in {steps.count} "
        f"steps: {why}"
    )
    remedy = (
        "compute the loss from the model's outputs, without torch.tensor(), .item() or numpy in "
        "between, and call zero_grad() after step() or before backward()"
    )
    return Hazard(HazardKind.NO_GRADIENT, what, _places(steps.backward, steps.step), remedy)
