"""The only file that hooks PyTorch: `Observer` for events, `Replacements` for single functions.

The room `parallel` alone has hooks of its own, which are part of how a spread model computes.

::

    torch.autograd.backward = ours ──▶ the program's ──▶ ours ──▶ PyTorch's
                                                         └ stopped: it only passes calls on

A replacement can be taken away only while nothing else has replaced it. One below another passes
calls on once it has stopped, and goes as soon as the one above it has gone, if that is ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..private_names import refuse_missing
from .events import Events

_INHERITED = object()
# An attribute of the functions that replace others.
_LAYER = "anyrig_layer"


class Observer:
    """Reports the events of this process from `start` to `stop`, and hooks only what they need.

    Attributes:
        replacements: replaces further functions from `start` to `stop`.
    """

    def __init__(self, events: Events) -> None:
        """Report nothing yet."""
        self._events = events
        self._hooks = ExitStack()
        self.replacements = Replacements()

    def start(self) -> None:
        """Report events from now on."""
        refuse_missing("observe")
        events = self._events
        self._hooks.callback(self.replacements.restore)
        if events.module_called is not None:
            self._hooks.enter_context(register_module_forward_pre_hook(events.module_called))
        if events.module_finished is not None:
            self._hook_module_ends()
        if (begun := events.step_begun) is not None:
            self._hooks.enter_context(register_optimizer_step_pre_hook(lambda one, *_: begun(one)))
        if (ended := events.step_ended) is not None:
            self._hooks.enter_context(register_optimizer_step_post_hook(lambda one, *_: ended(one)))
        if events.backward_begun or events.backward_ended or events.backward_failed:
            self.replacements.around(torch.autograd, "backward", self._run_backward)
        if events.zeroed is not None:
            self.replacements.around(Optimizer, "zero_grad", self._clear_gradients)
            self.replacements.around(nn.Module, "zero_grad", self._clear_gradients)
        if events.next_batch is not None:
            # Private: the class of the iterators of every DataLoader. There is no hook for them.
            # tests/observe/test_hooks.py fails if the name changes.
            from torch.utils.data.dataloader import _BaseDataLoaderIter

            self.replacements.around(_BaseDataLoaderIter, "__next__", events.next_batch)

    def stop(self) -> None:
        """Report nothing from now on, and leave PyTorch as it was. A second call has no effect."""
        self._hooks.close()

    def _hook_module_ends(self) -> None:
        # Private: the handle leaves the hook's number behind in these, and compiled modules warn of
        # hooks as long as it is there. tests/observe/test_hooks.py fails if the name changes.
        from torch.nn.modules.module import _global_forward_hooks_with_kwargs

        handle = register_module_forward_hook(
            self._finish_module, with_kwargs=True, always_call=True
        )
        self._hooks.callback(_global_forward_hooks_with_kwargs.pop, handle.id, None)
        self._hooks.enter_context(handle)

    def _finish_module(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        assert self._events.module_finished is not None
        kwargs = rest[0] if len(rest) == 2 else {}  # PyTorch leaves it out after an exception
        self._events.module_finished(module, args, kwargs)

    def _run_backward(
        self, original: Any, tensors: Any, grad_tensors: Any = None, *rest: Any, **options: Any
    ) -> None:
        if is_compiling():
            return original(tensors, grad_tensors, *rest, **options)  # type: ignore[no-any-return]
        if self._events.backward_begun is not None:
            self._events.backward_begun(tensors, grad_tensors)
        try:
            original(tensors, grad_tensors, *rest, **options)
        except BaseException:
            if self._events.backward_failed is not None:
                self._events.backward_failed()
            raise
        if self._events.backward_ended is not None:
            self._events.backward_ended()
        return None

    def _clear_gradients(self, original: Any, owner: Any, *rest: Any, **options: Any) -> None:
        if self._events.zeroed is not None and not is_compiling():
            self._events.zeroed(owner)
        original(owner, *rest, **options)


class Replacements:
    """Functions and properties of PyTorch that are replaced until `restore` is called."""

    def __init__(self) -> None:
        self._layers = ExitStack()

    def around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Replace a function by ``call(original, *arguments)``.

        Args:
            owner: the class or module. An inherited function is replaced for `owner` alone.
            name: the name of the function.
            call: called instead, with the function that was there, unbound, and the arguments. Its
                frame is the second below that of the program's call.
        """
        layer = _Layer(owner, name)
        function = layer.around(getattr(owner, name), call)
        is_static = isinstance(vars(owner).get(name), staticmethod)
        layer.install(staticmethod(function) if is_static else function)
        self._layers.callback(layer.remove)

    def around_property(
        self, owner: Any, name: str, get: Callable[..., Any], assign: Callable[..., None]
    ) -> None:
        """Replace a property by ``get(original, self)`` and ``assign(original, self, value)``."""
        layer, own = _Layer(owner, name), getattr(owner, name)
        layer.install(property(layer.around(own.__get__, get), layer.around(own.__set__, assign)))
        self._layers.callback(layer.remove)

    def restore(self) -> None:
        """Put back what was there, except below a replacement of the program's."""
        self._layers.close()


def is_replaced(owner: Any, name: str) -> bool:
    """Return whether anyrig has replaced an attribute of a class or module."""
    return _top_layer(owner, name) is not None


class _Layer:
    """A replacement of an attribute, over what was there before."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self._before = vars(owner).get(name, _INHERITED)
        self.value: Any = None
        self._is_active = True

    def around(self, original: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls ``call(original, …)``, and `original` once removed."""

        @functools.wraps(original)
        def replaced(*arguments: Any, **options: Any) -> Any:
            if self._is_active:
                return call(original, *arguments, **options)
            return original(*arguments, **options)

        setattr(replaced, _LAYER, self)
        return replaced

    def install(self, value: Any) -> None:
        self.value = value
        setattr(self._owner, self._name, value)

    def remove(self) -> None:
        """Take away this layer, if it is on top, and removed ones below it."""
        self._is_active = False
        while (top := _top_layer(self._owner, self._name)) is not None and not top._is_active:
            if top._before is _INHERITED:
                delattr(top._owner, top._name)
            else:
                setattr(top._owner, top._name, top._before)


def _top_layer(owner: Any, name: str) -> _Layer | None:
    """Return the layer whose value an attribute is; None if the value is not ours."""
    value = vars(owner).get(name)
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    # `functools.wraps` copies the attribute to functions of others.
    layer: _Layer | None = getattr(function, _LAYER, None)
    return layer if layer is not None and layer.value is value else None
