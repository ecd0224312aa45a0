"""`NumpyWrites`, the lines that change tensors through NumPy arrays, which no operator shows.

Once the program has shared a tensor's memory with NumPy, every line of the program is followed: if
the bytes of a saved and shared value changed during a line, the line wrote to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ..observe.hooks import Replacements
from ..observe.source_line import is_library_code
from .byte_sums import Sums, can_sum, sum_bytes
from .hazard import Place
from .lines import place_here


class NumpyWrites:
    """Compares the saved values that share memory with NumPy, line by line."""

    def __init__(self, changed: Callable[[int, Place], None]) -> None:
        """Follow nothing yet.

        Args:
            changed: called with the address of memory that has changed, and the line.
        """
        self._changed = changed
        self._shared: set[int] = set()
        self._saved: dict[int, tuple[Tensor, Sums]] = {}  # by the address of the memory
        self._last: Place | None = None
        self._is_tracing = False

    def start(self, replacements: Replacements) -> None:
        """Notice from now on what is shared, until the replacements are undone."""
        for owner, name in ((Tensor, "numpy"), (Tensor, "__array__"), (torch, "from_numpy")):
            replacements.around(owner, name, self._convert)

    def save(self, tensor: Tensor, sums: Sums) -> None:
        """Remember the sums of a value that backward saves."""
        if tensor.device.type == "cpu":
            self._saved[tensor.untyped_storage().data_ptr()] = (torch.detach(tensor), sums)

    def release(self, address: int) -> None:
        """Forget the values at an address."""
        self._saved.pop(address, None)

    def stop(self) -> None:
        """Follow no more lines."""
        if self._is_tracing:
            sys.settrace(None)
            self._is_tracing = False

    def _convert(
        self, convert: Callable[..., Any], value: Any, *arguments: Any, **options: Any
    ) -> Any:
        result = convert(value, *arguments, **options)
        for each in (value, result):
            if isinstance(each, Tensor) and each.device.type == "cpu":
                self._share(each)
        return result

    def _share(self, tensor: Tensor) -> None:
        if not can_sum(tensor):
            return
        self._shared.add(tensor.untyped_storage().data_ptr())
        if self._is_tracing or sys.gettrace() is not None:
            return  # a debugger follows the lines already
        self._is_tracing = True
        self._last = place_here("written")
        sys.settrace(self._trace)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if not is_library_code(frame.f_code):
                frame.f_trace = self._trace
            frame = frame.f_back

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if is_library_code(frame.f_code) or not self._is_tracing:
            return None
        if event == "line":
            self.compare()
            self._last = Place("written", frame.f_code.co_filename, frame.f_lineno)
        return self._trace

    def compare(self) -> None:
        """Report the memory that has changed since the last comparison."""
        for address in self._shared & self._saved.keys():
            tensor, before = self._saved[address]
            now = sum_bytes(tensor)
            if now != before:
                self._saved[address] = (tensor, now)
                self._changed(address, self._last or Place("written", None))
