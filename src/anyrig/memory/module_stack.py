"""The stack of running modules, and their names."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules import module as module_hooks
from torch.utils.hooks import RemovableHandle


class ModuleStack:
    """The modules whose forward runs, one stack per thread.

    Modules are named as in the state dict of the outermost module. If there are several outermost
    modules, such as a generator and a discriminator, the names in all but the first begin with the
    class of the outermost module.
    """

    def __init__(self, on_first_call: Callable[[nn.Module, tuple[Any, ...]], None]) -> None:
        """Call `on_first_call` before an outermost module, with its positional arguments."""
        self._on_first_call = on_first_call
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._outermost: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._thread_state = threading.local()
        self._handles: list[RemovableHandle] = []
        self.calls = 0  # the calls of outermost modules

    def start(self) -> None:
        """Register hooks that follow every call of a module in this process until `stop`."""
        self._handles = [
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def current(self) -> str | None:
        """Return the name of the innermost module that this thread runs; None if none runs."""
        stack = self._stack()
        return stack[-1] if stack else None

    def is_training(self) -> bool | None:
        """Return whether the running outermost module is in training mode; None if none runs."""
        return self._thread_state.is_training if self._stack() else None

    def add_outermost(self, module: nn.Module) -> None:
        """Name an outermost module and its submodules, unless it has a name."""
        if module in self._names:
            return
        self._outermost.add(module)
        prefix = "" if len(self._outermost) == 1 else type(module).__name__
        for name, child in module.named_modules():
            self._names.setdefault(child, ".".join(filter(None, (prefix, name))))

    def name_of(self, module: nn.Module) -> str:
        """Return a module's name, or its class's name if no outermost module contains it."""
        return self._names.get(module, type(module).__name__)

    def _stack(self) -> list[str]:
        if not hasattr(self._thread_state, "stack"):
            self._thread_state.stack = []
        stack: list[str] = self._thread_state.stack
        return stack

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        stack = self._stack()
        if not stack:
            self.calls += 1
            self._thread_state.is_training = module.training
            self.add_outermost(module)
            self._on_first_call(module, inputs)
        stack.append(self.name_of(module))

    def _leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        # With always_call, PyTorch calls this hook even if the forward pass raised an exception.
        if stack := self._stack():
            stack.pop()
