"""In which thread a backward pass computes.

PyTorch gives each CUDA device a thread for backward passes, so that devices work side by side. On
one virtual device nothing works side by side: the caller only waits, while another core computes
with what lies in the caller's cache. That made a step of a small network 5 % slower.

A pass that runs code of the program keeps the device's thread, as on a card: hooks and functions
of the program see which thread they are in, and may rely on it. What is left for the caller's
thread, PyTorch's own nodes on one device, looks the same from either. Hooks that unpack saved
tensors do not show in the graph, and run in either.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch.autograd.grad_mode import set_multithreading_enabled

# PyTorch's engine, behind all of torch.autograd's functions.
_Engine: Any = torch._C._ImperativeEngine


def patch(core: ModuleType) -> None:
    """Have backward passes compute in the thread that calls them, where nobody can tell."""

    class Engine(_Engine):  # type: ignore[misc]
        def run_backward(self, tensors: Any, *arguments: Any, **options: Any) -> Any:
            if core.needs_backward_threads(tensors):
                return super().run_backward(tensors, *arguments, **options)
            try:
                with set_multithreading_enabled(False):
                    return super().run_backward(tensors, *arguments, **options)
            except BaseException:
                core.drop_failed_backward()
                raise

    variable: Any = torch.autograd.Variable
    variable._execution_engine = Engine()
