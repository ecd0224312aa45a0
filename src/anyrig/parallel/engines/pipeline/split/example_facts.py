"""Facts of the example on which a recording depends, checked in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .....errors import SpreadError
from .refusal import Place


class FactCheck:
    """Raises if a number, a boolean, a string or a length differs from the example.

    Args:
        read: returns the fact, given the value: ``bool``, ``int``, ``len`` and so on.
        expected: the fact in the example.
        place: the code that depends on the fact.
    """

    def __init__(self, read: Callable[[Any], Any], expected: object, place: Place) -> None:
        self._read, self._expected, self._place = read, expected, place
        self.__name__ = self.__qualname__ = "check_fact"

    @property
    def fact(self) -> tuple[Callable[[Any], Any], object]:
        """What is read, and what is expected."""
        return self._read, self._expected

    def __call__(self, value: object) -> None:
        """Raise `SpreadError` if the fact differs."""
        found = self._read(value)
        # Without data, on the meta device, work is counted.
        if found not in (self._expected, "meta"):
            raise SpreadError(
                "the module was divided with an example of different shapes, dtypes or devices, on "
                f"which its code depends: {self._expected!r} in the example, but {found!r} in this "
                f"call, in {self._place}. Give an example with the shapes and dtypes of these "
                "calls; if code depends on the number of samples, also use micro_batches=1"
            )
