"""A check that a module still has the parameters that it had when it was spread.

DDP and FSDP2 register the parameters once. The gradient of a parameter that is added or replaced
later would silently stay different on each rank.

=================================  ==============  ==============
after the module was spread        DDP             FSDP2
=================================  ==============  ==============
some or all are frozen             right           right
those frozen before are unfrozen   not averaged    right
moved to another place             right           right
added or replaced                  not averaged    not averaged
=================================  ==============  ==============

Cases that are right are allowed: a discriminator may be frozen while its generator learns, and a
wrapper that recomputes activations only moves parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ...errors import SpreadError

_MOST_NAMED = 5


class FixedParameters:
    """Checks in each step that the engine still averages all gradients of a module.

    ``identify()`` returns a function that returns one object for each parameter, in whatever form
    the engine currently has the parameter. `may_unfreeze` is whether the engine can follow a
    parameter that begins to learn. ``marks()`` returns identities that change when the engine's
    hooks are lost.
    """

    def __init__(
        self,
        module: nn.Module,
        identify: Callable[[], Callable[[nn.Parameter], Any]],
        may_unfreeze: bool,
        marks: Callable[[], list[int]] = list,
    ) -> None:
        self._module = module
        self._identify = identify
        self._may_unfreeze, self._marks = may_unfreeze, marks
        self._layers = dict(module.named_modules())
        self._parameters = self._current_parameters()
        self._remember()

    def require_unchanged(self) -> None:
        """Raise SpreadError if a gradient would not be averaged; the message names the changes."""
        if self._outline() == self._seen:
            return
        changes = self._find_changes()
        if changes:
            more = len(changes) - _MOST_NAMED
            named = ", ".join(changes[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
            raise SpreadError(
                f"this {type(self._module).__name__} has changed since it was spread over the "
                f"ranks: {named}. The ranks would silently have different gradients or buffers. "
                "Spread the model after changing it"
            )
        self._remember()  # the change is harmless, such as a replaced activation

    def _remember(self) -> None:
        # References to all objects, so that no new object gets the identity of an old one.
        self._layers_now = [*self._module.modules()]
        self.parameters = [*self._module.parameters()]
        self._places = [(layer._parameters, layer._modules) for layer in self._layers_now]
        self._seen = self._outline()

    def _outline(self) -> list[int]:
        """Return the identities of all layers and parameters, and which parameters learn."""
        # Runs in every step, so it is written for speed.
        found = self._marks()
        for parameters, children in self._places:
            if parameters:
                values = parameters.values()
                found += map(id, values)
                found += [each is not None and each.requires_grad for each in values]
            if children:
                found += map(id, children.values())
        return found

    def _current_parameters(self) -> dict[str, tuple[Any, bool]]:
        identify = self._identify()
        return {
            name: (identify(parameter), parameter.requires_grad)
            for name, parameter in self._module.named_parameters(remove_duplicate=False)
        }

    def _find_changes(self) -> list[str]:
        now, before = self._current_parameters(), self._parameters
        present = {id(parameter) for parameter, _ in now.values()}
        learned = {id(parameter): learns for parameter, learns in before.values()}
        gone = [name for name, (parameter, _) in before.items() if id(parameter) not in present]
        changes = [f"{name} was removed" for name in gone if name not in now]
        for name, (parameter, learns) in now.items():
            if id(parameter) not in learned or name in gone:
                changes.append(f"{name} was {'replaced' if name in before else 'added'}")
            elif learned[id(parameter)] is not learns and learns and not self._may_unfreeze:
                changes.append(f"{name}.requires_grad became {learns}")
        known = {id(layer) for layer in self._layers.values()}
        return changes + [
            f"layer {name} was {'replaced' if name in self._layers else 'added'}, which has buffers"
            for name, layer in self._module.named_modules()
            if layer._buffers and id(layer) not in known
        ]
