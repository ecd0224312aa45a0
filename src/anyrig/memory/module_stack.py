"""The stack of running modules, and their names."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules import module as module_hooks
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from .source_line import SourceLine, current_line


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


class ModuleStack:
    """The modules whose forward runs, and the names of modules.

    Modules are named as in the state dict of the outermost module. If there are several outermost
    modules, such as a generator and a discriminator, the names in all but the first begin with the
    class of the outermost module. A replica has the names of its module.
    """

    def __init__(self, on_first_call: Callable[[nn.Module, tuple[Any, ...]], None]) -> None:
        """Make a stack that calls ``on_first_call(module, args)`` before an outermost module."""
        self._on_first_call = on_first_call
        # The keys are those of `_key_of`.
        self._names: MutableMapping[Any, str] = WeakIdKeyDictionary()
        self._outermost: MutableMapping[Any, None] = WeakIdKeyDictionary()
        self._handles: list[RemovableHandle] = []
        self.calls = 0  # the calls of outermost modules

    def start(self) -> None:
        """Register hooks that follow every call of a module in this process until `stop`."""
        _running.set(_NONE)
        self._handles = [
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        """Remove the hooks."""
        _running.set(_NONE)
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def running(self) -> Running:
        """Return the running modules of this thread; in a replica's thread, also its caller's."""
        return _running.get()

    def add_outermost(self, module: nn.Module) -> None:
        """Name an outermost module and its submodules, unless it has a name."""
        key = _key_of(module)
        if key in self._names:
            return
        self._outermost[key] = None
        prefix = "" if len(self._outermost) == 1 else type(module).__name__
        for name, child in module.named_modules():
            self._names.setdefault(_key_of(child), ".".join(filter(None, (prefix, name))))
        self._names.setdefault(key, type(module).__name__)  # a wrapper of an inner module

    def name_of(self, module: nn.Module) -> str:
        """Return a module's name, or its class's name if no outermost module contains it."""
        return self._names.get(_key_of(module), type(module).__name__)

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        running = _running.get()
        if not running.names:
            self.calls += 1
            self.add_outermost(module)
            self._on_first_call(module, inputs)
            running = Running((), self.calls, module.training, current_line())
        names = (*running.names, self.name_of(module))
        _running.set(Running(names, running.call, running.is_training, running.line))

    def _leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        # With always_call, PyTorch calls this hook even if the forward pass raised an exception.
        running = _running.get()
        if len(running.names) > 1:
            names = running.names[:-1]
            _running.set(Running(names, running.call, running.is_training, running.line))
        else:
            _running.set(_NONE)


def _key_of(module: nn.Module) -> Any:
    """Return an object that identifies a module, and its replicas.

    The replicas of `anyrig.spread` and of `torch.nn.DataParallel` share this set of names with
    their module. tests/memory/test_replicas.py fails if they no longer do.
    """
    return vars(module).get("_non_persistent_buffers_set", module)
