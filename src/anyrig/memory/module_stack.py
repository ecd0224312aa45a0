"""The stack of running modules."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..observe.events import Events
from ..observe.hooks import Observer
from ..observe.names import ModuleNames
from ..observe.source_line import SourceLine, current_line


@dataclass(frozen=True)
class Running:
    """The modules that are running.

    Attributes:
        names: the names of the modules, the outermost first.
        call: the number of the call of the outermost module.
        is_training: whether the outermost module is in training mode; None if no module runs.
        line: the line that called the outermost module; None if unknown.
    """

    names: tuple[str, ...] = ()
    call: int = 0
    is_training: bool | None = None
    line: SourceLine | None = None


_NONE = Running()

# A context variable: the threads of replicas run in a copy of their caller's context, so their
# modules count as inside the module that the caller calls.
_running: ContextVar[Running] = ContextVar("anyrig_running_modules", default=_NONE)


class ModuleStack(Observer):
    """The modules whose forward runs; `calls` counts the calls of outermost modules."""

    def __init__(self, on_first_call: Callable[[nn.Module, tuple[Any, ...]], None]) -> None:
        """Make a stack that calls ``on_first_call(module, args)`` before an outermost module."""
        self._on_first_call = on_first_call
        self.names = ModuleNames()
        super().__init__(Events(module_called=self._enter, module_finished=self._leave))
        self.calls = 0

    def start(self) -> None:
        """Follow every call of a module in this process until `stop`."""
        _running.set(_NONE)
        super().start()

    def stop(self) -> None:
        """Follow no calls from now on."""
        _running.set(_NONE)
        super().stop()

    def running(self) -> Running:
        """Return the running modules of this thread; in a replica's thread, also its caller's."""
        return _running.get()

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        running = _running.get()
        if not running.names:
            self.calls += 1
            self.names.add_outermost(module)
            self._on_first_call(module, inputs)
            running = Running((), self.calls, module.training, current_line())
        names = (*running.names, self.names.name_of(module))
        _running.set(Running(names, running.call, running.is_training, running.line))

    def _leave(self, *_: Any) -> None:
        running = _running.get()
        if len(running.names) > 1:
            names = running.names[:-1]
            _running.set(Running(names, running.call, running.is_training, running.line))
        else:
            _running.set(_NONE)
