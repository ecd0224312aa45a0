"""Optimizers with parameters that their model has exchanged for new ones.

A move, a load, a wrapper or an assignment may give a model new parameter objects. An optimizer that
was made before keeps the old ones, and their state: it steps tensors that nothing else uses.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

from ...observe.census import parameters_of
from ..check import Check, Report
from ..hazard import Hazard, HazardKind, Place
from ..models_alive import (
    find_homes,
    find_models,
    find_optimizers,
    list_names,
)
from ..tensor_numbers import TensorNumbers
from .new_parameters import NewParameters

# The number of steps in a row that must give the same finding before it is reported, unless the
# program ends: a later line may make an optimizer for the new parameters.
_STEPS_BEFORE_REPORT = 3


@dataclass
class _Owner:
    """What is known of an optimizer.

    Attributes:
        made: where it was made; None if it was made before the watch began.
        made_after: the number of parameters that were made before it.
        homes: the modules of its parameters when they were last looked up, and their names there.
        looked_at: the number of parameters that had been made then; -1 before the first look.
        replacements: the names of the parameters that took the place of its own, by their numbers.
        former: the numbers of all that ever did.
        lost: how many of its own parameters are in no module, or in one that is not trained.
        is_kept: whether a copy of their model is trained, and none of them gets a gradient.
    """

    optimizer: weakref.ref[Optimizer]
    name: str
    made: Place | None
    made_after: int
    homes: dict[int, tuple[weakref.ref[nn.Module], str]] = field(default_factory=dict)
    looked_at: int = -1
    steps: int = 0
    step: Place | None = None
    replacements: dict[int, str] = field(default_factory=dict)
    former: set[int] = field(default_factory=set)
    lost: int = 0
    is_kept: bool = False
    is_reported: bool = False


class ReplacedCheck(Check):
    """Looks for the parameters of each optimizer in the modules, once new parameters were made."""

    def __init__(self, report: Report, numbers: TensorNumbers, made: NewParameters) -> None:
        self._report = report
        self._numbers = numbers
        self._made = made
        self._owners: dict[int, _Owner] = {}  # by the id of the optimizer
        self._explained: set[int] = set()
        self._has_backward = False
        self._step: Place | None = None

    def optimizer_made(self, optimizer: Optimizer, place: Place) -> None:
        """Remember where the optimizer was made, and which parameters were made before it."""
        self._find(optimizer, place, self._made.count)
        for owner in self._owners.values():
            if owner.replacements:
                for parameter in parameters_of(optimizer):
                    owner.replacements.pop(self._numbers.number(parameter), None)

    def before_backward(self, roots: Sequence[Tensor], place: Place) -> None:
        """Remember that the program trains."""
        self._has_backward = True

    def before_step(self, optimizer: Optimizer, place: Place) -> None:
        """Remember the line of the step."""
        self._step = place

    def after_step(self, optimizer: Optimizer) -> None:
        """Look for the optimizer's parameters, if new ones may have taken their places."""
        if not self._has_backward:
            return
        owner = self._find(optimizer)
        owner.step = self._step
        if owner.looked_at < self._made.count:
            owner.steps = 0
        elif not owner.replacements:
            return
        own = [each for each in parameters_of(optimizer) if isinstance(each, nn.Parameter)]
        is_idle = all(each.grad is None for each in own)
        is_sound = self._is_at_home(owner) and not is_idle
        if owner.is_reported or owner.steps >= _STEPS_BEFORE_REPORT or is_sound:
            owner.looked_at = self._made.count
            return
        owner.looked_at = self._made.count
        owner.steps += 1
        self._look(own, owner, is_idle)
        if owner.steps == _STEPS_BEFORE_REPORT:
            self._decide(owner)

    def end(self) -> None:
        """Report the optimizers that have stepped without the new parameters until now."""
        for owner in list(self._owners.values()):
            self._decide(owner)

    def explains(self, number: int) -> bool:
        """Return whether the parameter with this number was reported as a replacement."""
        return number in self._explained

    def accuses(self, optimizer: Optimizer) -> bool:
        """Return whether parameters of an optimizer were reported, or may be at a later step."""
        owner = self._find(optimizer)
        return owner.is_reported or bool(owner.replacements)

    def _find(self, optimizer: Optimizer, made: Place | None = None, made_after: int = 0) -> _Owner:
        owner = self._owners.get(id(optimizer))
        if owner is None or owner.optimizer() is not optimizer:
            if owner is not None:
                self._decide(owner)  # of an optimizer that is gone
            name = type(optimizer).__name__
            owner = _Owner(weakref.ref(optimizer), name, made, made_after)
            self._owners[id(optimizer)] = owner
        return owner

    def _is_at_home(self, owner: _Owner) -> bool:
        """Return whether the modules still have the parameters that they had at the last look."""
        if owner.looked_at < 0 or owner.replacements:
            return False
        return all(self._has_home(number, owner) for number in owner.homes)

    def _has_home(self, number: int, owner: _Owner) -> bool:
        """Return whether the module that had a parameter still has it."""
        if number not in owner.homes:
            return False
        reference, name = owner.homes[number]
        module = reference()
        now = None if module is None else vars(module)["_parameters"].get(name)
        return now is not None and now is self._numbers.tensor(number)

    def _look(self, own: Sequence[Tensor], owner: _Owner, is_idle: bool) -> None:
        lost = self._find_lost(own, owner)
        if lost:
            gc.collect()  # modules that only a cycle keeps have parameters, too
            lost = self._find_lost(own, owner)
        found: dict[int, str] = {}
        owner.is_kept = False
        if is_idle and len(lost) < len(own):  # perhaps a copy of the model is trained
            found = self._find_new((), own, owner.made_after)
            owner.is_kept = bool(found)
        if lost and not found:
            found = self._find_new(own, lost, owner.made_after)
        owner.lost = len(own) if owner.is_kept else len(lost)
        owner.replacements = found
        owner.former |= found.keys()

    def _find_lost(self, own: Sequence[Tensor], owner: _Owner) -> list[Tensor]:
        homes = find_homes()
        lost = []
        for each in own:
            number = self._numbers.number(each)
            is_trained = each.grad is not None and number not in owner.homes
            if each.requires_grad and not is_trained and id(each) not in homes:
                lost += [] if self._has_home(number, owner) else [each]
        owner.homes |= {
            self._numbers.number(each): (weakref.ref(homes[id(each)][0]), homes[id(each)][1])
            for each in own
            if id(each) in homes
        }
        return lost

    def _find_new(
        self, own: Sequence[Tensor], lost: Sequence[Tensor], made_after: int
    ) -> dict[int, str]:
        """Return the parameters made after an optimizer that get gradients and no updates.

        Returns their names by their numbers. If the optimizer has kept some of its parameters, a
        model counts only if it has one of them, or has new parameters of all shapes that were lost.
        """
        ids = {id(each) for each in own}
        owned = {id(each) for other in find_optimizers() for each in parameters_of(other)}
        shapes = Counter(tuple(each.shape) for each in lost)
        found: dict[int, str] = {}
        for model in find_models():
            new = [
                (name, each)
                for name, each in model.named_parameters()
                if each.requires_grad
                and each.grad is not None
                and id(each) not in owned
                and self._made.find(self._numbers.number(each), made_after) is not None
            ]
            has_own = any(id(each) in ids for each in model.parameters())
            all_lost = len(lost) == len(own)  # FSDP puts parameters into one of another shape
            if has_own or all_lost or shapes <= Counter(tuple(each.shape) for _, each in new):
                found |= {self._numbers.number(each): name for name, each in new}
        return found

    def _decide(self, owner: _Owner) -> None:
        if owner.is_reported or not owner.replacements:
            return
        for optimizer in find_optimizers():
            for parameter in parameters_of(optimizer):
                owner.replacements.pop(self._numbers.number(parameter), None)
        if not owner.replacements:
            return
        owner.is_reported = True
        self._explained |= owner.former
        places = (self._made.find(number, owner.made_after) for number in owner.replacements)
        self._report(_describe(owner, next(places)))


def _describe(owner: _Owner, replaced: Place | None) -> Hazard:
    names = list_names(sorted(owner.replacements.values()))
    what = (
        f"the {owner.lost} parameters of {owner.name} get no gradients, since a copy of their "
        f"model is trained, whose parameters get gradients and no updates: {names}"
        if owner.is_kept
        else f"{owner.lost} of the parameters of {owner.name} are in no model any more, so their "
        "steps and their state are lost: the model was given new parameters, which get gradients "
        f"and no updates: {names}"
    )
    remedy = (
        "make the optimizer after the model has its final parameters; if they change during the "
        "training, make it again, and load its state with load_state_dict()"
    )
    places = tuple(place for place in (owner.made, replaced, owner.step) if place is not None)
    return Hazard(HazardKind.REPLACED, what, places, remedy)
