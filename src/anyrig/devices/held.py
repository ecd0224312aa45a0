"""Objects that a process holds until it releases them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

_Held = TypeVar("_Held", bound="Held")


class Held(ABC):
    """An object with a method `release`, which the end of a ``with`` block calls."""

    @abstractmethod
    def release(self) -> None:
        """Release the object."""

    def __enter__(self: _Held) -> _Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
