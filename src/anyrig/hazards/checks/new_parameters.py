"""Which line made each parameter."""

from __future__ import annotations

import copy
import sys
from types import FrameType

from torch import Tensor, nn

from ...observe.source_line import is_library_code
from ..check import Check
from ..hazard import Place
from ..tensor_numbers import TensorNumbers

# The places of parameters that no longer exist are dropped after this number of new places.
_MOST_OLD = 10_000


class NewParameters(Check):
    """The lines that made the parameters of this process, and their order.

    Attributes:
        count: how many parameters were made.
    """

    def __init__(self, numbers: TensorNumbers) -> None:
        self._numbers = numbers
        self._places: dict[int, tuple[int, Place]] = {}
        self._sweep_at = _MOST_OLD
        self.count = 0

    def parameter_made(self, parameter: Tensor) -> None:
        """Remember the line."""
        self.count += 1
        place = _place_outside_modules(sys._getframe(1))
        self._places[self._numbers.number(parameter)] = self.count, place
        if len(self._places) > self._sweep_at:
            self._places = {
                number: place
                for number, place in self._places.items()
                if self._numbers.tensor(number) is not None
            }
            self._sweep_at = len(self._places) + _MOST_OLD

    def find(self, number: int, after: int = 0) -> Place | None:
        """Return the line that made the parameter with this number, or None.

        Args:
            number: the number of the parameter.
            after: return only lines that ran after this number of parameters was made.
        """
        count, place = self._places.get(number, (0, None))
        return place if count > after else None


def _place_outside_modules(frame: FrameType | None) -> Place:
    """Return the innermost line outside PyTorch, anyrig, `copy` and the constructors of modules."""
    outside = None
    while frame is not None:
        code = frame.f_code
        if not is_library_code(code) and code.co_filename != copy.__file__:
            outside = frame
            if not _makes_a_module(frame):
                break
        frame = frame.f_back
    if outside is None:
        return Place("replaced", None)
    return Place("replaced", outside.f_code.co_filename, outside.f_lineno)


def _makes_a_module(frame: FrameType) -> bool:
    return frame.f_code.co_name == "__init__" and isinstance(frame.f_locals.get("self"), nn.Module)
