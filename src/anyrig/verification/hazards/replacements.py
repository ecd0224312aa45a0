"""Replace functions of PyTorch while a program is watched, and put them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_INHERITED = object()


class Replacements:
    """Attributes of classes and modules that are replaced until `restore` is called."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set an attribute to ``make(original)``.

        Args:
            owner: the class or module. An inherited attribute is replaced for `owner` alone.
            name: the attribute.
            make: gets the attribute as the class or module has it, so a function of a class is not
                bound.
        """
        self._originals.append((owner, name, vars(owner).get(name, _INHERITED)))
        setattr(owner, name, make(getattr(owner, name)))

    def restore(self) -> None:
        """Put the original attributes back, the last one first."""
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
