"""The parameters of a module as they were when it was spread, which later steps must still have.

DDP and FSDP2 take note of the parameters once. The gradient of a parameter that is added or
replaced later would silently stay as each rank computed it.

=================================  ==============  ===============  ==============
after the module was spread        DDP             DDP, finding     FSDP2
                                                   unused ones
=================================  ==============  ===============  ==============
all are frozen for some steps      right           right            right
some are frozen                    never reduced   right            right
those frozen before are unfrozen   not averaged    not averaged     right
moved to another place             right           right            right
added or replaced                  not averaged    not averaged     not averaged
=================================  ==============  ===============  ==============

What is right passes: a discriminator may be frozen while its generator learns, and a wrapper that
recomputes activations only moves parameters. DDP's `static_graph` allows no freezing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from torch import nn

from ...errors import SpreadError

_MOST_NAMED = 5


class Freezing(Enum):
    """Which changes of `requires_grad` an engine can follow after a module was spread."""

    NONE = auto()
    ALL = auto()  # all parameters at once
    SOME = auto()  # any of those that learned
    ANY = auto()  # and those that did not learn may do so later


class FixedParameters:
    """Checks in each step that the engine still averages all gradients of a module.

    Args:
        module: as it is spread now.
        identify: returns a function that tells parameters apart: of one parameter it returns the
            same object in each form that the engine gives it.
        freezing: what the engine can follow.
        marks: returns identities that change when the engine's hooks are lost.
    """

    def __init__(
        self,
        module: nn.Module,
        identify: Callable[[], Callable[[nn.Parameter], Any]],
        freezing: Freezing,
        marks: Callable[[], list[int]] = list,
    ) -> None:
        self._module = module
        self._identify = identify
        self._freezing, self._marks = freezing, marks
        self._layers = dict(module.named_modules())
        self._learning = self._parameters_now()
        self._note()

    def require_unchanged(self) -> None:
        """Raise SpreadError if a gradient would not be averaged; it names what has changed."""
        if self._outline() == self._seen:
            return
        changes = self._find_changes()
        if changes:
            more = len(changes) - _MOST_NAMED
            named = ", ".join(changes[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
            raise SpreadError(
                f"this {type(self._module).__name__} has changed since it was spread over the "
                f"ranks: {named}. Ranks would silently not have the same gradients and buffers. "
                "Spread the model after changing it"
            )
        self._note()  # such as an activation replaced, or parameters that FSDP2 has gathered

    def _note(self) -> None:
        # Kept alive: another object might get the identity of one that is gone.
        self._held = [*self._module.modules(), *self._module.parameters()]
        self._places = [
            (layer._parameters, layer._modules)
            for layer in self._held
            if isinstance(layer, nn.Module)
        ]
        self._seen = self._outline()

    def _outline(self) -> list[int]:
        """Return the identities of layers and parameters, and which parameters learn: quickly."""
        found = self._marks()
        for parameters, children in self._places:
            if parameters:
                values = parameters.values()
                found += map(id, values)
                found += [each is not None and each.requires_grad for each in values]
            if children:
                found += map(id, children.values())
        return found

    def _parameters_now(self) -> dict[str, tuple[Any, bool]]:
        identify = self._identify()
        return {
            name: (identify(parameter), parameter.requires_grad)
            for name, parameter in self._module.named_parameters(remove_duplicate=False)
        }

    def _find_changes(self) -> list[str]:
        now = self._parameters_now()
        before_of = {id(parameter): learns for parameter, learns in self._learning.values()}
        there = {id(parameter) for parameter, _ in now.values()}
        changes = [
            f"{name} was removed"
            for name, (parameter, _) in self._learning.items()
            if name not in now and id(parameter) not in there
        ]
        allowed = self._allowed(now)
        for name, (parameter, learns) in now.items():
            before = before_of.get(id(parameter))
            if before is None or self._was_replaced(name, there):
                changes.append(f"{name} was {'replaced' if name in self._learning else 'added'}")
            elif before is not learns and learns not in allowed:
                changes.append(f"{name}.requires_grad became {learns}")
        layers_before = {id(layer) for layer in self._layers.values()}
        return changes + [
            f"layer {name} was {'replaced' if name in self._layers else 'added'}, which has buffers"
            for name, layer in self._module.named_modules()
            if layer._buffers and id(layer) not in layers_before
        ]

    def _allowed(self, now: dict[str, tuple[Any, bool]]) -> set[bool]:
        """Return the values to which `requires_grad` may have changed."""
        if self._freezing is Freezing.ANY:
            return {True, False}
        all_frozen = not any(learns for _, learns in now.values())
        may_freeze = self._freezing is Freezing.SOME or (
            self._freezing is Freezing.ALL and all_frozen
        )
        return {False} if may_freeze else set()

    def _was_replaced(self, name: str, there: set[int]) -> bool:
        """Return whether the parameter that first had this name is no longer in the module."""
        return name in self._learning and id(self._learning[name][0]) not in there
