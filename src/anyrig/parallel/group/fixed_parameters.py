"""The parameters of a module as they were when it was spread, which later steps must still have.

DDP and FSDP2 take note of the parameters once. The gradient of a parameter that is added, replaced
or unfrozen later would silently stay as each rank computed it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ...errors import SpreadError

_MOST_NAMED = 5


class FixedParameters:
    """Checks in each step that the engine still averages all gradients of a module.

    Args:
        module: as it is spread now.
        identify: returns a function that tells parameters apart: of one parameter it returns the
            same object in each form that the engine gives it.
    """

    def __init__(
        self, module: nn.Module, identify: Callable[[], Callable[[nn.Parameter], Any]]
    ) -> None:
        self._module = module
        self._identify = identify
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
        self._note()  # an activation was replaced, or FSDP2 has gathered its parameters

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
        found: list[int] = []
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
        changes = [f"{name} was removed" for name in self._learning if name not in now]
        for name, (parameter, learns) in now.items():
            if name not in self._learning:
                changes.append(f"{name} was added")
            elif self._learning[name][0] is not parameter:
                changes.append(f"{name} was replaced")
            elif self._learning[name][1] is not learns:
                changes.append(f"{name}.requires_grad became {learns}")
        return changes + [
            f"layer {name} was {'replaced' if name in self._layers else 'added'}, which has buffers"
            for name, layer in self._module.named_modules()
            if layer._buffers and self._layers.get(name) is not layer
        ]
