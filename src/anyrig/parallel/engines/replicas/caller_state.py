"""The thread-local state of PyTorch, copied from the caller's thread to a replica's."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import _python_dispatch as dispatch
from torch.utils._device import DeviceContext

from ....transfer.streams import using

T = TypeVar("T")


class CallerState:
    """The state of the present thread: gradient mode, autocast, streams, context variables.

    The stacks of modes and of saved-tensor hooks, and the mode of `torch.set_default_device`, have
    no public getters; `test_caller_state.py` covers them. The lead is the first of `devices`, each
    of which keeps the caller's current stream.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._autocasts = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in {devices[0].type, "cpu"}
            if torch.amp.is_autocast_available(kind)
        ]
        self._autocast_cache = torch.is_autocast_cache_enabled()
        self._function_modes: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        self._dispatch_modes = dispatch._get_current_dispatch_mode_stack()
        self._saved_tensor_hooks = _hooks_for_threads()
        self._lead = devices[0]
        self._streams = [torch.accelerator.current_stream(device) for device in devices]
        self._context = contextvars.copy_context()

    def call(self, device: torch.device, function: Callable[[], T]) -> T:
        """Call a function in the caller's state, with `device` as the current device."""
        return self._context.copy().run(self._call, device, function)

    def _call(self, device: torch.device, function: Callable[[], T]) -> T:
        with ExitStack() as stack:
            # `using` makes the last stream's device current.
            stack.enter_context(using(*sorted(self._streams, key=lambda s: s.device == device)))
            # Inference mode sets the gradient mode, too, so it comes first.
            stack.enter_context(torch.inference_mode(self._inference))
            stack.enter_context(torch.set_grad_enabled(self._grad))
            for kind, enabled, dtype in self._autocasts:
                autocast = torch.autocast(kind, dtype, enabled, self._autocast_cache)
                stack.enter_context(autocast)
            if (hooks := self._saved_tensor_hooks) is not None:
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*hooks))
            for mode in self._dispatch_modes:
                dispatch._push_mode(mode)  # not entered as a context: the mode is already entered
                stack.callback(dispatch._pop_mode)
            for function_mode in self._function_modes:
                if isinstance(function_mode, DeviceContext) and function_mode.device == self._lead:
                    function_mode = DeviceContext(device)  # a replica's default device is its own
                _push_mode(function_mode)  # type: ignore[no-untyped-call]
                stack.callback(_pop_mode)
            return function()


def _hooks_for_threads() -> Any:
    """Return the hooks of saved tensors, or None for those of a checkpoint around the model.

    A checkpoint identifies tensors by the order of saving, which is undefined across threads: a
    checkpoint around the model recomputes only what the lead saves.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return None if hooks and hooks[0].__module__ == "torch.utils.checkpoint" else hooks
