"""Marks of modules and steps in the trace of PyTorch's profiler.

A mark is an event whose name begins with one of these strings. Modules are marked for a few steps
only, since the marks cost some microseconds per call.
"""

from __future__ import annotations

import threading
import warnings
from contextlib import suppress
from typing import Any

import torch
from torch import nn

# Private: `torch.profiler.record_function` does the same and takes ten microseconds.
# tests/rehearsal/measured/test_profiled_window.py fails without its events.
from torch._C._profiler import _RecordFunctionFast

from ...observe.events import Events
from ...observe.hooks import Observer
from ...observe.names import ModuleNames

MODULE_MARK = "anyrig module "
STEP_MARK = "anyrig step"
# Compiled modules warn that the hooks of a process are called once more for them.
_WARNING_OF_COMPILED_MODULES = r"Using `torch\.compile\(module\)` when there are global hooks"


def mark_step() -> None:
    """Mark the end of a step in the trace."""
    with _RecordFunctionFast(STEP_MARK):
        pass


class ModuleMarks(Observer):
    """Marks the calls of modules, with their names.

    Attributes:
        calls: the number of calls so far.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._names = ModuleNames()
        super().__init__(Events(module_called=self._enter, module_finished=self._leave))
        self._filter: Any = None
        self._threads = threading.local()

    def start(self) -> None:
        """Mark the calls of all modules from now on."""
        warnings.filterwarnings("ignore", _WARNING_OF_COMPILED_MODULES)
        self._filter = warnings.filters[0]
        super().start()

    def stop(self) -> None:
        """Mark nothing from now on."""
        super().stop()
        with suppress(ValueError):  # the program has changed the filters
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]
        while self._open:
            self._open.pop().__exit__(None, None, None)

    @property
    def _open(self) -> list[Any]:
        """The marks of the modules that run in this thread."""
        try:
            return self._threads.open  # type: ignore[no-any-return]
        except AttributeError:
            opened: list[Any] = []
            self._threads.open = opened
            return opened

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return
        self.calls += 1
        if not self._open:
            self._names.add_outermost(module)
        mark = _RecordFunctionFast(f"{MODULE_MARK}{self._names.name_of(module)}")
        mark.__enter__()
        self._open.append(mark)

    def _leave(self, *_: Any) -> None:
        if not torch.compiler.is_compiling() and self._open:
            self._open.pop().__exit__(None, None, None)
