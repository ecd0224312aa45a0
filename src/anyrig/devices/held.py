"""What a process holds until it gives it back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

_Held = TypeVar("_Held", bound="Held")


class Held(ABC):
    """Something with a `release`, which the end of a ``with`` block calls."""

    @abstractmethod
    def release(self) -> None:
        """Give it back."""

    def __enter__(self: _Held) -> _Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
